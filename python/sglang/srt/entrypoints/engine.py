"""`sglang.Engine`: the engine without HTTP, for scripts. Scheduler processes, tokenizer and answers are /generate's."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack

import orjson
import uvloop
from pydantic import ValidationError

from sglang.srt.config.overrides import model_overrides
from sglang.srt.entrypoints.front import Front, Phase
from sglang.srt.entrypoints.http_tools import DONE
from sglang.srt.entrypoints.native_generate import NativeReply, wanted_of
from sglang.srt.entrypoints.native_protocol import GenerateBody
from sglang.srt.entrypoints.offline_engines import OfflineEngines, offline_configs
from sglang.srt.entrypoints.openai.embeddings import embed, prompts_of
from sglang.srt.entrypoints.openai.errors import from_validation
from sglang.srt.errors import EngineError
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.observability.logs import setup_logging
from sglang.srt.observability.metrics import Metrics

Answer = dict[str, Any]
Result = TypeVar("Result")

STOP_PATIENCE_S = 5.0


class Asked(TypedDict, total=False):
    """What `generate` and `async_generate` take besides the prompt: fields of /generate."""

    return_logprob: bool
    logprob_start_len: int | None
    """First prompt token whose log probability is wanted; of none without it."""
    top_logprobs_num: int
    token_ids_logprob: Sequence[int] | None
    rid: str | None
    stream: bool
    """An iterator of the answer so far, instead of the answer."""


Prompt = str | Sequence[str] | None
Params = Answer | Sequence[Answer] | None
Ids = Sequence[int] | Sequence[Sequence[int]] | None


class Engine:
    """An engine in a child process, or a prefill and a decode engine in two. Thread-safe; use it as a context manager,
    or call `shutdown`.
    """

    def __init__(self, *, disagg: bool | Mapping[str, object] = False, **settings: object) -> None:
        """`settings`: the flags of launch_server with underscores, as `model_path="..."`. With `disagg` prompts are
        computed by a second engine; a mapping holds the settings in which that one differs.

        Raises ConfigError for a wrong setting, EngineError where an engine does not start (its reason is on stderr).
        """
        configs = offline_configs(settings, disagg)
        self.config = configs[0]
        setup_logging("engine", self.config.log_level)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-front", daemon=True)
        self._engines = OfflineEngines(configs)
        self._closed = False
        try:
            tokenizer = Tokenizer.load(
                self.config.model_path,
                self.config.tokenizer_path,
                chat_template=self.config.chat_template,
                trust_remote_code=self.config.trust_remote_code,
                overrides=model_overrides(self.config),
            )
            self._thread.start()
            self._run(self._start(tokenizer))
        except BaseException:
            self.shutdown()
            raise

    def generate(
        self, prompt: Prompt = None, sampling_params: Params = None, input_ids: Ids = None, **asked: Unpack[Asked]
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """What /generate answers: an object for one prompt, a list for several, an iterator with `stream`.

        Raises RequestError for a request that cannot be served.
        """
        body = _body(prompt, sampling_params, input_ids, asked)
        if not body.stream:
            return self._run(self._whole(body))
        return self._streamed(body)

    async def async_generate(
        self, prompt: Prompt = None, sampling_params: Params = None, input_ids: Ids = None, **asked: Unpack[Asked]
    ) -> Answer | list[Answer] | AsyncIterator[Answer]:
        """`generate` for coroutines of any event loop; with `stream`, what is awaited is an async iterator."""
        body = _body(prompt, sampling_params, input_ids, asked)
        if not body.stream:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._whole(body), self._loop))
        return self._async_streamed(body)

    def encode(self, prompt: str | Sequence[str]) -> Answer | list[Answer]:
        """Embeddings, where the engine was made with `is_embedding=True`."""

        async def run() -> list[Answer]:
            outputs = await embed(self._front, await prompts_of(self._front, prompt, "prompt"), None)
            return [{"embedding": o.embedding, "meta_info": {"prompt_tokens": o.prompt_tokens}} for o in outputs]

        answers = self._run(run())
        return answers[0] if isinstance(prompt, str) else answers

    def flush_cache(self) -> int:
        """Drops cached pages that no request uses; returns how many."""
        return self._run(self._engines.flush_cache())

    def get_server_info(self) -> Answer:
        """The scheduler's gauges and counters; with `disagg`, those of the prefill engine under "prefill"."""
        shown = {
            mode: {**state.gauges, **state.counters, **state.info} for mode, state in self._run(self._engines.states())
        }
        others = {mode: state for mode, state in shown.items() if mode != self.config.disagg_mode}
        return {**shown[self.config.disagg_mode], **others}

    def start_profile(self, output_dir: str | None = None) -> None:
        """Begins a torch profile of the compute threads."""
        self._run(self._engines.profile(start=True, folder=output_dir or self.config.profile_folder))

    def stop_profile(self) -> str:
        """Ends it; returns the trace's path (two with `disagg`, separated by a space)."""
        return self._run(self._engines.profile(start=False))

    def shutdown(self) -> None:
        """Ends the engine at once; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            self._run(self._engines.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._engines.stop(STOP_PATIENCE_S)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, tokenizer: Tokenizer) -> None:
        ready = await self._engines.start()
        metrics = Metrics(self.config.served_model_name, "offline")
        self._front = Front(self.config, tokenizer, self._engines.client, metrics, phase=Phase.READY, ready=ready)

    async def _whole(self, body: GenerateBody) -> Answer | list[Answer]:
        generation = self._front.generate(await wanted_of(body, self._front), body.rid)
        try:
            answer: Answer | list[Answer] = orjson.loads(
                await NativeReply(body, self._front, generation, body.rid or "offline").whole()
            )
        finally:
            generation.close()
        return answer

    async def _events(self, body: GenerateBody) -> AsyncIterator[Answer]:
        generation = self._front.generate(await wanted_of(body, self._front), body.rid, stream=True)
        try:
            first = await generation.take()
            async for event in NativeReply(body, self._front, generation, body.rid or "offline").events(first):
                for part in event.split(b"\n\n"):
                    if part and part + b"\n\n" != DONE:
                        yield orjson.loads(part.removeprefix(b"data: "))
        finally:
            generation.close()

    def _streamed(self, body: GenerateBody) -> Iterator[Answer]:
        found: queue.SimpleQueue[Answer | BaseException | None] = queue.SimpleQueue()
        pump = asyncio.run_coroutine_threadsafe(self._pump(body, found.put), self._loop)
        try:
            while (item := found.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            pump.cancel()

    async def _async_streamed(self, body: GenerateBody) -> AsyncIterator[Answer]:
        found: asyncio.Queue[Answer | BaseException | None] = asyncio.Queue()
        mine = asyncio.get_running_loop()
        pump = asyncio.run_coroutine_threadsafe(
            self._pump(body, lambda item: mine.call_soon_threadsafe(found.put_nowait, item)), self._loop
        )
        try:
            while (item := await found.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            pump.cancel()

    async def _pump(self, body: GenerateBody, put: Callable[[Answer | BaseException | None], object]) -> None:
        """Hands events over to another thread or loop; whatever ends them belongs to whoever reads."""
        try:
            async for answer in self._events(body):
                put(answer)
        except Exception as error:  # noqa: BLE001
            put(error)
        else:
            put(None)


def _body(prompt: Prompt, sampling_params: Params, input_ids: Ids, asked: Asked) -> GenerateBody:
    unknown = sorted(set(asked) - set(Asked.__annotations__))
    if unknown:
        raise TypeError(f"generate() has no argument {unknown[0]!r}; there are {', '.join(Asked.__annotations__)}")
    body = {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids, **asked}
    try:
        return GenerateBody.model_validate_json(orjson.dumps(body))
    except ValidationError as error:
        raise from_validation(error) from error
    except TypeError as error:
        raise EngineError(f"arguments of generate must be plain values: {error}") from error
