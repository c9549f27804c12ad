"""When a request has generated enough."""

from collections.abc import Sequence

from sglang.srt.core.step import SampledToken
from sglang.srt.managers.request import Request


def accept(request: Request, sampled: Sequence[SampledToken]) -> int:
    """Append what one step sampled, oldest first, and set the finish reason where a token is the last one.

    A stop token counts as an output token, ends the request with "stop", and wins over the length limit. What follows
    the last token is dropped. Returns how many tokens were taken.
    """
    for taken, one in enumerate(sampled, 1):
        request.tokens.append(one.token)
        request.unsent.append(one)
        generated, sampling = request.generated, request.sampling
        if one.token in sampling.stop_token_ids and generated > sampling.min_new_tokens:
            request.finish_reason, request.matched_stop = "stop", one.token
            return taken
        if generated >= request.limit:
            request.finish_reason = "length"
            return taken
    return len(sampled)
