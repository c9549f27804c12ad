"""Log probabilities in OpenAI's two forms."""

from sglang.srt.entrypoints.generation import Chunk
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
    texts = [tokenizer.token_text(token) for token in chunk.token_ids]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[finite(value) for value in chunk.logprobs],
        tokens=texts,
        top_logprobs=[
            {tokenizer.token_text(token): finite(p) for token, p in alternatives} for alternatives in chunk.top_logprobs
        ]
        if top
        else None,
    )
