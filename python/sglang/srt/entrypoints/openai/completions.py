"""/v1/completions."""

from collections.abc import AsyncGenerator

import msgspec
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Generation, Wanted
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.openai.logprobs import completion_logprobs, joined, prompt_logprobs
from sglang.srt.entrypoints.openai.protocol import (
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
)
from sglang.srt.entrypoints.openai.streaming import AnswerFrame, reason_json
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.errors import RequestError
from sglang.srt.managers.tokenizer import fit

DEFAULT_TOKENS = 16
"""OpenAI's default of max_tokens for completions."""


def completion_routes(front: Front) -> APIRouter:
    """The route over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        front.check_model(body.model)
        body.check()
        texts, prompts = await _prompts(body, front)
        wanted = [_wanted(body, ids, front) for ids in prompts]
        generation = front.generate(wanted, body.rid, stream=bool(body.stream))
        echo = [text for text in texts for _ in range(body.copies)] if body.echo else [""] * len(generation.outputs)
        reply = _CompletionReply(body, front, generation, echo)
        return await respond(request, generation, reply, stream=bool(body.stream))

    return router


async def _prompts(body: CompletionBody, front: Front) -> tuple[list[str], list[list[int]]]:
    """The prompts as text (only where they are echoed) and as tokens."""
    tokenizer = front.tokenizer
    prompt = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if not prompt:
        raise RequestError("prompt: the prompt is empty", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    if texts:
        return texts, [await tokenizer.encode_off_loop(text) for text in texts]
    lists = [item for item in prompt if isinstance(item, list)] or [[item for item in prompt if isinstance(item, int)]]
    for ids in lists:
        tokenizer.check_ids(ids, "prompt")
    return [tokenizer.decode(ids) for ids in lists] if body.echo else [], lists


def _wanted(body: CompletionBody, ids: list[int], front: Front) -> Wanted:
    asked = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    if asked == 0 and not body.echo:
        raise RequestError("max_tokens: must be at least 1 without echo", param="max_tokens")
    # Only what the client asked for can be refused: a default is cut to what fits.
    clip = body.max_tokens is None
    room = fit(len(ids), asked or 1, front.context, param="prompt", asked_param="max_tokens", clip=clip)
    sampling = body.sampling(
        front.tokenizer,
        max_new_tokens=room,
        min_new_tokens=body.min_tokens,
        seed=body.seed,
        top_logprobs=body.logprobs,
    )
    if body.echo and body.logprobs is not None:
        front.check_scores(len(ids), 0, body.logprobs)
        sampling = msgspec.structs.replace(sampling, scored_from=0)
    return Wanted(tuple(ids), sampling, body.rules(body.min_tokens), body.copies, body.priority, silent=asked == 0)


class _CompletionReply:
    """Shows a generation as completions."""

    def __init__(self, body: CompletionBody, front: Front, generation: Generation, echo: list[str]) -> None:
        self._body = body
        self._front = front
        self._generation = generation
        self._echo = echo
        self._offsets = [0] * len(echo)
        self._frame = AnswerFrame(body, front, generation, prefix="cmpl", kind="text_completion")

    async def whole(self) -> bytes:
        return await self._frame.whole(CompletionAnswer, self._choice)

    def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        return self._frame.events(first, self._parts)

    def _choice(self, chunk: Chunk) -> CompletionChoice:
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = self._shown(chunk, 0, begins=True)
        return CompletionChoice(
            index=chunk.index,
            text=self._echo[chunk.index] + chunk.text,
            logprobs=logprobs,
            finish_reason=chunk.finish.reason if chunk.finish else None,
            matched_stop=chunk.finish.matched if chunk.finish else None,
        )

    def _parts(self, chunk: Chunk, begins: bool) -> list[bytes]:
        text = self._echo[chunk.index] + chunk.text if begins else chunk.text
        logprobs = b"null"
        if self._body.logprobs is not None and (chunk.token_ids or begins):
            logprobs = self._logprobs(chunk, begins)
        if not text and logprobs == b"null" and chunk.finish is None:
            return []  # the stop string or character that the text waits for may still come
        head = b'{"index":%d,"text":' % chunk.index
        return [head + orjson.dumps(text) + b',"logprobs":' + logprobs + reason_json(chunk)]

    def _shown(self, chunk: Chunk, offset: int, *, begins: bool) -> CompletionLogprobs:
        """The log probabilities of a chunk; the first one of an echo begins with the prompt's."""
        tokenizer, top = self._front.tokenizer, bool(self._body.logprobs)
        if not (begins and self._body.echo):
            return completion_logprobs(chunk, tokenizer, offset, top=top)
        output = self._generation.outputs[chunk.index]
        prompt = prompt_logprobs(output.prompt_ids, output.prompt_scores, tokenizer, top=top)
        offset = len(self._echo[chunk.index])
        return joined(prompt, completion_logprobs(chunk, tokenizer, offset, top=top))

    def _logprobs(self, chunk: Chunk, begins: bool) -> bytes:
        offset = self._offsets[chunk.index]
        shown = self._shown(chunk, offset, begins=begins)
        self._offsets[chunk.index] = offset + sum(map(len, shown.tokens))
        return shown.model_dump_json().encode()
