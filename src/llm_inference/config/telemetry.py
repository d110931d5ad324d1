"""The configuration of metrics, traces, logged prompts, the canary, and of what alerts warn of."""

from __future__ import annotations

from pydantic import Field

from llm_inference.config.section import Section


class AlertsConfig(Section):
    """`telemetry.alerts:` thresholds of the alert rules that `llm-inference deploy` writes."""

    ttft_p99_s: float = Field(default=1.0, gt=0, description="1 % of requests wait longer for their first token.")
    e2e_p99_s: float = Field(default=30.0, gt=0, description="1 % of requests take longer from end to end.")
    ttft_slo: float = Field(
        default=0.99, gt=0, lt=1, description="Share of requests that are to have their first token in ttft_p99_s."
    )
    error_ratio: float = Field(default=0.05, gt=0, lt=1, description="Share of requests that end with 5xx.")
    refused_ratio: float = Field(default=0.05, gt=0, lt=1, description="Share of requests that end with 429 or 503.")
    kv_cache_ratio: float = Field(default=0.9, gt=0, le=1, description="Use of the KV cache.")
    gpu_memory_ratio: float = Field(default=0.95, gt=0, le=1, description="Use of a GPU's memory.")
    prefix_hit_drop: float = Field(
        default=0.5, gt=0, lt=1, description="Hit rate of the prefix cache, as a share of the hour before."
    )
    golden_agreement: float = Field(default=0.9, gt=0, le=1, description="Least agreement of a tier with the best one.")


class TelemetryConfig(Section):
    """`telemetry:` what goes out about the service."""

    vllm_metrics: bool = Field(default=True, description="Metrics also under vLLM's names.")
    traces: bool = Field(
        default=False, description="OpenTelemetry spans, sent as the OTEL_* variables say; needs the extra otel."
    )
    otlp_metrics: bool = Field(
        default=False, description="Metrics also by OTLP, sent as the OTEL_* variables say; needs the extra otel."
    )
    redact_prompts: bool = Field(
        default=True, description="With log_prompts: hide mail addresses, keys, card and phone numbers."
    )
    canary_interval_s: float | None = Field(
        default=None, ge=1, description="Ask each idle model for a token so often; null: never."
    )
    alerts: AlertsConfig = AlertsConfig()
