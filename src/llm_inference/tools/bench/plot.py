"""A report as a picture: distributions of the first token's and the further tokens' latency, throughput over time.

matplotlib is an extra and is imported here alone, when a picture is wanted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.report import Report
from llm_inference.tools.bench.statistics import ecdf, tokens_over_time

SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise `ConfigError` if a picture could not be written to `path`: before the load, not after it."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot: {path} must end in {' or '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; run: pip install 'llm-inference[plot]'"
        ) from error


def save_plot(report: Report, path: Path) -> None:
    """Write the picture, in the format of the suffix. Raises `OSError`."""
    from matplotlib.figure import Figure

    done = [timeline for timeline in report.requests if timeline.ok]
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    first, between, rate = figure.subplots(1, 3)
    ttfts = [timeline.ttft_s for timeline in done if timeline.ttft_s is not None]
    _distribution(first, "time to first token", ttfts, "from sending")
    if report.settings["request_rate"] is not None:
        scheduled = [one.ttft_scheduled_s for one in done if one.ttft_scheduled_s is not None]
        _distribution(first, "time to first token", scheduled, "from schedule")
        first.legend()
    _distribution(between, "inter-token latency", [value for one in done for value in one.inter_token_s()])
    middles, rates = tokens_over_time(report.requests, report.duration_s)
    rate.step(middles, rates, where="mid")
    rate.set(title="throughput", xlabel="s", ylabel="output tokens/s", ylim=(0, None))
    rate.grid(alpha=0.3)
    figure.suptitle(f"{report.server.model}: {report.output_tokens_per_s:,.1f} output tokens/s")
    figure.savefig(path)


def _distribution(axes: Any, title: str, values_s: list[float], label: str | None = None) -> None:
    values, shares = ecdf([value * 1000 for value in values_s])
    axes.step(values, shares, where="post", label=label)
    axes.set(title=title, xlabel="ms", ylabel="share of values at most this", ylim=(0, 1))
    axes.grid(alpha=0.3)
