"""Alert rules as data, made from the table of metrics; thresholds come from `telemetry.alerts` of the configuration.

Ratios divide by "more than zero", so that no traffic is no alarm. A name that the table lacks is a KeyError here, and
so in every test.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_inference.config.telemetry import AlertsConfig
from llm_inference.telemetry.metrics.table import BY_NAME


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    wait: str
    severity: str
    summary: str


def metric(name: str, suffix: str = "") -> str:
    """The full name of a metric of the table, of a histogram with `_bucket`, `_sum` or `_count`."""
    assert bool(suffix) == (BY_NAME[name].kind == "histogram"), name
    return BY_NAME[name].full_name + suffix


def quantile(share: float, name: str, by: str = "model", window: str = "5m") -> str:
    buckets = f"sum by (le, {by}) (rate({metric(name, '_bucket')}[{window}]))"
    return f"histogram_quantile({share:g}, {buckets})"


def ratio(part: str, whole: str) -> str:
    """Nothing where `whole` is 0."""
    return f"{part} / ({whole} > 0)"


def alerts(limits: AlertsConfig) -> tuple[Alert, ...]:
    """All rules, with these thresholds."""
    requests = metric("requests_total")
    errors = ratio(f'sum(rate({requests}{{status=~"5.."}}[5m]))', f"sum(rate({requests}[5m]))")
    refused = ratio(f'sum(rate({requests}{{status=~"429|503"}}[5m]))', f"sum(rate({requests}[5m]))")
    waiting = metric("num_requests_waiting")
    return (
        Alert("LlmErrors", f"{errors} > {limits.error_ratio:g}", "10m", "warning", "Many requests fail with 5xx."),
        Alert(
            "LlmErrorsCritical",
            f"{errors} > {min(4 * limits.error_ratio, 0.5):g}",
            "5m",
            "critical",
            "A large share of the requests fails with 5xx.",
        ),
        Alert(
            "LlmAbsent",
            f"absent({metric('requests_in_flight')})",
            "2m",
            "critical",
            "No instance answers scrapes: all are down or loading.",
        ),
        Alert(
            "LlmNotReady",
            f"max by (model) ({metric('engine_ready')}) == 0",
            "2m",
            "critical",
            "No instance of the model would answer a request.",
        ),
        Alert(
            "LlmSlowFirstToken",
            f"{quantile(0.99, 'time_to_first_token_seconds')} > {limits.ttft_p99_s:g}",
            "5m",
            "warning",
            f"1 % of requests wait over {limits.ttft_p99_s:g} s for their first token.",
        ),
        Alert(
            "LlmSlowRequests",
            f"{quantile(0.99, 'request_duration_seconds')} > {limits.e2e_p99_s:g}",
            "5m",
            "warning",
            f"1 % of requests take over {limits.e2e_p99_s:g} s.",
        ),
        *_burn_rates(limits),
        Alert(
            "LlmQueueGrows",
            f"sum by (model) ({waiting}) > 0 and sum by (model) (deriv({waiting}[10m])) > 0",
            "10m",
            "warning",
            "Requests wait, and more and more of them: more load than the instances hold.",
        ),
        Alert(
            "LlmKvCacheFull",
            f"max by (model) ({metric('kv_cache_usage_ratio')}) > {limits.kv_cache_ratio:g}"
            f" and sum by (model) (rate({metric('preemptions_total')}[5m])) > 0",
            "5m",
            "warning",
            "The KV cache is full and sequences are sent back to wait: more kv_cache_memory, or more instances.",
        ),
        Alert(
            "LlmEngineRestarts",
            f"sum by (model) (increase({metric('engine_restarts_total')}[10m])) > 0",
            "0m",
            "warning",
            "An engine crashed and was restarted.",
        ),
        Alert(
            "LlmNoTokens",
            f"sum by (model) ({metric('num_requests_running')}) > 0"
            f" and sum by (model) (rate({metric('engine_steps_total')}[5m])) == 0",
            "5m",
            "critical",
            "Requests run and no step completes: an engine hangs.",
        ),
        Alert(
            "LlmPrefixHitsCollapse",
            f"{_hit_rate('10m')} < {limits.prefix_hit_drop:g} * {_hit_rate('1h', ' offset 10m')}"
            f" and {_hit_rate('1h', ' offset 10m')} > 0.1",
            "10m",
            "warning",
            "Far fewer prompt tokens are found in the prefix cache than in the hour before.",
        ),
        Alert(
            "LlmRefused",
            f"{refused} > {limits.refused_ratio:g}",
            "5m",
            "warning",
            "Many requests are refused for want of room.",
        ),
        Alert(
            "LlmGpuMemory",
            f"{metric('gpu_memory_used_bytes')} / {metric('gpu_memory_bytes')} > {limits.gpu_memory_ratio:g}",
            "5m",
            "warning",
            f"Over {limits.gpu_memory_ratio:.0%} of a GPU's memory is in use.".replace("%", " %"),
        ),
        Alert(
            "LlmGoldenAgreement",
            f"min by (model, tier) ({metric('golden_agreement_ratio')}) < {limits.golden_agreement:g}",
            "0m",
            "warning",
            "A tier answers otherwise than the best one more often than it may.",
        ),
    )


def _burn_rates(limits: AlertsConfig) -> tuple[Alert, Alert]:
    """How fast the share of slow first tokens that the objective allows is used up, over two windows each.

    14.4 uses 2 % of a month's allowance in an hour, 6 uses 5 % in six hours (Google's SRE Workbook, chapter 5).
    """
    name = "time_to_first_token_seconds"
    bound = min((one for one in BY_NAME[name].buckets if one >= limits.ttft_p99_s), default=BY_NAME[name].buckets[-1])
    allowed = 1 - limits.ttft_slo

    def slow(window: str) -> str:
        fast = f'sum by (model) (rate({metric(name, "_bucket")}{{le="{float(bound)!r}"}}[{window}]))'
        every = f"sum by (model) (rate({metric(name, '_count')}[{window}]))"
        return f"(1 - {ratio(fast, every)})"

    def both(factor: float, long: str, short: str) -> str:
        limit = f"{factor * allowed:.6g}"
        return f"{slow(long)} > {limit} and {slow(short)} > {limit}"

    summary = "First tokens are late so often that the objective ({:g} of them within {:g} s) is lost in {}."
    return (
        Alert(
            "LlmFirstTokenBurnFast",
            both(14.4, "1h", "5m"),
            "2m",
            "critical",
            summary.format(limits.ttft_slo, bound, "two days"),
        ),
        Alert(
            "LlmFirstTokenBurnSlow",
            both(6, "6h", "30m"),
            "15m",
            "warning",
            summary.format(limits.ttft_slo, bound, "five days"),
        ),
    )


def _hit_rate(window: str, offset: str = "") -> str:
    hits, queries = (
        f"sum by (model) (rate({metric(name)}[{window}]{offset}))"
        for name in ("prefix_cache_hits_total", "prefix_cache_queries_total")
    )
    return f"({ratio(hits, queries)})"
