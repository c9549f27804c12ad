"""Compiled grammars of one engine: compiled by a few threads, shared by everyone who uses the same one, bounded."""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sglang.srt.constrained.base import CompiledGrammar, GrammarBackend, GrammarError, GrammarMatcher
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.core.grammar import GrammarSpec, GrammarState
from sglang.srt.errors import EngineError, SglangError

LOG = logging.getLogger(__name__)

Open = Callable[[], GrammarBackend]
"""Imports a grammar library and reads the vocabulary: seconds, so it happens in a thread."""


@dataclass(slots=True)
class _Entry:
    state: GrammarState = GrammarState.PENDING
    compiled: CompiledGrammar | None = None
    reason: str = ""
    transient: bool = False
    """The reason concerns this engine now and not the grammar: another try may succeed."""
    users: int = 0

    @property
    def nbytes(self) -> int:
        return self.compiled.nbytes if self.compiled is not None else 0


class GrammarService:
    """core.grammar.Grammars for the scheduler, and the worker's source of matchers. Thread-safe.

    A grammar that has users is never dropped, so the worker finds it without compiling.
    """

    def __init__(self, open_backend: Open, limits: GrammarLimits) -> None:
        self._open = open_backend
        self._limits = limits
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._backend: GrammarBackend | None = None
        self._entries: OrderedDict[GrammarSpec, _Entry] = OrderedDict()
        self._ended: list[GrammarSpec] = []
        self._totals = {"num_grammars_compiled_total": 0.0, "num_grammars_rejected_total": 0.0}
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="grammar")
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False

    def warm(self) -> None:
        """Open the backend now, in a thread, so that the first grammar finds it. What fails is said at that grammar."""
        self._pool.submit(self._ready_backend)

    # --- the scheduler's side ---

    def acquire(self, spec: GrammarSpec) -> GrammarState:
        with self._lock:
            entry = self._entries.get(spec)
            if entry is None or (entry.transient and not entry.users):
                entry = self._entries[spec] = _Entry()
                self._begin(spec, entry)
            entry.users += 1
            self._entries.move_to_end(spec)
            return entry.state

    def release(self, spec: GrammarSpec) -> None:
        with self._lock:
            self._entries[spec].users -= 1
            self._trim()

    def reason(self, spec: GrammarSpec) -> str:
        with self._lock:
            return self._entries[spec].reason

    def poll(self) -> list[tuple[GrammarSpec, GrammarState]]:
        with self._lock:
            if not self._ended:
                return []
            os.eventfd_read(self._event)
            ended, self._ended = self._ended, []
            return [(spec, self._entries[spec].state) for spec in ended if spec in self._entries]

    def fileno(self) -> int:
        """Readable while poll() would return something."""
        return self._event

    def counters(self) -> dict[str, float]:
        with self._lock:
            return dict(self._totals)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._lock:
            backend = self._backend
        if backend is not None:
            backend.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        os.close(self._event)

    # --- the worker's side ---

    def matcher(self, spec: GrammarSpec) -> GrammarMatcher:
        """A matcher of a grammar that is READY and in use. Raises EngineError for any other."""
        with self._lock:
            entry = self._entries.get(spec)
        if entry is None or entry.compiled is None:
            raise EngineError(f"a row has a {spec.kind} grammar that was never compiled")
        return entry.compiled.matcher()

    # --- compiling ---

    def _begin(self, spec: GrammarSpec, entry: _Entry) -> None:
        size, limit = len(spec.text.encode()), self._limits.text_bytes
        if size > limit:
            entry.state = GrammarState.REJECTED
            entry.reason = f"{spec.kind}: {size} bytes pass the limit of {limit} bytes for a grammar"
        elif self._closed:
            entry.state, entry.reason, entry.transient = GrammarState.REJECTED, "the engine is stopping", True
        else:
            self._pool.submit(self._compile, spec, entry)

    def _compile(self, spec: GrammarSpec, entry: _Entry) -> None:
        """In a thread of the pool. Whatever goes wrong ends this grammar, not the thread."""
        reason, transient = "", False
        compiled: CompiledGrammar | None = None
        try:
            compiled = self._ready_backend().compile(spec)
        except GrammarError as error:
            reason, transient = str(error), error.status >= 500
        except SglangError as error:
            reason, transient = str(error), True
        except Exception:
            LOG.exception("compiling a %s grammar failed", spec.kind)
            reason = f"{spec.kind}: the grammar library failed on it; see the engine's log"
        with self._lock:
            entry.compiled, entry.reason, entry.transient = compiled, reason, transient
            entry.state = GrammarState.READY if compiled is not None else GrammarState.REJECTED
            self._totals[f"num_grammars_{'compiled' if compiled is not None else 'rejected'}_total"] += 1
            self._tell(spec)
            self._trim()

    def _tell(self, spec: GrammarSpec) -> None:
        if self._closed:
            return
        if not self._ended:
            os.eventfd_write(self._event, 1)
        self._ended.append(spec)

    def _ready_backend(self) -> GrammarBackend:
        with self._opening:
            if self._backend is None:
                backend = self._open()
                with self._lock:
                    self._backend = backend
                if self._closed:
                    backend.close()
            return self._backend

    def _trim(self) -> None:
        """Drop the grammars that were used longest ago and that nobody uses, until the rest is within bounds."""
        idle = [(spec, entry) for spec, entry in self._entries.items() if not entry.users]
        count, size = len(idle), sum(entry.nbytes for _, entry in idle)
        for spec, entry in idle:
            if count <= self._limits.cache_entries and size <= self._limits.cache_bytes:
                return
            if entry.state is GrammarState.PENDING:
                continue
            del self._entries[spec]
            count -= 1
            size -= entry.nbytes
