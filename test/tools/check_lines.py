"""No source file longer than 400 lines: python test/tools/check_lines.py [FOLDER...]. Exits 1 and names those above."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LIMIT = 400
SUFFIXES = {".py", ".pyi", ".cpp", ".hpp", ".h", ".c", ".cu", ".cuh"}
FOLDERS = ("python", "test", "benchmark")


def too_long(folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """(file, lines) of each file above the limit."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > LIMIT:
                    yield path, lines


def main(argv: Sequence[str]) -> int:
    """Check the folders of `argv`, or those that hold this project's sources."""
    found = list(too_long([Path(name) for name in argv or FOLDERS]))
    for path, lines in found:
        sys.stdout.write(f"{path}: {lines} lines, the limit is {LIMIT}: split it\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
