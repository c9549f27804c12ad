"""What a client may ask of sampling, with SGLang's names and defaults."""

import msgspec

from sglang.srt.core.grammar import GrammarSpec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling parameters of one request, as the scheduler and the workers see them.

    Stop strings are not here: they concern text, and only the detokenizer has text. `seed` None lets the scheduler
    draw one; whatever the seed, token i of a request depends on (seed, position) alone, never on its batch.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """Keep the k most likely tokens; -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: GrammarSpec | None = None
    """What the output must match."""
    grammar_after: tuple[int, ...] = ()
    """The grammar begins behind the first occurrence of these tokens (the end of a reasoning); empty: at once."""
    grammar_opening: int = -1
    """Where that is no must: the token that begins a reasoning. Any other first token begins the grammar; -1: none."""
    stop_token_ids: tuple[int, ...] = ()
    """Ends the request; already holds the model's own end tokens unless the client said ignore_eos."""
    seed: int | None = None
    logprobs: bool = False
    """Return the log probability of each output token under the model's own distribution (temperature 1, no filter)."""
    top_logprobs: int = 0
    """How many alternatives to return with each token."""
    logprob_ids: tuple[int, ...] = ()
    """Tokens whose log probability is returned at every position, whatever was sampled."""
    scored_from: int = -1
    """Return log probabilities of the prompt's tokens after this position; -1: of none."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken; temperature 0 means that, and so does top_k 1."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def reports(self) -> bool:
        """Whether anything but tokens is returned."""
        return self.logprobs or self.scored_from >= 0

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change later logits."""
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1.0
