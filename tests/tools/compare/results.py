"""Comparisons that a test can work out by hand."""

from __future__ import annotations

from typing import Any

from llm_inference.tools.compare.comparison import Comparison, Entry, Run
from llm_inference.tools.compare.machine import Machine, Peaks
from llm_inference.tools.compare.measured import Measured


def measured(rate: float, **fields: Any) -> Measured:
    values: dict[str, Any] = {
        "num_requests": 4, "num_failed": 0, "num_short": 0, "num_cut": 0, "duration_s": 2.0, "input_tokens": 10,
        "output_tokens": 20, "decode_tokens_per_s": rate * 2, "ttft_p50_s": 0.1, "ttft_p99_s": 0.2,
        "itl_p50_s": 0.01, "itl_p99_s": 1 / rate,
    }  # fmt: skip
    return Measured(output_tokens_per_s=rate, **{**values, **fields})


def entry(name: str, *rates: float, precision: str = "fp32", ours: bool = False, workload: str = "W2") -> Entry:
    runs = [
        Run(
            round=number,
            startup_s=1.0,
            peak_rss_bytes=10**9,
            measured={workload: measured(rate)},
            roofline={workload: 0.5},
        )
        for number, rate in enumerate(rates, 1)
    ]
    made = Entry(name=name, title=name, precision=precision, through="serve", is_ours=ours, engine="native", runs=runs)
    made.versions["engine"] = "1.0"
    return made


def comparison(*entries: Entry, **fields: Any) -> Comparison:
    machine = Machine(cpu="A CPU", num_cpus=2, flags=("avx2",), memory_bytes=10**10, platform="Linux", python="3.11")
    values: dict[str, Any] = {
        "workloads": {"W1": "one", "W2": "many", "W4": "beside"}, "peaks": Peaks(25e9, 150e9), "limit_s": 60.0,
    }  # fmt: skip
    return Comparison(
        started_at="2026-12-01T00:00:00+00:00", version="1", machine=machine, model="m", rounds=2,
        entries=list(entries), **{**values, **fields},
    )  # fmt: skip
