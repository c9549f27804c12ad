"""sglang.Engine: SGLang's offline interface."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

import sglang
from sglang.srt.errors import CheckpointError, ConfigError, RequestError
from support.engines import need_model

GREEDY = {"temperature": 0, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def engine() -> Iterator["sglang.Engine"]:
    with sglang.Engine(model_path=str(need_model()), max_total_tokens=4096, max_running_requests=8) as made:
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
    with pytest.raises(ConfigError, match="no_such_flag"):
        sglang.Engine(model_path=str(need_model()), no_such_flag=1)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        sglang.Engine(model_path=str(tmp_path))
