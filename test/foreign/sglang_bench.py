"""SGLang's own bench_serving, from its wheel and in a venv of its own, against a unified engine and a pair of ours.

Exit code 1 where the client cannot be had, or any request of it fails.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.engines import ROOT, Engine, cluster, need_model

HERE = Path(__file__).resolve().parent
VENV = ROOT / ".stamps" / "sglang-wheel"
WHEEL = "sglang==0.5.23"
NEEDS = HERE / "sglang-client.txt"
CLIENT = [str(VENV / "bin" / "python"), str(HERE / "sglang_client.py")]
BACKENDS = ("sglang", "sglang-oai", "sglang-oai-chat")
PROMPTS, TOKENS = 8, 8
FLAGS = ("--max-total-tokens", "8192")


def install() -> None:
    """The venv; done again only where WHEEL or NEEDS changed. Raises CalledProcessError."""
    stamp, wanted = VENV / "installed", f"{WHEEL}\n{NEEDS.read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"==> {WHEEL} and what its client imports, in {VENV}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [CLIENT[0], "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(NEEDS)], check=True)
    subprocess.run([*pip, "--no-deps", WHEEL], check=True)
    stamp.write_text(wanted)


def bench(engine: Engine, backend: str, *flags: str) -> dict[str, float]:
    """One run's figures. Raises CalledProcessError or AssertionError."""
    model = str(need_model())
    report = VENV / "report.jsonl"
    report.unlink(missing_ok=True)
    command = [*CLIENT, "--backend", backend, "--base-url", engine.url, "--model", model, "--tokenizer", model]
    command += ["--dataset-name", "random-ids", "--num-prompts", str(PROMPTS), "--random-range-ratio", "1"]
    command += ["--random-input-len", "32", "--random-output-len", str(TOKENS), "--output-file", str(report), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 0, f"{backend}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
    figures: dict[str, float] = json.loads(report.read_text().splitlines()[-1])
    assert figures["completed"] == PROMPTS, f"{backend}: {figures['completed']} of {PROMPTS}\n{done.stdout[-4000:]}"
    assert figures["total_output_tokens"] == PROMPTS * TOKENS, f"{backend}: {figures['total_output_tokens']} tokens"
    return figures


def every(engine: Engine, backends: tuple[str, ...], where: str) -> None:
    """Each backend, with the time to its first token."""
    for backend in backends:
        started = time.monotonic()
        figures = bench(engine, backend, "--flush-cache")
        took = time.monotonic() - started
        print(f"{where} {backend}: passed, mean TTFT {figures['mean_ttft_ms']:.0f} ms, {took:.0f} s", flush=True)


def main() -> int:
    try:
        install()
        with Engine(*FLAGS) as engine:
            every(engine.wait_ready(), BACKENDS, "unified")
        with cluster(*FLAGS, "--disagg-local-prefill-tokens", "4") as (_, (decode,)):
            every(decode, BACKENDS[:1], "disaggregated")
    except (subprocess.CalledProcessError, AssertionError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("test-foreign: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
