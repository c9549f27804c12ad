"""Collects what one turn of the loop has to tell the frontend."""

from sglang.srt.core.step import TokenScore
from sglang.srt.managers.request import Request
from sglang.srt.messages.frontend import Outputs, Refused, ToFrontend, TokenOut


class Outbox:
    """Tokens of many requests leave in one message a turn."""

    def __init__(self, stream_interval: int) -> None:
        self._interval = stream_interval
        self._dirty: dict[Request, None] = {}
        self._refused: list[Refused] = []

    def touch(self, request: Request) -> None:
        """The request has new tokens or has ended."""
        self._dirty[request] = None

    def refuse(self, refused: Refused) -> None:
        """Queue a refusal."""
        self._refused.append(refused)

    def take(self) -> list[ToFrontend]:
        """Everything due; tokens short of the stream interval stay until more come, the first token never waits."""
        messages: list[ToFrontend] = list(self._refused)
        self._refused.clear()
        if self._interval == 1:
            due, self._dirty = list(self._dirty), {}
        else:
            due = [request for request in self._dirty if self._due(request)]
            for request in due:
                del self._dirty[request]
        if due:
            messages.append(Outputs(items=tuple([_token_out(request) for request in due])))
        return messages

    def _due(self, request: Request) -> bool:
        first = len(request.unsent) == request.generated
        return request.ended or first or len(request.unsent) >= self._interval


def _token_out(request: Request) -> TokenOut:
    fresh, request.unsent = request.unsent, []
    tokens = (fresh[0].token,) if len(fresh) == 1 else tuple([sampled.token for sampled in fresh])
    cached = max(0, request.cached_tokens)
    if not request.sampling.reports:
        return TokenOut(
            rid=request.rid,
            token_ids=tokens,
            finish_reason=request.finish_reason,
            matched_stop=request.matched_stop,
            cached_tokens=cached,
            embedding=fresh[0].embedding if fresh else (),
        )
    return TokenOut(
        rid=request.rid,
        token_ids=tokens,
        logprobs=tuple(sampled.logprob for sampled in fresh if sampled.logprob is not None),
        top_logprobs=tuple(sampled.top for sampled in fresh) if request.sampling.top_logprobs else (),
        id_logprobs=tuple(sampled.ids for sampled in fresh) if request.sampling.logprob_ids else (),
        prompt_scores=_scores(request),
        finish_reason=request.finish_reason,
        matched_stop=request.matched_stop,
        cached_tokens=cached,
    )


def _scores(request: Request) -> tuple[TokenScore, ...]:
    if request.scores_sent:
        return ()
    request.scores_sent = True
    return tuple(request.scores)
