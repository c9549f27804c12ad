"""Clients that sit on top of OpenAI's dialect: langchain-openai and litellm, unmodified."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from support.engines import Engine

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def test_langchain_invokes_streams_and_batches(engine: Engine) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="smol", base_url=engine.url + "/v1", api_key="none", temperature=0, max_tokens=8)
    whole = model.invoke("Say hello.")
    assert whole.usage_metadata["output_tokens"] == 8 and whole.response_metadata["finish_reason"] == "length"
    assert "".join(str(part.content) for part in model.stream("Say hello.")) == whole.content
    assert [answer.content for answer in model.batch(["Say hello.", "Say hello."])] == [whole.content] * 2


class Booking(BaseModel):
    """Books a table."""

    guests: Literal[1, 2, 3]
    day: Literal["Mon", "Tue"]


def test_langchain_binds_tools_and_structures_output(engine: Engine) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="smol", base_url=engine.url + "/v1", api_key="none", temperature=0, max_tokens=120)
    bound = model.bind_tools([Booking], tool_choice="required", parallel_tool_calls=False)
    (call,) = bound.invoke("Book a table for two on Monday.").tool_calls
    assert call["name"] == "Booking" and Booking.model_validate(call["args"])
    streamed = None
    for part in bound.stream("Book a table for two on Monday."):
        streamed = part if streamed is None else streamed + part
    assert streamed.tool_calls[0]["args"] == call["args"]
    for method in ("json_schema", "function_calling"):
        made = model.with_structured_output(Booking, method=method).invoke("Book a table for two on Monday.")
        assert isinstance(made, Booking), method


def test_langchain_completes(engine: Engine) -> None:
    from langchain_openai import OpenAI

    model = OpenAI(model="smol", base_url=engine.url + "/v1", api_key="none", temperature=0, max_tokens=6)
    assert model.invoke("One, two,") == "".join(model.stream("One, two,"))


def test_litellm_completes_and_streams(engine: Engine) -> None:
    script = Path(__file__).with_name("litellm_client.py")
    done = subprocess.run([sys.executable, str(script), engine.url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "litellm: passed" in done.stdout, done.stdout + done.stderr
