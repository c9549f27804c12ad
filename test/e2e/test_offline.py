"""sglang.Engine: SGLang's offline interface."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator

import pytest

import sglang
from sglang.srt.errors import CheckpointError, ConfigError, RequestError
from support.engines import need_model
from support.storm import wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 6}


SETTINGS = {
    "dtype": "float32",  # compared between batches, where bfloat16 leaves ties: 0.12 between two logits of a prompt
    "max_total_tokens": 4096, "max_running_requests": 8, "disagg_local_prefill_tokens": 2, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["unified", "disaggregated"])
def engine(request: pytest.FixtureRequest) -> Iterator["sglang.Engine"]:
    with sglang.Engine(model_path=str(need_model()), disagg=request.param, **SETTINGS) as made:
        yield made


def test_one_prompt_a_batch_and_token_ids(engine: "sglang.Engine") -> None:
    one = engine.generate("The sky is", GREEDY)
    assert one["meta_info"]["completion_tokens"] == 6
    both = engine.generate(["The sky is", "Water boils at"], GREEDY)
    assert both[0]["text"] == one["text"] and len(both) == 2
    ids = engine.generate(input_ids=[[5, 6, 7]], sampling_params=[{"max_new_tokens": 2, "ignore_eos": True}])
    assert len(ids[0]["output_ids"]) == 2


def test_streams_have_the_text_so_far(engine: "sglang.Engine") -> None:
    whole = engine.generate("The sky is", GREEDY)["text"]
    texts = [part["text"] for part in engine.generate("The sky is", GREEDY, stream=True)]
    assert texts[-1] == whole and all(b.startswith(a) for a, b in itertools.pairwise(texts))


def test_coroutines(engine: "sglang.Engine") -> None:
    async def ask() -> tuple[list[str], list[str]]:
        jobs = [engine.async_generate(f"{i} plus one is", GREEDY) for i in range(6)]
        whole = [answer["text"] for answer in await asyncio.gather(*jobs)]
        stream = await engine.async_generate("0 plus one is", GREEDY, stream=True)
        return whole, [part["text"] async for part in stream]

    whole, parts = asyncio.run(ask())
    assert parts[-1] == whole[0]


def test_logprobs_state_and_cache(engine: "sglang.Engine") -> None:
    answer = engine.generate("The sky is blue", GREEDY, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    meta = answer["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] and len(meta["output_top_logprobs"]) == 6
    assert engine.get_server_info()["num_running_reqs"] == 0
    engine.generate("one two three four " * 10, GREEDY)
    assert engine.flush_cache() > 0


def test_a_stream_that_is_left_is_aborted(engine: "sglang.Engine") -> None:
    stream = engine.generate("Once upon", {"max_new_tokens": 2000, "ignore_eos": True}, stream=True)
    next(stream)
    stream.close()
    assert engine.generate("The sky is", GREEDY)["text"]
    assert engine.get_server_info()["num_running_reqs"] == 0


def test_wrong_arguments(engine: "sglang.Engine", tmp_path: object) -> None:
    with pytest.raises(RequestError, match="temperature"):
        engine.generate("x", {"temperature": -1})
    with pytest.raises(RequestError, match="empty"):
        engine.generate("")
    with pytest.raises(TypeError, match="no_such_argument"):
        engine.generate("x", no_such_argument=1)
    with pytest.raises(ConfigError, match="disagg_prefill"):
        sglang.Engine(model_path=str(need_model()), disagg=True, disagg_prefill="127.0.0.1:9")
    with pytest.raises(ConfigError, match="no_such_flag"):
        sglang.Engine(model_path=str(need_model()), disagg={"no_such_flag": 1})
    with pytest.raises(ConfigError, match="no_such_flag"):
        sglang.Engine(model_path=str(need_model()), no_such_flag=1)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        sglang.Engine(model_path=str(tmp_path))


def test_disaggregated_prompts_are_computed_by_the_other_engine() -> None:
    """A setting of its own for the prefill engine, a batch with n > 1, and the death of the prefill engine."""
    asked = ["one two three four five six " * 4, "The sky is blue and the sea is green, says the old song."]
    with sglang.Engine(model_path=str(need_model()), disagg={"max_total_tokens": 1024}, **SETTINGS) as engine:
        texts = [answer["text"] for answer in engine.generate(asked, {**GREEDY, "n": 2})]
        assert texts[0] == texts[1] and texts[2] == texts[3]
        wait_until(lambda: engine.get_server_info()["prefill"]["num_transfers_total"] >= 2)
        info = engine.get_server_info()
        assert info["prefill"]["num_transfers_total"] == 2 and info["prefill"]["max_total_num_tokens"] == 1024
        assert info["max_total_num_tokens"] == 4096 and info["num_running_reqs"] == 0
        assert engine.flush_cache() > 0
        os.kill(engine._engines._children[1].pid, signal.SIGKILL)
        with pytest.raises(RequestError, match="the prefill engine ended"):
            for _ in range(100):
                engine.generate("a prompt that is new every time", GREEDY)
                time.sleep(0.05)
