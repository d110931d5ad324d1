"""Traces of a few events whose parts are known by hand, and one that torch.profiler has written."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_inference.telemetry.profiling.figures import Moved, TraceFigures
from llm_inference.telemetry.profiling.trace import read_trace


def event(name: str, ts: float, dur: float, *, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}


def stage(name: str, ts: float, dur: float) -> dict[str, Any]:
    return event(f"llm:{name}", ts, dur, cat="user_annotation")


def read(*events: dict[str, Any]) -> TraceFigures:
    step = event("ProfilerStep#3", 0, 1000, cat="user_annotation")
    figures = read_trace(json.dumps({"schemaVersion": 1, "traceEvents": [step, *events]}).encode())
    assert figures is not None
    return figures


def microseconds(figures: TraceFigures) -> dict[str, float]:
    return {part: round(own * 1e6, 3) for part, own in figures.seconds.items()}


def test_parts_are_exclusive_and_add_up() -> None:
    figures = read(
        stage("schedule", 0, 50),
        stage("forward", 50, 600),
        event("mkldnn::_linear_pointwise", 60, 200),
        event("aten::empty", 70, 20),  # inside the linear: its own
        stage("attention", 270, 150),
        event("aten::baddbmm", 280, 40),
        event("aten::bmm", 330, 60),
        event("aten::clone", 450, 100),
        event("aten::copy_", 460, 80),
        event("aten::silu_", 560, 30),
        stage("sampling", 650, 200),
        event("aten::sort", 660, 120),
        event("aten::to", 790, 10),
        stage("update", 850, 25),
        stage("tokenizer", 880, 60),
        event("aten::linear", 100, 800, tid=2),  # another thread's
        stage("forward", 2000, 50),  # after the last step
    )
    parts = microseconds(figures)
    assert parts == {
        "scheduler": 75,
        "linear": 200,
        "attention": 100,
        "copies": 110,
        "other": 30,
        "python": 600 - 200 - 150 - 100 - 30 + (150 - 100),
        "sampling": 190,
        "tokenizer": 60,
        "waiting": 65,
    }
    assert sum(parts.values()) == 1000
    assert figures.wall_s == 0.001
    assert figures.sampling_operator == "aten::sort"
    assert figures.sampling_calls == 1
    assert figures.sampling_python_s == pytest.approx(70e-6)
    assert figures.attention_kernels == {"batched matrix products": 1}
    assert figures.device_idle is None
    assert [(one.name, one.calls) for one in figures.operators[:2]] == [
        ("mkldnn::_linear_pointwise", 1),
        ("aten::sort", 1),
    ]


def test_a_cheap_operator_that_was_interrupted_is_not_what_sampling_is_about() -> None:
    selects = [event("aten::select", 500 + 10 * index, 4) for index in range(8)]
    figures = read(stage("sampling", 0, 1000), event("aten::sort", 0, 300), event("aten::select", 400, 90), *selects)
    assert (figures.sampling_operator, figures.sampling_calls) == ("aten::sort", 1)
    many = read(stage("sampling", 0, 1000), *[event("aten::sort", 100 * index, 60) for index in range(9)], *selects)
    assert (many.sampling_operator, many.sampling_calls) == ("aten::sort", 9)


def test_a_library_keeps_its_time_to_itself() -> None:
    figures = read(stage("forward", 0, 900), stage("library", 100, 700), event("aten::copy_", 20, 30))
    assert microseconds(figures) == {"library": 700, "python": 170, "copies": 30, "waiting": 100}


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "SDPA flash (CPU)"),
        ("aten::_scaled_dot_product_flash_attention", "SDPA FlashAttention"),
        ("aten::_scaled_dot_product_efficient_attention", "SDPA memory-efficient"),
        ("aten::_scaled_dot_product_cudnn_attention", "SDPA cuDNN"),
        ("aten::_scaled_dot_product_attention_math", "SDPA math"),
    ],
)
def test_which_attention_ran(operator: str, kernel: str) -> None:
    figures = read(event("aten::scaled_dot_product_attention", 0, 100), event(operator, 10, 80))
    assert figures.attention_kernels == {kernel: 1}
    assert microseconds(figures)["attention"] == 100


def test_a_gpu_is_read_by_what_launched_its_kernels() -> None:
    def on_gpu(name: str, ts: float, dur: float, cat: str = "kernel", **args: Any) -> dict[str, Any]:
        return event(name, ts, dur, cat=cat, tid=7, **args)

    figures = read(
        stage("forward", 0, 500),
        event("aten::linear", 10, 20, **{"External id": 5}),
        event("aten::mul", 40, 10, **{"External id": 6}),
        on_gpu("sm90_gemm", 100, 200, **{"External id": 5}),
        on_gpu("elementwise", 250, 100, **{"External id": 6}),  # half of it beside the other
        on_gpu("void flash_fwd_kernel<Traits>(Params)", 400, 50, **{"External id": 99}),
        on_gpu("Memcpy HtoD (Pageable -> Device)", 500, 10, "gpu_memcpy", bytes=4096),
        on_gpu("Memcpy HtoD (Pinned -> Device)", 520, 30, "gpu_memcpy", bytes=1000),
        on_gpu("Memcpy DtoH (Device -> Pinned)", 560, 10, "gpu_memcpy", bytes=8),
    )
    parts = {part: round(own * 1e6) for part, own in figures.device_seconds.items()}
    assert parts == {"linear": 200, "other": 100, "attention": 50, "copies": 50}
    assert figures.device_idle == pytest.approx(1 - (250 + 50 + 50) / 1000)
    assert figures.moved["HtoD"] == Moved(2, 5096, pytest.approx(40e-6))
    assert figures.moved["DtoH"].num_bytes == 8
    assert figures.attention_kernels == {"flash_fwd_kernel": 1}


def test_kernels_of_a_replayed_graph_go_by_their_names() -> None:
    figures = read(
        event("nvjet_tst_128x8", 0, 40, cat="kernel", tid=7),
        event("void cutlass::Kernel2<...>", 40, 20, cat="kernel", tid=7),
        event("void at::native::elementwise", 60, 10, cat="kernel", tid=7),
        event("fmha_cutlassF_bf16", 70, 30, cat="kernel", tid=7),
    )
    parts = {part: round(own * 1e6) for part, own in figures.device_seconds.items()}
    assert parts == {"linear": 60, "other": 10, "attention": 30}


def test_without_a_step_there_is_nothing() -> None:
    assert read_trace(b'{"traceEvents": []}') is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"traceEvents": 1}'])
def test_what_is_no_trace(content: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        read_trace(content)
    assert isinstance(caught.value, msgspec.MsgspecError)


def test_a_process_of_its_own_reads_and_packs_it(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    content = {"traceEvents": [event("ProfilerStep#1", 0, 10, cat="user_annotation"), stage("sampling", 2, 5)]}
    file.write_text(json.dumps(content))
    command = [sys.executable, "-m", "llm_inference.telemetry.profiling.trace", str(file)]
    done = subprocess.run(command, capture_output=True, check=True)
    figures = msgspec.json.decode(done.stdout, type=TraceFigures)
    assert figures.seconds["sampling"] == pytest.approx(5e-6)
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == file.read_bytes()


def test_torchs_own_sums_are_the_same(tmp_path: Path) -> None:
    """Own times by operator, against what torch computes from the events in its memory."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    a = torch.randn(300, 300)
    file = tmp_path / "trace.json"
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    sums: dict[str, tuple[int, float]] = {}

    def ready(profiler: profile) -> None:
        profiler.export_chrome_trace(str(file))
        for one in profiler.key_averages():
            if not one.key.startswith(("ProfilerStep", "llm:")):
                sums[one.key] = (one.count, one.self_cpu_time_total / 1e6)

    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=ready) as profiler:
        for _ in range(3):
            with record_function("llm:forward"):
                b = torch.nn.functional.linear(a, a)
                torch.nn.functional.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])
            with record_function("llm:sampling"):
                b.softmax(-1).sort()
            profiler.step()
    figures = read_trace(file.read_bytes())
    assert figures is not None
    assert {"linear", "attention", "sampling", "python"} <= figures.seconds.keys()
    assert sum(figures.seconds.values()) == pytest.approx(figures.wall_s, rel=1e-3)
    assert len(figures.operators) > 5
    for name in {one.name for one in figures.operators}:
        if sum(one.name == name for one in figures.operators) == 1:
            [own] = [one for one in figures.operators if one.name == name]
            if own.calls == sums[name][0]:  # else some of its calls are in a part that is not among the largest
                assert own.seconds == pytest.approx(sums[name][1], rel=0.05, abs=2e-5), name
    assert "SDPA flash (CPU)" in figures.attention_kernels or "SDPA math" in figures.attention_kernels
