"""transformers, eager: a forward over the prompt, then one token a row and step against a DynamicCache."""

from typing import Any

import torch
import transformers
from protocol import clock_of, serve
from transformers import AutoModelForCausalLM, DynamicCache


class HuggingFace:
    """See protocol.Contender."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._clock = clock_of(order)
        torch.set_num_threads(order["threads"])
        self._model = AutoModelForCausalLM.from_pretrained(
            order["model"], dtype=getattr(torch, order["dtype"]), attn_implementation="sdpa"
        ).eval()
        self._cache = DynamicCache()
        self._last = torch.zeros(0, dtype=torch.long)
        self.version = (
            f"transformers {transformers.__version__}, torch {torch.__version__}, {order['dtype']}, sdpa, eager"
        )

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> float:
        began = self._clock()
        self._run(torch.tensor([prompt]), DynamicCache())
        return self._clock() - began

    @torch.inference_mode()
    def open(self, prompts: list[list[int]]) -> list[int]:
        self._cache = DynamicCache()
        self._last = self._run(torch.tensor(prompts), self._cache)
        return self._last.tolist()

    @torch.inference_mode()
    def keep(self, rows: int) -> None:
        self._cache.batch_select_indices(torch.arange(rows))
        self._last = self._last[:rows]

    @torch.inference_mode()
    def decode(self, steps: int) -> tuple[float, list[list[int]]]:
        began, tokens = self._clock(), []
        for _ in range(steps):
            self._last = self._run(self._last[:, None], self._cache)
            tokens.append(self._last.tolist())
        return self._clock() - began, [list(row) for row in zip(*tokens, strict=True)]

    def _run(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """`[rows, tokens]` -> the next token of each row. Logits of the last position only, as generate() does."""
        output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1].argmax(-1)


if __name__ == "__main__":
    serve(HuggingFace)
