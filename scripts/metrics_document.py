"""Write docs/metrics.md from the table of metrics: `python scripts/metrics_document.py`."""

from __future__ import annotations

from pathlib import Path

from llm_inference.telemetry.metrics.table import METRICS, Metric, Origin

FILE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

_HEAD = """\
# Metrics

Everything at `/metrics`, made by `python scripts/metrics_document.py` from the one table
(`src/llm_inference/telemetry/metrics/table.py`) that instruments, dashboards and alert rules are made from, too. How to
collect and watch them: [monitoring.md](monitoring.md).

Labels are served models, route templates, statuses and words of this server: nothing that a client can invent. What is
unknown is absent, never zero. With `telemetry.vllm_metrics` (the default) the metrics of the last column come once more
under vLLM's names, with its labels `model_name` and `engine`; and `vllm:cache_config_info` says in its labels
`block_size`, `num_gpu_blocks` and `kv_cache_size_tokens` how much a KV cache holds.
"""
_SECTIONS: tuple[tuple[Origin, str, str], ...] = (
    ("gateway", "Requests", "Measured by the gateway, whatever engine answers."),
    (
        "engine",
        "Engines",
        "By the engine itself. The native engine knows all of them; of another engine those are shown that its own "
        "`/metrics` has.",
    ),
    ("golden", "Agreement of tiers", "Only where tiers are compared with the best one (`routing.agreement`)."),
    ("process", "Processes", "From `/proc`: `gateway` or `gateway-N`, `parent`, `engine MODEL`."),
    ("cgroup", "The container", "From the cgroup, version 1 or 2."),
    ("gpu", "GPUs", "From NVML, the library of NVIDIA's driver; nothing to install."),
)


def document() -> str:
    """The whole text."""
    parts = [_HEAD]
    for origin, title, text in _SECTIONS:
        rows = [_row(metric) for metric in METRICS if metric.origin == origin]
        head = ["| Name | Type | Labels | Meaning | vLLM's name |", "| --- | --- | --- | --- | --- |"]
        parts.append("\n".join([f"## {title}", "", text, "", *head, *rows]) + "\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    vllm = ", ".join(f"`{name}`" for name in metric.vllm)
    cells = (f"`{metric.full_name}`", metric.kind, ", ".join(metric.labels), metric.help.rstrip("."), vllm)
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    FILE.write_text(document())
