"""Log probabilities in OpenAI's two forms."""

from collections.abc import Sequence

from sglang.srt.core.step import TokenScore
from sglang.srt.entrypoints.generation import Chunk, TopLogprobs
from sglang.srt.entrypoints.native_generate import finite
from sglang.srt.entrypoints.openai.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from sglang.srt.managers.tokenizer import Tokenizer


def chat_logprobs(chunk: Chunk, tokenizer: Tokenizer) -> ChatLogprobs:
    """One entry a token of `chunk`, with the UTF-8 bytes of each token."""
    tops = chunk.top_logprobs or [()] * len(chunk.token_ids)
    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=tokenizer.token_text(token),
                logprob=finite(value),
                bytes=list(tokenizer.token_bytes(token)),
                top_logprobs=[
                    TopLogprob(
                        token=tokenizer.token_text(other), logprob=finite(p), bytes=list(tokenizer.token_bytes(other))
                    )
                    for other, p in top
                ],
            )
            for token, value, top in zip(chunk.token_ids, chunk.logprobs, tops, strict=False)
        ]
    )


def completion_logprobs(chunk: Chunk, tokenizer: Tokenizer, offset: int, *, top: bool) -> CompletionLogprobs:
    """Parallel lists over the tokens of `chunk`; its text begins at character `offset` of the output."""
    return _parallel(chunk.token_ids, [*chunk.logprobs], [*chunk.top_logprobs], tokenizer, offset, top=top)


def prompt_logprobs(
    prompt: Sequence[int], scores: Sequence[TokenScore], tokenizer: Tokenizer, *, top: bool
) -> CompletionLogprobs:
    """The same over an echoed prompt, whose first token nothing came before."""
    values = [None, *(score.logprob for score in scores)]
    return _parallel(prompt, values, [None, *(score.top for score in scores)], tokenizer, 0, top=top)


def joined(head: CompletionLogprobs, tail: CompletionLogprobs) -> CompletionLogprobs:
    """One after the other."""
    tops = None if head.top_logprobs is None else [*head.top_logprobs, *(tail.top_logprobs or ())]
    return CompletionLogprobs(
        text_offset=head.text_offset + tail.text_offset,
        token_logprobs=head.token_logprobs + tail.token_logprobs,
        tokens=head.tokens + tail.tokens,
        top_logprobs=tops,
    )


def _parallel(
    tokens: Sequence[int],
    values: Sequence[float | None],
    tops: Sequence[TopLogprobs | None],
    tokenizer: Tokenizer,
    offset: int,
    *,
    top: bool,
) -> CompletionLogprobs:
    texts = [tokenizer.token_text(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[None if value is None else finite(value) for value in values],
        tokens=texts,
        top_logprobs=[
            None if alternatives is None else {tokenizer.token_text(token): finite(p) for token, p in alternatives}
            for alternatives in tops
        ]
        if top
        else None,
    )
