"""`python -m sglang.launch_server`: serve one model over HTTP."""

import sys
from collections.abc import Sequence

from sglang.srt.config.cli import parse
from sglang.srt.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for a wrong command line, with one line on stderr that names the flag."""
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        sys.stderr.write(f"sglang launch-server: {error}\n")
        return 2
    # Imported late: --help and wrong flags should answer at once.
    from sglang.srt.entrypoints.launch import serve

    return serve(config)


if __name__ == "__main__":
    sys.exit(main())
