"""Several scheduler processes behind one HTTP server (--dp-size): each request goes to the one with least to do."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.entrypoints.scheduler_client import OpenCall, PauseMode, SchedulerClient, Unavailable
from sglang.srt.messages.frontend import Generate, Ready, State, TokenOut

SHARES = frozenset({"token_usage", "cache_hit_rate"})
"""Gauges that are shares: replicas' values are averaged. All others are amounts and are added up."""
WORST = frozenset({"step_age_seconds"})
"""Gauges of which the largest tells."""


class Replicas:
    """The same for N schedulers that SchedulerClient is for one. A replica that dies takes the engine with it."""

    def __init__(self, addresses: Sequence[str], *, on_state: Callable[[State], None]) -> None:
        """Binds `addresses`. `on_state` sees the engine's whole state whenever one replica tells its own."""
        self._on_state = on_state
        self._states: dict[int, State] = {}
        self._clients = [
            SchedulerClient(address, on_state=lambda state, number=number: self._told(number, state))  # type: ignore[misc]
            for number, address in enumerate(addresses)
        ]
        self.ready: asyncio.Future[Ready] | None = None

    def start(self) -> None:
        """Begins to read, on the running event loop."""
        for client in self._clients:
            client.start()
        self.ready = asyncio.ensure_future(self._all_ready())
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())

    def close(self) -> None:
        """Gives up all connections; open calls fail."""
        for client in self._clients:
            client.close()

    @property
    def dead(self) -> str | None:
        """Why a scheduler is gone."""
        return next((client.dead for client in self._clients if client.dead is not None), None)

    @property
    def open_outputs(self) -> int:
        """Outputs that have not ended."""
        return sum(client.open_outputs for client in self._clients)

    def submit(self, requests: Sequence[Generate]) -> OpenCall:
        """Starts `requests` as one call, all on one replica, for they may share their prompt."""
        if self.dead is not None:
            raise Unavailable(self.dead)
        return min(self._clients, key=lambda client: client.outstanding_tokens).submit(requests)

    def abort_all(self) -> None:
        """Stops every request; each gets its last TokenOut."""
        for client in self._clients:
            client.abort_all()

    def shutdown(self, *, drain: bool) -> None:
        """Tells every scheduler to leave its loop."""
        for client in self._clients:
            client.shutdown(drain=drain)

    async def one_token(
        self, token_ids: tuple[int, ...], sampling: SamplingParams, rid: str, deadline_s: float
    ) -> TokenOut:
        """A short request on every replica; the first one's last TokenOut. Raises as SchedulerClient.one_token."""
        asked = (client.one_token(token_ids, sampling, rid, deadline_s) for client in self._clients)
        return (await asyncio.gather(*asked))[0]

    async def get_state(self) -> State:
        """A snapshot of all, made now. Raises EngineError when one scheduler's loop does not answer in time."""
        return merged(await asyncio.gather(*(client.get_state() for client in self._clients)))

    async def recent_state(self) -> State:
        """A snapshot of all. Raises EngineError when one scheduler's loop does not answer in time."""
        return merged(await asyncio.gather(*(client.recent_state() for client in self._clients)))

    async def flush_cache(self) -> int:
        """Drops cached pages that no request uses; returns how many."""
        return sum(await asyncio.gather(*(client.flush_cache() for client in self._clients)))

    async def pause(self, mode: PauseMode) -> None:
        """Lets the schedulers plan no more steps."""
        await asyncio.gather(*(client.pause(mode) for client in self._clients))

    async def resume(self) -> None:
        """Lets them go on."""
        await asyncio.gather(*(client.resume() for client in self._clients))

    async def profile(self, *, start: bool, folder: str = "") -> str:
        """Begins or ends a torch profile of every replica; returns their files, separated by spaces."""
        return " ".join(await asyncio.gather(*(client.profile(start=start, folder=folder) for client in self._clients)))

    def died(self, reason: str) -> None:
        """A scheduler is gone: every open call and question fails. Idempotent."""
        for client in self._clients:
            client.died(reason)

    async def _all_ready(self) -> Ready:
        """What holds for every replica: a request lives in one of them."""
        waiting = [client.ready for client in self._clients if client.ready is not None]
        said = await asyncio.gather(*waiting)
        return msgspec.structs.replace(said[0], max_total_tokens=min(ready.max_total_tokens for ready in said))

    def _told(self, number: int, state: State) -> None:
        self._states[number] = state
        whole = merged([self._states[key] for key in sorted(self._states)])
        self._on_state(msgspec.structs.replace(whole, samples=state.samples))


EngineClient = SchedulerClient | Replicas


def merged(states: Sequence[State]) -> State:
    """One state of several replicas'. What they say differently of themselves is told apart by `dp N`."""
    info: dict[str, str] = {}
    for number, state in enumerate(states):
        for key, value in state.info.items():
            alike = all(other.info.get(key) == value for other in states)
            info[key if alike else f"dp {number} {key}"] = value
    return State(
        call=states[0].call,
        gauges=_added([state.gauges for state in states]),
        counters=_added([state.counters for state in states]),
        info=info,
    )


def _added(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    result: dict[str, float] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        values = [part[key] for part in parts if key in part]
        total = max(values) if key in WORST else sum(values)
        result[key] = total / len(values) if key in SHARES else total
    return result
