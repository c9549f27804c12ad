"""When a request has generated enough."""

from sglang.srt.core.step import SampledToken
from sglang.srt.managers.request import Request


def accept(request: Request, sampled: SampledToken) -> None:
    """Append a token and set the finish reason where it is the last one.

    A stop token counts as an output token, ends the request with "stop", and wins over the length limit.
    """
    request.tokens.append(sampled.token)
    request.unsent.append(sampled)
    generated, sampling = request.generated, request.sampling
    if sampled.token in sampling.stop_token_ids and generated > sampling.min_new_tokens:
        request.finish_reason, request.matched_stop = "stop", sampled.token
    elif generated >= request.limit:
        request.finish_reason = "length"
