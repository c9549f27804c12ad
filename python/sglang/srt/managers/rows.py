"""Row slots of the worker: a request that holds pages has one."""

from sglang.srt.core.step import RowOpen
from sglang.srt.managers.request import Request


class Rows:
    """Gives row slots to requests and remembers which ones the next plan has to open or close."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._closing: list[int] = []

    @property
    def free(self) -> int:
        """Slots that a request could take now."""
        return len(self._free)

    def take(self, request: Request) -> None:
        """Give a slot; the plan with the request's first row opens it."""
        request.row, request.row_open, request.mapped = self._free.pop(), False, 0

    def give(self, request: Request) -> None:
        """Take the slot back. Steps run in order, so a row may be reopened by the very plan that closes it."""
        if request.row_open:
            self._closing.append(request.row)
        self._free.append(request.row)
        request.row, request.row_open = -1, False

    def opening(self, request: Request) -> RowOpen | None:
        """What the next plan must say to open the request's row; None where it is open."""
        if request.row_open:
            return None
        request.row_open = True
        replayed = request.sampling.penalised or request.sampling.grammar is not None
        repeats = request.sampling.repetition_penalty != 1.0
        return RowOpen(
            slot=request.row,
            sampling=request.sampling,
            seed=request.seed,
            prompt=tuple(request.tokens[: request.prompt_length]) if repeats else (),
            outputs=tuple(request.tokens[request.prompt_length :]) if replayed else (),
            generated=request.generated,
        )

    def take_closed(self) -> tuple[int, ...]:
        """Rows that the next plan closes."""
        closed = tuple(self._closing)
        self._closing.clear()
        return closed
