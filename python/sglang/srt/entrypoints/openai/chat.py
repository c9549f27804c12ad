"""/v1/chat/completions."""

import dataclasses
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Finish, Generation, Wanted
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.openai.chat_messages import assistant_message, delta_json, template_message
from sglang.srt.entrypoints.openai.chat_parsing import ChatParsing, chat_parsing
from sglang.srt.entrypoints.openai.logprobs import chat_logprobs
from sglang.srt.entrypoints.openai.protocol import ChatAnswer, ChatBody, ChatChoice
from sglang.srt.entrypoints.openai.streaming import AnswerFrame, reason_json
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.parsers.base import CallStart, Event
from sglang.srt.errors import RequestError
from sglang.srt.managers.tokenizer import fit


def chat_routes(front: Front) -> APIRouter:
    """The route over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        front.check_model(body.model)
        wanted, parsing = await prepare_chat(body, front)
        generation = front.generate([wanted], body.rid, stream=bool(body.stream))
        reply = _ChatReply(body, front, generation, parsing)
        return await respond(request, generation, reply, stream=bool(body.stream))

    return router


async def prepare_chat(body: ChatBody, front: Front) -> tuple[Wanted, ChatParsing]:
    """What a conversation asks for, and how its answer is read. Raises RequestError that names the offending field."""
    body.check()
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    context = front.context
    text = _prompt(body, front)
    parsing = chat_parsing(body, front.config, text)
    ids = await front.tokenizer.encode_off_loop(text, add_special_tokens=False)
    asked_param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if asked == 0:
        raise RequestError(f"{asked_param}: must be at least 1", param=asked_param)
    room = fit(len(ids), asked, context, param="messages", asked_param=asked_param)
    sampling = body.sampling(
        front.tokenizer,
        max_new_tokens=room,
        min_new_tokens=body.min_tokens,
        seed=body.seed,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    rules = body.rules(body.min_tokens)
    if parsing.show_special and body.skip_special_tokens is None:
        rules = dataclasses.replace(rules, skip_special_tokens=False)
    sampling = parsing.constrain(sampling, front.tokenizer)
    return Wanted(tuple(ids), sampling, rules, body.copies, body.priority), parsing


def _prompt(body: ChatBody, front: Front) -> str:
    messages = [template_message(message, position) for position, message in enumerate(body.messages)]
    variables = dict(body.chat_template_kwargs or {})
    if body.tools and body.tool_choice != "none":
        variables["tools"] = [tool.model_dump(exclude_unset=True) for tool in body.tools]
    return front.tokenizer.render_chat(messages, variables, continue_final=body.continue_final_message)


class _ChatReply:
    """Shows a generation as chat."""

    def __init__(self, body: ChatBody, front: Front, generation: Generation, parsing: ChatParsing) -> None:
        self._body = body
        self._parsers = [parsing.parser() for _ in generation.outputs]
        self._called = [False] * len(generation.outputs)
        self._named = parsing.named
        self._front = front
        self._frame = AnswerFrame(body, front, generation, prefix="chatcmpl", kind="chat.completion.chunk")

    async def whole(self) -> bytes:
        return await self._frame.whole(ChatAnswer, self._choice)

    def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        return self._frame.events(first, self._parts)

    def _events(self, chunk: Chunk) -> list[Event]:
        """What a chunk says, and its finish reason made "tool_calls" where it ends with calls of the model's choice."""
        parser = self._parsers[chunk.index]
        events = parser.push(chunk.text)
        if chunk.finish is not None:
            events += parser.finish()
        self._called[chunk.index] |= any(isinstance(event, CallStart) for event in events)
        calls = self._called[chunk.index] and not self._named
        if calls and chunk.finish is not None and chunk.finish.reason == "stop":
            chunk.finish = Finish("tool_calls", chunk.finish.matched)
        return events

    def _choice(self, chunk: Chunk) -> ChatChoice:
        message = assistant_message(self._events(chunk))
        return ChatChoice(
            index=chunk.index,
            message=message,
            logprobs=chat_logprobs(chunk, self._front.tokenizer) if self._body.logprobs else None,
            finish_reason=chunk.finish.reason if chunk.finish else None,
            matched_stop=chunk.finish.matched if chunk.finish else None,
        )

    def _parts(self, chunk: Chunk, begins: bool) -> list[bytes]:
        head = b'{"index":%d,"delta":' % chunk.index
        parts = []
        if begins:
            parts.append(head + b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}')
        logprobs = b"null"
        if self._body.logprobs and chunk.token_ids:
            logprobs = chat_logprobs(chunk, self._front.tokenizer).model_dump_json().encode()
        deltas = [delta_json(event) for event in self._events(chunk)]
        if not deltas and logprobs != b"null":
            deltas = [b'{"content":""}']  # tokens whose text is held back
        for delta in deltas:
            parts.append(head + delta + b',"logprobs":' + logprobs + b',"finish_reason":null}')
            logprobs = b"null"
        if chunk.finish is not None:
            parts.append(head + b'{},"logprobs":null' + reason_json(chunk))
        return parts
