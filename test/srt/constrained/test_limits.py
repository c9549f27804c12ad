"""Compilations that must not succeed, in the helper process that may be killed."""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang.srt.constrained.base import GrammarError
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.trial import MODULE
from sglang.srt.constrained.vocabulary import Vocabulary
from sglang.srt.constrained.xgrammar_backend import XGrammarBackend
from sglang.srt.core.grammar import GrammarSpec

SLOW = "(" + "|".join(f"[a-z]{{{i}}}x" for i in range(300)) + ")*"
QUICK = GrammarSpec(kind="regex", text="[0-9]+")


@pytest.fixture(scope="module")
def backend(vocabulary: Vocabulary) -> Iterator[XGrammarBackend]:
    made = XGrammarBackend(vocabulary, GrammarLimits(seconds=1.0, compiled_bytes=100_000), whitespace=True)
    made.compile(QUICK)  # the helper is up
    yield made
    made.close()


def test_a_slow_grammar_is_stopped_and_others_are_not_held_up(vocabulary: Vocabulary) -> None:
    backend = XGrammarBackend(vocabulary, GrammarLimits(seconds=5.0), whitespace=True)
    backend.compile(QUICK)  # the helper is up
    ended: list[tuple[str, float]] = []

    def slow() -> None:
        with pytest.raises(GrammarError, match="limit of 5 s of compilation"):
            backend.compile(GrammarSpec(kind="regex", text=SLOW))
        ended.append(("slow", time.monotonic()))

    thread = threading.Thread(target=slow)
    thread.start()
    time.sleep(0.2)
    backend.compile(QUICK)
    ended.append(("quick", time.monotonic()))
    thread.join(30)
    backend.close()
    assert [name for name, _ in ended] == ["quick", "slow"]


def test_a_large_result_is_refused_with_its_limit(backend: XGrammarBackend) -> None:
    with pytest.raises(GrammarError, match="the limit is"):
        backend.compile(GrammarSpec(kind="json_schema", text='{"type": "object", "additionalProperties": true}'))


def test_nesting_that_breaks_the_library_costs_one_child(backend: XGrammarBackend) -> None:
    with pytest.raises(GrammarError) as error:
        backend.compile(GrammarSpec(kind="regex", text="(" * 100_000 + "a" + ")" * 100_000))
    assert error.value.status == 400
    backend.compile(QUICK)


def test_closing_ends_what_is_compiled(vocabulary: Vocabulary) -> None:
    made = XGrammarBackend(vocabulary, GrammarLimits(seconds=60.0), whitespace=True)
    made.compile(QUICK)
    threading.Timer(0.3, made.close).start()
    started = time.monotonic()
    with pytest.raises(GrammarError, match="stopping"):
        made.compile(GrammarSpec(kind="regex", text=SLOW))
    assert time.monotonic() - started < 10


ORPHAN = """
import os, signal, sys, time
from pathlib import Path
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.trial import Setup, Trials
from sglang.srt.constrained.vocabulary import load_vocabulary
from sglang.srt.core.grammar import GrammarSpec
vocabulary = load_vocabulary(Path(sys.argv[1]), 49152, (2,))
trials = Trials(Setup(vocabulary=vocabulary, limits=GrammarLimits(), whitespace=True))
if sys.argv[2] == "up":
    trials.check(GrammarSpec(kind="regex", text="a"))
print(trials._helper.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["up", "starting"])
def test_a_killed_engine_leaves_no_helper_behind(vocabulary: Vocabulary, when: str) -> None:
    folder = str(Path(vocabulary.file).parent)
    run = subprocess.run(
        [sys.executable, "-c", ORPHAN, folder, when], stdout=subprocess.PIPE, text=True, check=False, timeout=120
    )
    helper = Path(f"/proc/{int(run.stdout)}")
    end = time.monotonic() + 60
    while helper.exists() and "Z" not in (helper / "stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < end, "the helper outlives its engine"
        time.sleep(0.1)


@pytest.mark.parametrize("said", [b"", (1000).to_bytes(4, "little") + b"cut off"])
def test_an_engine_that_ends_before_it_has_said_all_is_no_error(said: bytes) -> None:
    folder = Path(tempfile.mkdtemp())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        command = [sys.executable, "-m", MODULE, str(listener.fileno())]
        run = subprocess.run(
            command, input=said, stderr=subprocess.PIPE, pass_fds=[listener.fileno()], check=False, timeout=60
        )
    assert (run.returncode, run.stderr) == (0, b"")
    assert not folder.exists(), "the folder of its socket is left behind"
