"""When a request has generated enough."""

from sglang.srt.core.step import SampledToken
from sglang.srt.managers.request import Request


def accept(request: Request, sampled: SampledToken) -> None:
    """Append a token and set the finish reason where it is the last one.

    A stop token counts as an output token, ends the request with "stop", and wins over the length limit.
    """
    request.tokens.append(sampled.token)
    request.unsent.append(sampled)
    stops = request.generated > request.sampling.min_new_tokens and sampled.token in request.sampling.stop_token_ids
    if stops:
        request.finish_reason, request.matched_stop = "stop", sampled.token
    elif request.generated >= request.limit:
        request.finish_reason = "length"
