import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT / "test") not in sys.path:
    sys.path.insert(0, str(ROOT / "test"))

from sglang.srt.config.server import ServerConfig  # noqa: E402
from sglang.srt.managers.tokenizer import Tokenizer  # noqa: E402
from support.live_front import MODEL, LiveFront  # noqa: E402
from support.scripted_scheduler import ScriptedScheduler  # noqa: E402


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    if not (MODEL / "tokenizer.json").exists():
        pytest.fail(f"no model at {MODEL}: run make model")
    return Tokenizer.load(str(MODEL), str(MODEL))


@pytest.fixture(scope="session")
def shared_front(tokenizer: Tokenizer) -> Iterator[LiveFront]:
    config = ServerConfig(model_path=str(MODEL), served_model_name="smol", enable_cache_report=True)
    live = LiveFront(tokenizer, config).start()
    yield live
    live.stop()


@pytest.fixture
def live(shared_front: LiveFront) -> LiveFront:
    """The shared front with its scheduler's script reset, and nothing on its way to it from the test before."""
    shared_front.settle()
    fresh = ScriptedScheduler("")
    for field in dataclasses.fields(ScriptedScheduler):
        if field.name not in ("address", "running", "ready", "stopped"):
            setattr(shared_front.scheduler, field.name, getattr(fresh, field.name))
    return shared_front


@pytest.fixture
def client(live: LiveFront) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, http_client=live.client()) as client:
        yield client


@pytest.fixture
def say(live: LiveFront):  # noqa: ANN201
    """Lets the scripted model answer a text."""

    def script(*texts: str, end: bool = False) -> list[int]:
        answers = [live.tokenizer.encode(text) + ([2] if end else []) for text in texts]
        turn = iter(answers)
        live.scheduler.answer = lambda request: next(turn, answers[-1])
        return answers[0]

    return script
