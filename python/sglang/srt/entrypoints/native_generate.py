"""SGLang's /generate: its request, its response, its stream of whole texts."""

import time
from collections.abc import AsyncGenerator, Sequence

import msgspec
import orjson

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Finish, Generation, Output, TopLogprobs, Wanted
from sglang.srt.entrypoints.http_tools import DONE
from sglang.srt.entrypoints.native_protocol import GenerateBody, NativeSampling
from sglang.srt.errors import RequestError
from sglang.srt.managers.tokenizer import fit

DEFAULT_NEW_TOKENS = 128

Shown = tuple[float | None, int, str | None]
"""A token's log probability, its id, and its text where that is asked for."""


async def wanted_of(body: GenerateBody, front: Front) -> list[Wanted]:
    """What a request asks for, prompt by prompt. Raises RequestError that names the offending field."""
    body.check()
    prompts, param = await _prompts(body, front)
    params = body.sampling_params if body.sampling_params is not None else NativeSampling()
    if isinstance(params, NativeSampling):
        params = [params] * len(prompts)
    if len(params) != len(prompts):
        raise RequestError(f"sampling_params: {len(params)} for {len(prompts)} prompts", param="sampling_params")
    return [_wanted(body, ids, one, front, param) for ids, one in zip(prompts, params, strict=True)]


class NativeReply:
    """Builds /generate's answers from chunks."""

    def __init__(self, body: GenerateBody, front: Front, generation: Generation, rid: str) -> None:
        self._body = body
        self._tokenizer = front.tokenizer
        self._generation = generation
        self._rid = rid
        # SGLang answers one object to one prompt and a list to a batch; n > 1 makes a batch of one.
        one = isinstance(body.text, str) or bool(body.input_ids and isinstance(body.input_ids[0], int))
        self._single = one and len(generation.outputs) == 1

    async def whole(self) -> bytes:
        """The answer without streaming."""
        answers = [self._answer(chunk) for chunk in await self._generation.collect()]
        return orjson.dumps(answers[0] if self._single else answers)

    async def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        """One event a chunk, each with the text so far, as SGLang's clients expect."""
        so_far = [Chunk(output.index) for output in self._generation.outputs]
        chunks = first
        while chunks:
            parts = []
            for chunk in chunks:
                whole = so_far[chunk.index]
                whole.add(chunk)
                answer = self._answer(whole)
                if not self._single:
                    answer["index"] = chunk.index
                parts.append(b"data: " + orjson.dumps(answer) + b"\n\n")
            yield b"".join(parts)
            chunks = await self._generation.take()
        yield DONE

    def _answer(self, chunk: Chunk) -> dict[str, object]:
        output = self._generation.outputs[chunk.index]
        meta: dict[str, object] = {
            "id": self._rid if self._single else f"{self._rid}-{chunk.index}",
            "finish_reason": _finish(chunk.finish, output),
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": output.completion_tokens,
            "cached_tokens": output.cached_tokens,
            "e2e_latency": (output.finished_at or time.perf_counter()) - self._generation.started_at,
        }
        if self._body.return_logprob:
            meta.update(self._logprobs(chunk, output))
        return {"text": chunk.text, "output_ids": chunk.token_ids, "meta_info": meta}

    def _logprobs(self, chunk: Chunk, output: Output) -> dict[str, object]:
        """As SGLang has them: the prompt from logprob_start_len on, of which the first has none, and the output."""
        scores = output.prompt_scores
        prompt: list[object] = (
            [
                self._logprob(token, score.logprob)
                for token, score in zip(output.prompt_ids[-len(scores) :], scores, strict=True)
            ]
            if scores
            else []
        )
        asked = self._body.starts(output.prompt_tokens)
        if asked is not None:
            prompt.insert(0, self._logprob(output.prompt_ids[asked], None))
        shown: dict[str, object] = {
            "input_token_logprobs": prompt,
            "output_token_logprobs": list(map(self._logprob, chunk.token_ids, chunk.logprobs)),
        }
        first = [None] if asked is not None else []
        if self._body.top_logprobs_num:
            shown["input_top_logprobs"] = [*first, *(self._top(score.top) for score in scores)]
            shown["output_top_logprobs"] = [self._top(top) for top in chunk.top_logprobs]
        if self._body.token_ids_logprob:
            shown["input_token_ids_logprobs"] = [*first, *(self._ids(score.ids) for score in scores)]
            shown["output_token_ids_logprobs"] = [self._ids(values) for values in chunk.id_logprobs]
        return shown

    def _ids(self, values: Sequence[float]) -> list[Shown]:
        return list(map(self._logprob, self._body.token_ids_logprob or (), values))

    def _logprob(self, token: int, value: float | None) -> Shown:
        text = self._tokenizer.token_text(token) if self._body.return_text_in_logprobs else None
        return (None if value is None else finite(value), token, text)

    def _top(self, top: TopLogprobs) -> list[Shown]:
        return [self._logprob(token, value) for token, value in top]


def finite(logprob: float) -> float:
    """JSON has no infinities: a token that a filter excluded gets -9999."""
    return max(logprob, -9999.0)


def _finish(finish: Finish | None, output: Output) -> dict[str, object] | None:
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": output.completion_tokens}
    if finish.reason == "abort":
        return {"type": "abort", "message": "the request was aborted"}
    return {"type": finish.reason, "matched": finish.matched}


async def _prompts(body: GenerateBody, front: Front) -> tuple[list[tuple[int, ...]], str]:
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("give either text or input_ids", param="text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        if not texts:
            raise RequestError("text: the batch is empty", param="text")
        return [tuple(await front.tokenizer.encode_off_loop(text)) for text in texts], "text"
    lists: list[list[int]] = []
    single: list[int] = []
    for item in body.input_ids or ():
        if isinstance(item, int):
            single.append(item)
        else:
            lists.append(item)
    lists = lists or [single]
    for ids in lists:
        front.tokenizer.check_ids(ids, "input_ids")
    return [tuple(ids) for ids in lists], "input_ids"


def _wanted(body: GenerateBody, ids: tuple[int, ...], params: NativeSampling, front: Front, param: str) -> Wanted:
    params.check()
    asked = DEFAULT_NEW_TOKENS if params.max_new_tokens is None else params.max_new_tokens
    silent = asked == 0
    room = fit(len(ids), asked or 1, front.context, param=param, asked_param="max_new_tokens", clip=True)
    minimum = min(params.min_new_tokens, room) if params.min_new_tokens <= asked else params.min_new_tokens
    start = body.starts(len(ids))
    front.check_scores(len(ids), start, body.top_logprobs_num)
    front.tokenizer.check_ids(body.token_ids_logprob or (), "token_ids_logprob")
    sampling = params.sampling(
        front.tokenizer,
        max_new_tokens=room,
        min_new_tokens=minimum,
        seed=params.sampling_seed,
        top_logprobs=body.top_logprobs_num if body.return_logprob else None,
    )
    if body.return_logprob:
        sampling = msgspec.structs.replace(
            sampling, scored_from=-1 if start is None else start, logprob_ids=tuple(body.token_ids_logprob or ())
        )
    return Wanted(ids, sampling, params.rules(minimum), params.copies, body.priority, silent)
