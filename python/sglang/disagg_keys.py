"""python -m sglang.disagg_keys --out DIR: key files for the control plane between prefill and decode engines.

A prefill engine's machine needs prefill.key and decode.pub; a decode engine's machine decode.key and prefill.pub. To
let decode engines in with keys of their own, append their public keys to decode.pub, one a line.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang.srt.errors import ConfigError
from sglang.srt.ipc.curve import make_keys


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1, with one line, where a file exists or cannot be written."""
    parser = argparse.ArgumentParser(prog="sglang.disagg_keys", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--out", required=True, type=Path, help="folder for the four files; made where missing")
    try:
        written = make_keys(parser.parse_args(argv).out)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
