"""Findings for figures that are made up, one bottleneck each, and the lines that say it."""

from __future__ import annotations

from typing import Any

import pytest

from llm_inference.telemetry.profiling.diagnosis import diagnose, shares
from llm_inference.telemetry.profiling.figures import FrontFigures, Moved, Operator, Profile, StepFigures, TraceFigures
from llm_inference.telemetry.profiling.words import described


def profile(
    seconds: dict[str, float], *, front: FrontFigures | None = None, steps: dict[str, Any] | None = None, **trace: Any
) -> Profile:
    counted: dict[str, Any] = {
        "runner": "torch on cpu",
        "num_steps": 10,
        "num_tokens": 320,
        "num_sequences": 320,
        "max_num_seqs": 64,
        **(steps or {}),
    }
    return Profile(
        trace=TraceFigures(wall_s=sum(seconds.values()), seconds=seconds, **trace),
        steps=StepFigures(**counted),
        front=front,
    )


def front(tokenizer_s: float, loop_cpu_s: float = 0.1) -> FrontFigures:
    return FrontFigures(wall_s=1.0, seconds={"tokenizer": tokenizer_s}, num_prepared=4, loop_cpu_s=loop_cpu_s)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (profile({"tokenizer": 0.4, "linear": 0.6}), "tokenizer", "40%"),
        (profile({"waiting": 0.8, "linear": 0.2}, front=front(0.9)), "tokenizer", "225 ms a prompt"),
        (profile({"waiting": 0.8, "linear": 0.2}, front=front(0.01)), "idle", "80%"),
        (profile({"waiting": 0.8, "linear": 0.2}), "idle", "80%"),
        (profile({"waiting": 0.3, "linear": 0.7}, front=front(0.01, 0.95)), "python", "event loop"),
        (
            profile({"sampling": 0.5, "linear": 0.5}, sampling_operator="aten::sort", sampling_calls=320),
            "sampling",
            "sequence by sequence: aten::sort is called 32 times a step for 32 sequences",
        ),
        (
            profile({"sampling": 0.5, "linear": 0.5}, sampling_calls=20, sampling_python_s=0.4),
            "sampling",
            "80% of it in Python",
        ),
        (profile({"sampling": 0.5, "linear": 0.5}, sampling_calls=10), "sampling", "50% of the busy time."),
        (
            profile(
                {"copies": 0.35, "linear": 0.65},
                operators=(Operator("aten::copy_", "copies", 20, 0.3),),
                device_idle=0.1,
            ),
            "copies",
            "aten::copy_ 2 times a step",
        ),
        (profile({"python": 0.3, "scheduler": 0.2, "linear": 0.5}), "python", "50%"),
        (
            profile({"linear": 0.9, "python": 0.1}, steps={"num_sequences": 10, "num_tokens": 10}),
            "batch",
            "1.0 sequences and 1 tokens",
        ),
        (profile({"linear": 0.7, "attention": 0.3}), "compute", "linear operators first"),
        (profile({"attention": 0.7, "linear": 0.3}), "compute", "attention operators first"),
        (profile({"library": 0.9, "python": 0.1}), "compute", "its library"),
        (profile({"linear": 0.5, "sampling": 0.1, "other": 0.4}, steps={"num_sequences": None}), "compute", "90%"),
    ],
)
def test_the_first_finding(given: Profile, kind: str, says: str) -> None:
    found = diagnose(given)
    assert found[0].kind == kind, found
    assert says in found[0].says
    assert found[0].advice
    assert found == sorted(found, key=lambda one: -one.weight)
    text = "\n".join(described(given, found))
    assert "Likely bottleneck" in text
    assert found[0].says in text


def test_nothing_ran() -> None:
    nothing = Profile(trace=TraceFigures(wall_s=0.0, seconds={}), steps=StepFigures(runner="torch on cpu", num_steps=0))
    [one] = diagnose(nothing)
    assert one.kind == "idle"
    assert described(nothing, [one])[0] == "Likely bottleneck: no load"


def test_a_full_cache_is_said_beside_the_rest() -> None:
    kinds = [one.kind for one in diagnose(profile({"linear": 1.0}, steps={"num_preemptions": 3}))]
    assert kinds == ["compute", "kv_cache"]
    full = profile({"linear": 1.0}, steps={"kv_cache_usage": 0.99, "num_waiting": 4})
    assert [one.kind for one in diagnose(full)] == ["compute", "kv_cache"]


def test_a_device_that_waits_for_the_cpu() -> None:
    given = profile({"linear": 0.4, "python": 0.6}, device_idle=0.8, device_seconds={"linear": 0.2})
    assert "idle for 80%" in diagnose(given)[0].says


def test_a_library_that_counts_its_nodes_is_split() -> None:
    given = profile({"library": 0.8, "python": 0.2}, steps={"nodes": {"linear": 3.0, "attention": 1.0}})
    assert shares(given) == pytest.approx({"linear": 0.6, "attention": 0.2, "python": 0.2})


def test_the_lines() -> None:
    given = profile(
        {"linear": 0.5, "attention": 0.25, "copies": 0.25},
        steps={"peak_memory_bytes": 3 * 2**29, "peak_device_bytes": 2**20},
        device_idle=0.25,
        device_seconds={"linear": 3.0, "copies": 1.0},
        moved={"HtoD": Moved(30, 2048, 0.004)},
        attention_kernels={"SDPA FlashAttention": 7},
        operators=(Operator("aten::mm", "linear", 300, 0.4),),
        front=front(0.2),
    )
    text = "\n".join(described(given, diagnose(given)))
    for line in (
        "10 steps in 1.00 s on torch on cpu",
        "linear layers                  50.0%",
        "batch: 32.0 sequences of at most 64, 32.0 tokens a step",
        "device: idle 25.0%; of its work: linear layers 75.0%, copies and conversions 25.0%",
        "host to device: 3.0 copies a step, 2.0 KiB, 4.0 ms",
        "attention by: SDPA FlashAttention (7 calls)",
        "peak memory: 1.5 GiB of the process, 1.0 MiB on the device",
        "this gateway process: tokenizer and template 20.0%, event loop 10.0%; 4 prompts",
    ):
        assert line in text, text
    [operator] = [line for line in text.splitlines() if line.startswith("aten::mm")]
    assert operator.split() == ["aten::mm", "linear", "30.0", "40.000"]
