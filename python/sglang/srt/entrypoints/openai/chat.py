"""/v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Generation, Wanted
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.openai.logprobs import chat_logprobs
from sglang.srt.entrypoints.openai.protocol import (
    AssistantMessage,
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatMessage,
    Usage,
)
from sglang.srt.entrypoints.openai.streaming import StreamWriter, reason_json
from sglang.srt.entrypoints.openai.usage import usage_of
from sglang.srt.entrypoints.openapi import body_schema
from sglang.srt.errors import RequestError
from sglang.srt.managers.tokenizer import fit


def chat_routes(front: Front) -> APIRouter:
    """The route over `front`."""
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        front.check_model(body.model)
        wanted = await chat_wanted(body, front)
        generation = front.generate([wanted], body.rid, stream=bool(body.stream))
        return await respond(request, generation, _ChatReply(body, front, generation), stream=bool(body.stream))

    return router


async def chat_wanted(body: ChatBody, front: Front) -> Wanted:
    """What a conversation asks for. Raises RequestError that names the offending field."""
    body.check()
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs: needs logprobs to be true", param="top_logprobs")
    context = front.context
    messages = [_message(message, position) for position, message in enumerate(body.messages)]
    text = front.tokenizer.render_chat(
        messages, body.chat_template_kwargs or {}, continue_final=body.continue_final_message
    )
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
    return Wanted(tuple(ids), sampling, body.rules(body.min_tokens), body.copies, body.priority)


def _message(message: ChatMessage, position: int) -> dict[str, object]:
    """What the chat template sees: content as one text, OpenAI's newer role names as those that templates know."""
    shown = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        texts = []
        for part in message.content:
            if part.type != "text" or part.text is None:
                raise RequestError(
                    f"messages.{position}: content of type {part.type!r} is not supported", param="messages"
                )
            texts.append(part.text)
        shown["content"] = "\n".join(texts)
    elif message.content is None:
        shown["content"] = ""
    if message.role == "developer":
        shown["role"] = "system"
    return shown


class _ChatReply:
    """Shows a generation as chat."""

    def __init__(self, body: ChatBody, front: Front, generation: Generation) -> None:
        self._body = body
        self._front = front
        self._generation = generation
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = front.config.served_model_name

    async def whole(self) -> bytes:
        chunks = await self._generation.collect()
        answer = ChatAnswer(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(chunk) for chunk in chunks],
            usage=self._usage(),
        )
        return answer.model_dump_json().encode()

    def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        writer = StreamWriter(
            answer_id=self._id,
            kind="chat.completion.chunk",
            created=self._created,
            model=self._model,
            options=self._body.stream_options,
            usage=self._usage,
        )
        return writer.events(self._generation, first, self._parts)

    def _choice(self, chunk: Chunk) -> ChatChoice:
        return ChatChoice(
            index=chunk.index,
            message=AssistantMessage(content=chunk.text),
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
        if chunk.text or logprobs != b"null":
            content = b'{"content":' + orjson.dumps(chunk.text) + b'},"logprobs":' + logprobs
            parts.append(head + content + b',"finish_reason":null}')
        if chunk.finish is not None:
            parts.append(head + b'{},"logprobs":null' + reason_json(chunk))
        return parts

    def _usage(self) -> Usage:
        return usage_of(
            self._generation.outputs, self._body.copies, report_cached=self._front.config.enable_cache_report
        )
