"""SGLang's own bench_serving, from its wheel and in a venv of its own, against a server of ours.

The wheel comes without its dependencies (CUDA builds of several GB); what the client side imports is added.
Where that cannot be had, this says `not run` and why: it never passes for having run.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.engines import MODEL, ROOT, Engine

VENV = ROOT / ".stamps" / "sglang-wheel"
WHEEL = "sglang==0.5.23"
CLIENT = ("aiohttp", "requests", "tqdm", "numpy", "transformers", "pillow", "orjson", "psutil", "pybase64", "pyzmq")
PLAIN = ("torch==2.13.0", "triton", "starlette", "msgspec", "ipython", "torchvision")


def installed() -> str:
    """What is in the way; empty where the client starts."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        for arguments in ((*CLIENT, *PLAIN), ("--no-deps", WHEEL)):
            done = subprocess.run([*pip, *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                return done.stderr.strip().splitlines()[-1]
    command = [str(python), "-m", "sglang.bench_serving", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def main() -> int:
    problem = installed()
    if problem:
        print(f"not run: {WHEEL}: {problem}")
        return 0
    with Engine("--max-total-tokens", "8192") as engine:
        engine.wait_ready()
        for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
            command = [str(VENV / "bin" / "python"), "-m", "sglang.bench_serving", "--backend", backend]
            command += ["--base-url", engine.url, "--model", str(MODEL), "--tokenizer", str(MODEL)]
            command += ["--dataset-name", "random-ids", "--num-prompts", "8", "--random-input-len", "32"]
            command += ["--random-output-len", "8"]
            subprocess.run(command, check=True, cwd="/")
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
