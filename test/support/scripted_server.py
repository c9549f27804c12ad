"""launch_server with a scripted scheduler: `python scripted_server.py [--fail CODE] [--step S] -- SERVER FLAGS`."""

import sys
from pathlib import Path

from sglang.srt.config.cli import parse
from sglang.srt.entrypoints.launch import serve


def main() -> int:
    split = sys.argv.index("--")
    script = Path(__file__).with_name("scripted_scheduler.py")
    return serve(parse(sys.argv[split + 1 :]), [sys.executable, str(script), *sys.argv[1:split]])


if __name__ == "__main__":
    sys.exit(main())
