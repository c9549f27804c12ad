"""What a worker is built from, as data: it travels to the processes of further ranks."""

from typing import Literal

import msgspec

from sglang.srt.config.pooling import Pooling

Dtype = Literal["auto", "float32", "bfloat16"]


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker of one rank is built from; ServerConfig's fields of the same names."""

    dtype: Dtype = "auto"
    kv_cache_dtype: Dtype = "auto"
    """auto: the weights' dtype."""
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    quantization: Literal["none", "w8a16"] = "none"
    """w8a16: int8 weights of linear layers and experts, a scale for each output; activations stay bfloat16."""
    attention_backend: Literal["auto", "cpu", "torch_native"] = "auto"
    graph_rows: int | None = None
    """Rows up to which a decode step is recorded; 0: none is, None: max_running_requests."""
    page_size: int = 16
    max_total_tokens: int = 0
    mem_fraction_static: float = 0.3
    max_running_requests: int = 64
    max_context: int = 0
    """Tokens a row can hold; 0: the model's own limit."""
    threads: int = 1
    cores: tuple[int, ...] = ()
    random_seed: int = 0
    """Of dummy weights."""
    ep_size: int = 1
    """Parts into which the experts of a sparse model are divided; it divides the number of ranks."""
    pooling: Pooling = "none"
    """How hidden states become the answer of an engine that makes embeddings in place of tokens."""
