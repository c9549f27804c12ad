"""The flags of `launch_server`, a row each. A row's `ServerConfig` field gives its type, choices and default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """One row: the `ServerConfig` field, its help, and other spellings of `--field-name`."""

    field: str
    help: str
    aliases: tuple[str, ...] = ()
    hidden: bool = False
    """Left out of --help: for experiments."""

    @property
    def name(self) -> str:
        """The flag as it is typed."""
        return "--" + self.field.replace("_", "-")


_MODEL = (
    Flag("model_path", "Hugging Face model folder: config.json, *.safetensors, tokenizer.json.", ("--model",)),
    Flag("tokenizer_path", "Folder of the tokenizer, where it is not the model's."),
    Flag("served_model_name", "Name that clients use in `model` and see in /v1/models; default: --model-path."),
    Flag("load_format", "auto: safetensors. gguf: the folder's one *.gguf. dummy: random weights, for measuring."),
    Flag("json_model_override_args", "JSON object whose fields replace those of the model's config.json."),
    Flag("dtype", "Type of weights and activations; auto takes the checkpoint's."),
    Flag("kv_cache_dtype", "Type of the KV cache; auto takes --dtype. Prefill and decode engines must agree."),
    Flag("context_length", "Longest prompt plus answer, in tokens; 0 takes the model's own limit."),
    Flag("trust_remote_code", "Run Python code from the model folder (tokenizers only). Off: such a model is refused."),
    Flag("chat_template", "Jinja file (or the template itself) that replaces the tokenizer's own chat template."),
    Flag("is_embedding", "Serve embeddings (hidden states, pooled as the model declares) in place of generation."),
    Flag("tool_call_parser", "Format of the model's tool calls; needed to find and to force them."),
    Flag("reasoning_parser", "Format of the model's reasoning, which then comes in `reasoning_content`."),
    Flag("device", "Where the model runs."),
    Flag("random_seed", "Seeds the requests that bring no seed of their own."),
)

_HTTP = (
    Flag("host", "Address to listen on. 0.0.0.0 opens the server to the network: use --api-key with it."),
    Flag("port", "TCP port of the HTTP server."),
    Flag("api_key", "Clients must send it as `Authorization: Bearer KEY`, on all routes but health and metrics."),
    Flag("skip_server_warmup", "Report readiness without a first generated token."),
    Flag("stream_interval", "Send a stream event every so many tokens; larger saves HTTP work, smaller is smoother."),
    Flag("enable_cache_report", "Report reused prompt tokens in `usage.prompt_tokens_details.cached_tokens`."),
    Flag("log_level", "Least severe messages to log."),
    Flag("log_requests", "Log one line a request, and HTTP accesses."),
    Flag("enable_metrics", "Serve Prometheus metrics at /metrics; --no-enable-metrics turns them off."),
    Flag("profile_folder", "Where /start_profile leaves its traces, unless the request says."),
    Flag("watchdog_timeout", "Seconds without a turn of the scheduler's loop after which the engine gives up."),
)

_SCHEDULING = (
    Flag("mem_fraction_static", "Share of the memory left after the weights that the KV pool takes (0..1)."),
    Flag("max_running_requests", "Requests in a decode batch; more wait in the queue."),
    Flag("max_queued_requests", "Requests that may wait; beyond that clients get 503 with Retry-After."),
    Flag("max_total_tokens", "Size of the KV pool in tokens; 0 lets --mem-fraction-static decide."),
    Flag("chunked_prefill_size", "Prompt tokens computed in one step; smaller keeps decoding smooth. -1: no chunks."),
    Flag("max_prefill_tokens", "Prompt tokens of all requests together in one step."),
    Flag("schedule_policy", "Order of the queue: arrival, longest cached prefix first, or client priorities."),
    Flag("schedule_conservativeness", "Share of max_new_tokens that admission sets aside; above 1 admits fewer."),
    Flag("page_size", "Tokens in a KV page (1..128). Prefill and decode engines must agree."),
    Flag("enable_mixed_chunk", "Let prefill chunks and decoding share a step."),
    Flag("disable_overlap_schedule", "Plan a step only after the last one ended: slower, easier to debug."),
    Flag("disable_radix_cache", "Do not reuse the KV of equal prompt prefixes."),
    Flag("debug_invariants", "Check page accounting after every step: slow, for tests."),
    Flag("decode_log_interval", "Log a line of throughput every so many decode steps."),
    Flag(
        "quantization",
        "w8a16 keeps linear weights as int8, a scale for each output: half the memory for a decode step to read, but "
        "slower above six rows. Prefill and decode engines must agree.",
    ),
    Flag("cuda_graph_max_bs", "Rows up to which a decode step is played as recorded; 0: --max-running-requests."),
    Flag("disable_cuda_graph", "Compute decode steps call by call, not as recorded: slower, easier to profile."),
    Flag("attention_backend", "Implementation of attention; auto takes native kernels (cpu) where they exist."),
    Flag("grammar_backend", "Library that constrains outputs to schemas, regexes and grammars; none refuses them."),
    Flag("grammar_warmup", "Load the grammar library with the model; without it the first grammar takes seconds."),
    Flag("grammar_compile_timeout", "Seconds that compiling one grammar may take; beyond that the client gets 400."),
    Flag("constrained_json_disable_any_whitespace", "Constrained JSON has no whitespace but one space after : and ,"),
    Flag("tp_size", "Ranks that share every layer, a process each.", ("--tp", "--tensor-parallel-size")),
    Flag("ep_size", "Parts into which experts are divided; divides --tp-size.", ("--ep", "--expert-parallel-size")),
    Flag(
        "dp_size", "Replicas behind the HTTP server; requests go to the least busy.", ("--dp", "--data-parallel-size")
    ),
    Flag(
        "enable_dp_attention",
        "Replicas attend to requests of their own and share the experts; --dp-size and --ep-size equal --tp-size.",
    ),
    Flag("threads", "Compute threads of the worker."),
    Flag("cpu_cores", "Cores that this engine is pinned to, such as `0-3,6`."),
)

_DISAGG = (
    Flag(
        "disagg_mode",
        "null: one engine does everything. prefill: computes prompts for others. decode: takes client requests.",
        ("--disaggregation-mode",),
    ),
    Flag(
        "disagg_provider",
        "What moves the KV cache: a libfabric provider, auto the best one, or mapped memory on one machine.",
    ),
    Flag("disagg_host", "Address that the control plane and the fabric endpoint listen on."),
    Flag(
        "disagg_bootstrap_port",
        "Control port of a prefill engine; replica N (--dp-size) takes the Nth after it.",
        ("--disaggregation-bootstrap-port",),
    ),
    Flag("disagg_prefill", "HOST:PORT (or HOST:FIRST-LAST) of each prefill engine's control plane."),
    Flag(
        "disagg_local_prefill_tokens",
        "A decode engine computes a missing prompt part up to this length itself: no transfer, no prefill engine.",
    ),
    Flag("disagg_fallback", "With no usable prefill engine: answer 503 (none) or prefill on this engine (local)."),
    Flag("disagg_max_asks", "Asks that a prefill engine queues before it refuses more."),
    Flag("disagg_heartbeat_s", "Seconds between heartbeats of engines."),
    Flag("disagg_heartbeat_misses", "Heartbeats that may be missed before a peer counts as lost."),
    Flag("disagg_ask_timeout_s", "Seconds that a prefill engine has to acknowledge an ask."),
    Flag("disagg_wait_s", "Seconds that a request waits for a prefill engine while none is usable; then 503."),
    Flag("disagg_keys", "Folder of CURVE keys for the control plane; needed when --disagg-host is not loopback."),
    Flag("disagg_insecure", "Accept a control plane without keys off loopback."),
    Flag("disagg_send", "When a layer's KV leaves: see benchmark/layerwise.py.", hidden=True),
    Flag(
        "otlp_endpoint",
        "URL of an OpenTelemetry collector (OTLP over HTTP): each request becomes spans, on both of its engines.",
        ("--otlp-traces-endpoint",),
    ),
    Flag("trace_file", "Write a Chrome/Perfetto trace of every request to this file."),
)

GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("model", _MODEL),
    ("http server", _HTTP),
    ("scheduling and memory", _SCHEDULING),
    ("disaggregation", _DISAGG),
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A flag that SGLang's users know and this engine does not support, with the values that ask for nothing."""

    name: str
    reason: str = "not supported yet"
    neutral: tuple[str, ...] = ()
    switch: bool = False
    """Whether it takes no value."""


_FABRIC = "KV moves by libfabric here: choose its provider with --disagg-provider auto|tcp|shm|mapped"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("--disaggregation-transfer-backend", _FABRIC, neutral=("fabric", "libfabric")),
    Refusal("--disaggregation-ib-device", "network devices are found through libfabric; choose with --disagg-provider"),
    Refusal("--pp-size", neutral=("1",)),
    Refusal("--nnodes", neutral=("1",)),
    Refusal("--node-rank", neutral=("0",)),
    Refusal("--dist-init-addr"),
    Refusal("--speculative-algorithm"),
    Refusal("--speculative-draft-model-path"),
    Refusal("--speculative-num-steps"),
    Refusal("--speculative-eagle-topk"),
    Refusal("--speculative-num-draft-tokens"),
    Refusal("--lora-paths"),
    Refusal("--radix-eviction-policy", "only lru is supported", neutral=("lru",)),
    Refusal("--prefill-attention-backend", "use --attention-backend for both"),
    Refusal("--decode-attention-backend", "use --attention-backend for both"),
    Refusal("--skip-tokenizer-init", switch=True),
    Refusal("--enable-trace", "use --trace-file FILE", switch=True),
    Refusal("--enable-torch-compile", switch=True),
)
