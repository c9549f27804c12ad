"""Every setting of one engine, resolved and frozen. `cli.py` reads it, `resolve.py` completes and checks it."""

from typing import Literal

import msgspec

DisaggMode = Literal["null", "prefill", "decode"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resolved configuration of one engine. Field names are SGLang's flag names with underscores."""

    # Model
    model_path: str
    tokenizer_path: str = ""
    """Empty: model_path."""
    served_model_name: str = ""
    """Empty: model_path."""
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    kv_cache_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    json_model_override_args: str = "{}"
    context_length: int = 0
    """0: the model's own."""
    trust_remote_code: bool = False
    chat_template: str = ""
    is_embedding: bool = False
    device: Literal["cpu"] = "cpu"
    random_seed: int = 0

    # HTTP
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str = ""
    skip_server_warmup: bool = False
    stream_interval: int = 1
    enable_cache_report: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_requests: bool = False
    enable_metrics: bool = True
    watchdog_timeout: float = 300.0
    profile_folder: str = "/tmp/sglang-profile"

    # Scheduling and memory
    mem_fraction_static: float = 0.1
    """Share of the memory available after the weights that the KV pool takes, where max_total_tokens is not given."""
    max_running_requests: int = 64
    max_queued_requests: int = 1024
    max_total_tokens: int = 0
    """0: as many as mem_fraction_static allows."""
    chunked_prefill_size: int = 512
    max_prefill_tokens: int = 16384
    schedule_policy: Literal["fcfs", "lpm", "priority"] = "fcfs"
    schedule_conservativeness: float = 1.0
    page_size: int = 16
    enable_mixed_chunk: bool = False
    disable_overlap_schedule: bool = False
    disable_radix_cache: bool = False
    debug_invariants: bool = False
    decode_log_interval: int = 40
    quantization: Literal["none", "w8a16"] = "none"
    """w8a16: int8 weights with a scale for each output channel, made at load; activations stay bfloat16."""
    attention_backend: Literal["auto", "cpu", "torch_native"] = "auto"
    cuda_graph_max_bs: int = 0
    """0: max_running_requests. On a CPU a recorded step takes the place of a CUDA graph."""
    disable_cuda_graph: bool = False
    grammar_backend: Literal["xgrammar", "llguidance", "none"] = "xgrammar"
    grammar_compile_timeout: float = 10.0
    """Seconds of CPU time that compiling one grammar may take."""
    grammar_warmup: bool = True
    """Load the grammar library with the model, not with the first grammar."""
    tool_call_parser: Literal[
        "none", "hermes", "qwen", "qwen25", "qwen3_coder", "deepseekv3", "deepseekv31", "llama3"
    ] = "none"
    reasoning_parser: Literal["none", "deepseek-r1", "qwen3"] = "none"
    constrained_json_disable_any_whitespace: bool = False
    """JSON has one space after `:` and `,`; otherwise the model may lay it out as it likes, within bounds."""
    tp_size: int = 1
    ep_size: int = 1
    """Parts into which each layer's experts are divided; it divides tp_size."""
    dp_size: int = 1
    """Replicas of the engine behind the one HTTP server, each with tp_size ranks and a KV pool of its own."""
    enable_dp_attention: bool = False
    """The replicas divide the tp_size ranks and the experts among them, in place of each having its own."""
    dp_rank: int = 0
    """Which replica this configuration is of; no flag sets it."""
    threads: int = 1
    """Compute threads of the worker."""
    cpu_cores: tuple[int, ...] = ()
    """Cores that the engine's processes are pinned to; empty: all."""

    # Disaggregation
    disagg_mode: DisaggMode = "null"
    disagg_provider: Literal["auto", "tcp", "shm", "mapped"] = "auto"
    disagg_host: str = "127.0.0.1"
    """Address that a prefill engine's control plane and an engine's fabric endpoint listen on."""
    disagg_bootstrap_port: int = 8998
    """Control port of a prefill engine."""
    disagg_prefill: tuple[str, ...] = ()
    """host:port of each prefill engine's control plane; for decode engines."""
    disagg_local_prefill_tokens: int = 32
    """A decode engine computes a prompt suffix of at most this many tokens itself."""
    disagg_fallback: Literal["none", "local"] = "none"
    """What a decode engine does when no prefill engine is usable."""
    disagg_max_asks: int = 256
    """Asks that a prefill engine queues before it refuses more."""
    disagg_heartbeat_s: float = 1.0
    disagg_heartbeat_misses: int = 3
    disagg_ask_timeout_s: float = 2.0
    disagg_wait_s: float = 30.0
    """How long a request waits in a decode engine's queue while no prefill engine is usable, as when the only one is
    started anew. A prefill engine of a small model is back after 6 s; one with more weights needs a larger number.
    """
    disagg_keys: str = ""
    """Folder of CURVE keys for the control plane; required off loopback."""
    disagg_insecure: bool = False
    disagg_send: Literal["layerwise", "after-forward"] = "layerwise"
    """after-forward keeps every layer's KV until its forward has ended; only to measure what layer by layer gains."""
    otlp_endpoint: str = ""
    """URL of an OpenTelemetry collector (OTLP over HTTP) that gets a span for each part of each request."""
    trace_file: str = ""
    """Write a Chrome/Perfetto trace of every request here."""
