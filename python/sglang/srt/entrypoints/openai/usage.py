"""Token counts of a request."""

from collections.abc import Sequence

from sglang.srt.entrypoints.generation import Output
from sglang.srt.entrypoints.openai.protocol import PromptTokensDetails, Usage


def usage_of(outputs: Sequence[Output], copies: int, *, report_cached: bool) -> Usage:
    """Counts over `outputs`, of which `copies` in a row share a prompt: a prompt counts once, however many answers."""
    prompts = outputs[::copies]
    prompt = sum(output.prompt_tokens for output in prompts)
    completion = sum(output.completion_tokens for output in outputs)
    cached = sum(min(output.cached_tokens, output.prompt_tokens) for output in prompts)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached) if report_cached else None,
    )
