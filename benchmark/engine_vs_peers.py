"""Is this engine fast on a CPU? The same folder, prompts and threads for it and its peers, in turns.

    python benchmark/engine_vs_peers.py --setup-peers          # once: an environment for each peer under .peers/
    python benchmark/engine_vs_peers.py                        # measure what is missing; tables and figure
    python benchmark/engine_vs_peers.py --models smollm2 --measures decode --again
    python benchmark/engine_vs_peers.py --plot-only

All engines are driven through their offline interface, without HTTP: ours by `sglang.Engine` (a process of its own, so
its answers cross ZeroMQ), vLLM by LLMEngine.step() in its process, llama.cpp by llama_decode over a batch, transformers
by forward() against a DynamicCache. All are loaded at once; who is not measured is stopped (SIGSTOP). Prefill: one
prompt, from handing it over to its first token. Decode: a batch of 16 prompts is prefilled, then steps of all rows are
timed, then of 4 rows, then of 1; prompts and answers are token ids. The order of the contenders changes every round;
ratios are taken within a round. With `--clock cpu` a turn is measured by the processor time of all processes and
threads of a contender, which other programs lengthen only through caches and memory; sensible with `--threads 1`.
Results are kept by kind of machine, model and measure under benchmark/results/engine_vs_peers.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import FIGURES, ROOT, Record, describe, load_all, results, save
from peers.contest import Contender, ContenderError, rest
from peers.limits import of_this_machine, read_shape
from peers.models import write_gguf, write_qwen3_shape
from peers.tables import draw, render
from peers.venvs import PEERS, PLACE, find, set_up

FOLDER = results("engine_vs_peers")
MODELS = {
    "qwen3-0.6b-shape": ROOT / "models" / "qwen3-0.6b-shape",
    "smollm2": ROOT / "models" / "SmolLM2-135M-Instruct",
}
PROMPTS = (512, 2048)
ROWS = (16, 4, 1)
CONTEXT = 480
"""Prompts of a batch, in tokens: with the steps of all rounds the context stays around 512."""
STEPS = 16
WARM_STEPS = 8
PORTION = 8
"""Steps that an engine may run on beyond what it was asked for: ours counts in portions (contenders/ours.py)."""
LONGEST = 2112


def row_tokens(args: argparse.Namespace) -> int:
    """Tokens of a row that lives through all rounds."""
    steps: int = len(args.rows) * (WARM_STEPS + PORTION + args.rounds * (STEPS + PORTION))
    return -(-(CONTEXT + steps) // 64) * 64


def settings(model: Path, gguf: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What every contender is told at its start."""
    wide = args.torch_peers_dtype == "float32"
    return {
        "model": str(model),
        "gguf": str(gguf),
        "threads": args.threads,
        "most_rows": max(args.rows),
        "most_tokens": row_tokens(args) - CONTEXT,
        "pool_tokens": max(args.rows) * row_tokens(args),
        "pool_bytes": max(args.rows) * row_tokens(args) * read_shape(model).kv_bytes_a_token * (2 if wide else 1),
        "dtype": args.torch_peers_dtype,
        "clock": args.clock,
        "longest": LONGEST,
        "chunk": args.chunk,
        "compile": not args.eager,
    }


def prompt(tokens: int, vocabulary: int, seed: int) -> list[int]:
    """Random ids above the special ones; another prompt for another seed, so that no cache helps."""
    rng = random.Random(seed)
    return [rng.randrange(10, vocabulary) for _ in range(tokens)]


class Contest:
    """The measuring of one model."""

    def __init__(self, contenders: list[Contender], vocabulary: int, rounds: int, rows: Sequence[int]) -> None:
        self._rows = sorted(rows, reverse=True)
        self._contenders = contenders
        self._vocabulary = vocabulary
        self._rounds = rounds
        self.samples: dict[str, dict[str, list[float]]] = {}
        """Case -> contender -> seconds of each round."""
        self.first_tokens: dict[str, list[int]] = {}
        """What each contender sampled first for the batch's prompts: the same weights give mostly the same."""

    def prefill(self, tokens: int) -> None:
        """Time prompts of `tokens` tokens."""
        for number in range(self._rounds):
            order = {"do": "prefill", "prompt": prompt(tokens, self._vocabulary, 1000 * tokens + number)}
            self._round(f"prefill {tokens}", order, number)

    def decode(self) -> None:
        """Time steps of 16, 4 and 1 rows."""
        prompts = [prompt(CONTEXT, self._vocabulary, row) for row in range(self._rows[0])]
        for contender in self._contenders:
            self.first_tokens[contender.name] = contender.ask({"do": "open", "prompts": prompts})["tokens"]
            say(f"{contender.name}: {self._rows[0]} prompts of {CONTEXT} tokens are prefilled")
        for rows in self._rows:
            for contender in self._contenders:
                contender.ask({"do": "keep", "rows": rows})
                contender.ask({"do": "decode", "steps": WARM_STEPS})
            for number in range(self._rounds):
                self._round(f"decode {rows}", {"do": "decode", "steps": STEPS}, number)

    def warm_up(self) -> None:
        """Let every contender allocate and compile what the sizes need: our second prompt is slower than our third."""
        for contender in self._contenders:
            for tokens in (64, 512, 512, 512):
                contender.ask({"do": "prefill", "prompt": prompt(tokens, self._vocabulary, tokens)})

    def _round(self, case: str, order: dict[str, Any], number: int) -> None:
        turn = number % len(self._contenders)
        for contender in self._contenders[turn:] + self._contenders[:turn]:
            rest()
            seconds = contender.ask(order)["seconds"]
            self.samples.setdefault(case, {}).setdefault(contender.name, []).append(seconds)
        said = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in self.samples[case].items())
        say(f"{case}, round {number + 1} of {self._rounds}: {said}")


def measure(name: str, what: str, args: argparse.Namespace) -> Record:
    """One record: a model's prefill or decode. Contenders that cannot run are named with their reason."""
    model = MODELS[name]
    gguf = PLACE / "gguf" / f"{name}.bf16.gguf"
    if name == "qwen3-0.6b-shape":
        write_qwen3_shape(model)
    write_gguf(model, gguf)
    shape = read_shape(model)
    not_run: dict[str, str] = {}
    with ExitStack() as stack:
        logs = Path(tempfile.mkdtemp(prefix="peers-"))
        contenders = start(stack, settings(model, gguf, args), args.peers, logs, not_run)
        contest = Contest(contenders, _vocabulary(model), args.rounds, args.rows)
        contest.warm_up()
        if what == "prefill":
            for tokens in args.prompts:
                contest.prefill(tokens)
        else:
            contest.decode()
        return {
            "model": name,
            "measure": what,
            "machine": describe(),
            "threads": args.threads,
            "clock": args.clock,
            "context": 512,
            "steps": STEPS,
            "shape": asdict(shape),
            "versions": {c.name: c.version for c in contenders},
            "load_s": {c.name: c.load_s for c in contenders},
            "not_run": not_run,
            "samples": contest.samples,
            "first_tokens": contest.first_tokens,
            "peak_bytes": {c.name: c.peak_bytes() for c in contenders},
            "needed_bytes": shape.weight_bytes + max(args.rows) * row_tokens(args) * shape.kv_bytes_a_token,
        }


def start(
    stack: ExitStack, told: dict[str, Any], names: Sequence[str], logs: Path, not_run: dict[str, str]
) -> list[Contender]:
    """The contenders that run; the others' reasons go to `not_run`."""
    contenders = []
    for name in names:
        peer = find(name)
        if peer.problem:
            not_run[name] = peer.problem
            continue
        say(f"{name}: loading")
        try:
            contender = stack.enter_context(Contender(peer, told, logs / f"{name}.log"))
        except ContenderError as error:
            not_run[name] = str(error).splitlines()[-1][:200]
            say(f"{error}")
            continue
        say(f"{name}: {contender.version}, loaded in {contender.load_s:.0f} s")
        contenders.append(contender)
    return contenders


def _vocabulary(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def report() -> None:
    """Tables of all records to standard output, and the figure."""
    records = list(load_all(FOLDER))
    if not records:
        say("nothing has been measured")
        return
    limits = of_this_machine()
    for record in records:
        how = f"{record['threads']} threads, {record.get('clock', 'wall')} time"
        print(f"\n### {record['model']}, {record['measure']}, {how}\n\n{render(record, limits)}")
    draw(records, limits, FIGURES / "engine_vs_peers.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup-peers", action="store_true", help="make the environments of --peers, then stop")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--measures", nargs="+", choices=["prefill", "decode"], default=["prefill", "decode"])
    parser.add_argument("--peers", nargs="+", choices=[peer.name for peer in PEERS], default=[p.name for p in PEERS])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="batch sizes of decoding")
    parser.add_argument("--prompts", type=int, nargs="+", default=list(PROMPTS), help="lengths of prefill")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--chunk", type=int, default=2048, help="most prompt tokens in a step, where an engine asks")
    parser.add_argument(
        "--eager", action="store_true", help="vLLM without torch.compile: 100 s sooner, a little slower"
    )
    parser.add_argument(
        "--torch-peers-dtype", choices=["bfloat16", "float32"], default="bfloat16",
        help="of vLLM and transformers; without AVX-512 torch multiplies bfloat16 8 times as slowly as float32",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also measure what has a result")
    parser.add_argument("--plot-only", action="store_true", help="tables and figure of what is there")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # contenders are ended on the way out
    if args.setup_peers:
        set_up(say, [find(name) for name in args.peers])
        return 0
    for name in [] if args.plot_only else args.models:
        for what in args.measures:
            suffix = "-cpu-time" if args.clock == "cpu" else ""
            path = FOLDER / f"{name}-{what}{suffix}.json"
            if args.again or not path.is_file():
                save(path, measure(name, what, args))
    report()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
