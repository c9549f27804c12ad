"""llama.cpp through the C interface of llama-cpp-python: llama_decode over a batch of sequences, greedy by numpy."""

from typing import Any

import llama_cpp as llama
import numpy as np
from protocol import clock_of, serve


class LlamaCpp:
    """See protocol.Contender. Prompts and batches have a context each: its KV is divided among the sequences."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._clock = clock_of(order)
        llama.llama_backend_init()
        self._threads, self._rows, self._longest = order["threads"], order["most_rows"], order["longest"]
        self._row_tokens = order["pool_tokens"] // order["most_rows"]
        self._model = llama.llama_model_load_from_file(order["gguf"].encode(), llama.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {order['gguf']}")
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._batch = llama.llama_batch_init(2048, 0, 1)
        self._context: Any = None
        self._shape = (0, 0)
        self._lengths: list[int] = []
        self._last: list[int] = []
        self.version = f"llama-cpp-python {llama.__version__}, {order['gguf'].rsplit('.', 2)[-2]} GGUF"

    def _use(self, sequences: int, tokens: int) -> None:
        """A context for so many sequences of so many tokens each, empty."""
        if self._shape == (sequences, tokens):
            llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
            return
        if self._context:
            llama.llama_free(self._context)
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * tokens, sequences
        params.n_batch = 2048
        params.n_threads = params.n_threads_batch = self._threads
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp makes no context")
        self._shape = (sequences, tokens)

    def prefill(self, prompt: list[int]) -> float:
        self._use(1, self._longest)
        began = self._clock()
        self._run([(0, i, token, i + 1 == len(prompt)) for i, token in enumerate(prompt)])
        return self._clock() - began

    def open(self, prompts: list[list[int]]) -> list[int]:
        self._use(self._rows, self._row_tokens)
        self._lengths, self._last = [len(prompt) for prompt in prompts], []
        for row, prompt in enumerate(prompts):
            self._last += self._run([(row, i, token, i + 1 == len(prompt)) for i, token in enumerate(prompt)])
        return list(self._last)

    def keep(self, rows: int) -> None:
        for row in range(rows, len(self._lengths)):
            llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), row, -1, -1)
        del self._lengths[rows:], self._last[rows:]

    def decode(self, steps: int) -> tuple[float, list[list[int]]]:
        began, tokens = self._clock(), []
        for _ in range(steps):
            entries = zip(self._lengths, self._last, strict=True)
            self._last = self._run([(row, length, token, True) for row, (length, token) in enumerate(entries)])
            self._lengths = [length + 1 for length in self._lengths]
            tokens.append(self._last)
        return self._clock() - began, [list(row) for row in zip(*tokens, strict=True)]

    def _run(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """(sequence, position, token, wanted) of each token -> the next token behind each wanted one."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (sequence, position, token, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if code := llama.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode: {code}")
        return [self._best(i) for i, entry in enumerate(entries) if entry[3]]

    def _best(self, index: int) -> int:
        logits = llama.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


if __name__ == "__main__":
    serve(LlamaCpp)
