"""Every metric, in one table: instruments, docs/metrics.md, dashboards and alert rules are made from it.

Names have one prefix and the base units seconds, bytes, tokens, ratios (0 to 1). Label values are served models, route
templates, statuses and words of this server: nothing that a client can invent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_inference.telemetry.metrics import buckets

PREFIX = "llm_inference_"

Kind = Literal["counter", "gauge", "histogram"]
#: Who measures it: the gateway at each request, an engine's statistics (or the engine's own /metrics), the kernel's
#: files of processes and of the cgroup, the driver of NVIDIA GPUs, or a comparison with the best tier's answers.
Origin = Literal["gateway", "engine", "process", "cgroup", "gpu", "golden"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` is without the prefix; a counter's ends in `_total`. `vllm`: what vLLM calls the same thing."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    origin: Origin = "gateway"
    buckets: tuple[float, ...] = ()
    vllm: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


_MODEL = ("model",)
_PROCESS = ("process",)
_GPU = ("gpu", "name")

METRICS: tuple[Metric, ...] = (
    # --- requests
    Metric(
        "requests_total",
        "counter",
        "Finished HTTP requests; status 499: the client left first.",
        ("model", "route", "status"),
    ),
    Metric(
        "request_duration_seconds",
        "histogram",
        "From the request's first byte to its last byte out.",
        ("model", "route"),
        buckets=buckets.DURATION_S,
        vllm=("vllm:e2e_request_latency_seconds",),
    ),
    Metric(
        "time_to_first_token_seconds",
        "histogram",
        "From the request's first byte to its first token.",
        _MODEL,
        buckets=buckets.TTFT_S,
        vllm=("vllm:time_to_first_token_seconds",),
    ),
    Metric(
        "inter_token_latency_seconds",
        "histogram",
        "Between two consecutive deltas of a request.",
        _MODEL,
        buckets=buckets.TOKEN_GAP_S,
        vllm=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    ),
    Metric(
        "time_per_output_token_seconds",
        "histogram",
        "Mean time between the tokens of a request, the first left out.",
        _MODEL,
        buckets=buckets.TOKEN_GAP_S,
        vllm=("vllm:request_time_per_output_token_seconds",),
    ),
    Metric(
        "request_queue_seconds",
        "histogram",
        "Accepted by the engine until first scheduled.",
        _MODEL,
        buckets=buckets.TTFT_S,
        vllm=("vllm:request_queue_time_seconds",),
    ),
    Metric(
        "request_prefill_seconds",
        "histogram",
        "First scheduled until the first token.",
        _MODEL,
        buckets=buckets.TTFT_S,
        vllm=("vllm:request_prefill_time_seconds",),
    ),
    Metric(
        "request_decode_seconds",
        "histogram",
        "First token until the last.",
        _MODEL,
        buckets=buckets.DURATION_S,
        vllm=("vllm:request_decode_time_seconds",),
    ),
    Metric(
        "request_inference_seconds",
        "histogram",
        "First scheduled until the last token.",
        _MODEL,
        buckets=buckets.DURATION_S,
        vllm=("vllm:request_inference_time_seconds",),
    ),
    Metric(
        "request_prompt_tokens",
        "histogram",
        "Tokens of a request's prompts.",
        _MODEL,
        buckets=buckets.LENGTH_TOKENS,
        vllm=("vllm:request_prompt_tokens",),
    ),
    Metric(
        "request_completion_tokens",
        "histogram",
        "Tokens generated for a request, all choices together.",
        _MODEL,
        buckets=buckets.LENGTH_TOKENS,
        vllm=("vllm:request_generation_tokens",),
    ),
    Metric(
        "prompt_tokens_total",
        "counter",
        "Prompt tokens, cached ones included.",
        _MODEL,
        vllm=("vllm:prompt_tokens_total",),
    ),
    Metric("cached_tokens_total", "counter", "Prompt tokens found in the prefix cache.", _MODEL),
    Metric("completion_tokens_total", "counter", "Generated tokens.", _MODEL, vllm=("vllm:generation_tokens_total",)),
    Metric(
        "finished_choices_total",
        "counter",
        "Answers by how they ended.",
        ("model", "finish_reason"),
        vllm=("vllm:request_success_total",),
    ),
    Metric("requests_aborted_total", "counter", "Requests whose client left before the end.", _MODEL),
    Metric("tier_requests_total", "counter", "Requests of a model with tiers.", ("model", "tier", "status")),
    Metric("replica_requests_total", "counter", "Requests of a model with replicas.", ("model", "replica", "status")),
    Metric(
        "refusals_total",
        "counter",
        "Requests refused for who sent them: an error code or the name of a limit.",
        ("reason",),
    ),
    Metric(
        "rejections_total",
        "counter",
        "Requests refused for want of room, or too late: the error code of a 429, 503 or 504.",
        ("reason",),
    ),
    Metric(
        "ledger_requests_total",
        "counter",
        "Requests in the ledger: written, summed (the queue was full) or lost.",
        ("outcome",),
    ),
    Metric("requests_in_flight", "gauge", "Requests that hold a permit."),
    Metric("admission_queue_depth", "gauge", "Requests that wait at the gateway for a permit; absent without a queue."),
    Metric("gateway_workers", "gauge", "Gateway processes that these figures are the sum of."),
    Metric("build_info", "gauge", "Always 1; the label says the version.", ("version",)),
    Metric("canary_runs_total", "counter", "One-token requests of the canary.", ("model", "outcome")),
    Metric("canary_seconds", "histogram", "How long the canary's token took.", _MODEL, buckets=buckets.DURATION_S),
    # --- engines
    Metric("engine_ready", "gauge", "1: a request would be answered now.", _MODEL, "engine"),
    Metric("engine_progressing", "gauge", "0: work is queued and no step completes.", _MODEL, "engine"),
    Metric(
        "num_requests_running",
        "gauge",
        "Sequences in the running batch.",
        _MODEL,
        "engine",
        vllm=("vllm:num_requests_running",),
    ),
    Metric(
        "num_requests_waiting",
        "gauge",
        "Requests that wait for a seat or for KV blocks.",
        _MODEL,
        "engine",
        vllm=("vllm:num_requests_waiting",),
    ),
    Metric(
        "kv_cache_usage_ratio",
        "gauge",
        "Share of the KV blocks in use.",
        _MODEL,
        "engine",
        vllm=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    Metric("kv_cache_blocks", "gauge", "KV blocks in all.", _MODEL, "engine"),
    Metric("kv_cache_block_tokens", "gauge", "Tokens that fit into a KV block.", _MODEL, "engine"),
    Metric("kv_cache_free_blocks", "gauge", "KV blocks that nothing references.", _MODEL, "engine"),
    Metric("kv_cache_evictions_total", "counter", "Cached KV blocks given to other content.", _MODEL, "engine"),
    Metric(
        "prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        _MODEL,
        "engine",
        vllm=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    ),
    Metric(
        "prefix_cache_hits_total",
        "counter",
        "Prompt tokens found in the prefix cache.",
        _MODEL,
        "engine",
        vllm=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    ),
    Metric(
        "preemptions_total",
        "counter",
        "Running sequences sent back to wait for want of KV blocks.",
        _MODEL,
        "engine",
        vllm=("vllm:num_preemptions_total",),
    ),
    Metric(
        "speculation_drafted_tokens_total",
        "counter",
        "Tokens computed on trial.",
        _MODEL,
        "engine",
        vllm=("vllm:spec_decode_num_draft_tokens_total",),
    ),
    Metric(
        "speculation_accepted_tokens_total",
        "counter",
        "Tokens computed on trial that stood.",
        _MODEL,
        "engine",
        vllm=("vllm:spec_decode_num_accepted_tokens_total",),
    ),
    Metric("engine_steps_total", "counter", "Forward passes.", _MODEL, "engine"),
    Metric("engine_generated_tokens_total", "counter", "Tokens that the engine has generated.", _MODEL, "engine"),
    Metric("engine_restarts_total", "counter", "Restarts of the engine after a crash.", _MODEL, "engine"),
    Metric(
        "step_tokens",
        "histogram",
        "Tokens computed in one forward pass.",
        _MODEL,
        "engine",
        buckets=buckets.STEP_TOKENS,
        vllm=("vllm:iteration_tokens_total",),
    ),
    Metric(
        "step_sequences",
        "histogram",
        "Sequences in one forward pass: the batch size.",
        _MODEL,
        "engine",
        buckets=buckets.STEP_SEQUENCES,
    ),
    # --- routing
    Metric(
        "golden_agreement_ratio",
        "gauge",
        "Mean agreement of a tier with the best one, over the latest comparisons.",
        ("model", "tier"),
        "golden",
    ),
    Metric(
        "replica_available",
        "gauge",
        "Of models with several replicas: 1 where one takes requests, 0 where it is left alone after failures.",
        ("model", "replica"),
    ),
    Metric(
        "replica_loaded",
        "gauge",
        "Of models that are loaded when they are asked for, or with several replicas: 1 where one is loaded.",
        ("model", "replica"),
    ),
    Metric(
        "shadow_copies_total",
        "counter",
        "Requests copied to a shadow version: copied, dropped because it was full or ill, failed there.",
        ("model", "version", "outcome"),
    ),
    Metric(
        "tier_comparisons_total",
        "counter",
        "Answers replayed on another tier to compare them: replayed, or dropped because no replica was idle in time.",
        ("model", "outcome"),
    ),
    # --- the machine
    Metric("process_cpu_seconds_total", "counter", "CPU time of a process and its threads.", _PROCESS, "process"),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory.", _PROCESS, "process"),
    Metric("process_threads", "gauge", "Threads.", _PROCESS, "process"),
    Metric("process_open_fds", "gauge", "Open files and sockets.", _PROCESS, "process"),
    Metric("process_start_time_seconds", "gauge", "Start, in Unix time.", _PROCESS, "process"),
    Metric("cgroup_cpu_seconds_total", "counter", "CPU time of the cgroup (the container).", (), "cgroup"),
    Metric("cgroup_cpu_limit_cores", "gauge", "CPUs that the cgroup may use; absent without a quota.", (), "cgroup"),
    Metric("cgroup_cpu_periods_total", "counter", "Periods in which the CPU quota was checked.", (), "cgroup"),
    Metric("cgroup_cpu_throttled_periods_total", "counter", "Periods in which the quota ran out.", (), "cgroup"),
    Metric("cgroup_cpu_throttled_seconds_total", "counter", "Time spent waiting for the next period.", (), "cgroup"),
    Metric("cgroup_memory_bytes", "gauge", "Memory of the cgroup without page cache that can go.", (), "cgroup"),
    Metric("cgroup_memory_limit_bytes", "gauge", "Its limit; absent without one.", (), "cgroup"),
    Metric("cgroup_oom_kills_total", "counter", "Processes of the cgroup killed for want of memory.", (), "cgroup"),
    Metric("gpu_utilization_ratio", "gauge", "Share of the time in which a kernel ran.", _GPU, "gpu"),
    Metric("gpu_memory_used_bytes", "gauge", "Device memory in use, by anybody.", _GPU, "gpu"),
    Metric("gpu_memory_bytes", "gauge", "Device memory in all.", _GPU, "gpu"),
    Metric("gpu_power_watts", "gauge", "Power drawn.", _GPU, "gpu"),
    Metric("gpu_temperature_celsius", "gauge", "Temperature of the chip.", _GPU, "gpu"),
    Metric("gpu_clock_hertz", "gauge", "Clock of the cores (sm) and of the memory (mem).", (*_GPU, "clock"), "gpu"),
)

BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

#: An engine's metric → the field of its statistics (`engine.base.EngineStats`).
ENGINE_FIELDS: Mapping[str, str] = {
    "num_requests_running": "num_running",
    "num_requests_waiting": "num_waiting",
    "kv_cache_usage_ratio": "kv_cache_usage",
    "kv_cache_blocks": "num_kv_blocks",
    "kv_cache_block_tokens": "kv_block_size",
    "kv_cache_free_blocks": "num_free_kv_blocks",
    "kv_cache_evictions_total": "num_evictions",
    "prefix_cache_queries_total": "prefix_cache_queries",
    "prefix_cache_hits_total": "prefix_cache_hits",
    "preemptions_total": "num_preemptions",
    "speculation_drafted_tokens_total": "num_drafted_tokens",
    "speculation_accepted_tokens_total": "num_accepted_tokens",
    "engine_steps_total": "num_steps",
    "engine_generated_tokens_total": "generation_tokens",
    "engine_restarts_total": "num_restarts",
    "step_tokens": "step_tokens",
    "step_sequences": "step_sequences",
}
#: vLLM's word for a label of ours.
VLLM_LABELS: Mapping[str, str] = {"model": "model_name", "finish_reason": "finished_reason"}
