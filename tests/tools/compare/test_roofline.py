from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.model_spec import ModelSpec
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.compare.machine import Peaks
from llm_inference.tools.compare.roofline import ModelCosts, decode_share, needs
from llm_inference.tools.compare.workloads import Request, Workload, make_suite

COSTS = ModelCosts(weight_bytes=1000, kv_bytes_per_token=10, layer_flops=100, head_flops=50, attention_flops=1)


def workload(*requests: tuple[tuple[int, ...], int], concurrency: int = 1) -> Workload:
    made = tuple(
        Request(text="", token_ids=ids, num_tokens=len(ids), max_tokens=max_tokens) for ids, max_tokens in requests
    )
    return Workload(name="W", title="", requests=made, concurrency=concurrency)


def test_one_request_by_hand() -> None:
    found = needs(workload(((1, 2, 3), 3)), COSTS, Peaks(1e3, 1e2))
    assert found is not None
    # The prompt: 3 tokens, 1 head, 1 + 2 + 3 pairs. Two decodes at contexts of 4 and 5 (3 and its answer so far).
    prompt = 3 * 100 + 50 + 6
    contexts = 3 * 2 + 3 * 2 / 2
    decode = 2 * 150 + contexts
    assert found.flops == prompt + decode
    assert found.num_bytes == 2 * 1000 + contexts * 10
    assert found.ideal_s == prompt / 100 + max(found.num_bytes / 1000, decode / 100)


def test_a_shared_beginning_is_computed_once() -> None:
    peaks = Peaks(1e9, 1.0)
    apart = needs(workload(((1, 2, 3), 1), ((4, 2, 3), 1)), COSTS, peaks)
    shared = needs(workload(((1, 2, 3), 1), ((1, 2, 4), 1)), COSTS, peaks)
    assert apart is not None
    assert shared is not None
    assert apart.flops - shared.flops == 2 * 100 + 3  # two tokens, and the pairs among them


def test_a_batch_reads_the_weights_once_a_step() -> None:
    peaks = Peaks(1.0, 1e12)
    alone = needs(workload(((1,), 11), ((2,), 11)), COSTS, peaks)
    together = needs(workload(((1,), 11), ((2,), 11), concurrency=2), COSTS, peaks)
    assert alone is not None
    assert together is not None
    assert alone.num_bytes - together.num_bytes == 10 * 1000


def test_the_share_of_one_stream() -> None:
    # A context of 2 + 4 / 2 tokens: 1,040 bytes a step.
    assert decode_share(workload(((1, 2), 4)), COSTS, Peaks(10_400.0, 1.0), 5.0) == 0.5


def test_the_default_model(default_model_dir: Path, default_gguf: Path) -> None:
    spec = ModelSpec.from_directory(default_model_dir)
    full = ModelCosts.of(spec, "fp32")
    assert full is not None
    assert full.weight_bytes == pytest.approx(538e6, rel=0.01)
    int8 = ModelCosts.of(spec, "int8")
    assert int8 is not None
    assert int8.weight_bytes == pytest.approx(134.5e6, rel=0.01)
    int4 = ModelCosts.of(spec, "int4", default_gguf.stat().st_size)
    assert int4 is not None
    assert int4.weight_bytes == default_gguf.stat().st_size
    assert ModelCosts.of(spec, "other") is None
    [w2] = make_suite(Tokenizer.load(default_model_dir), ["W2"]).workloads
    without_attention = ModelCosts(0, 0, full.layer_flops, full.head_flops, 0)
    found = needs(w2, without_attention, Peaks(1.0, 1.0))
    assert found is not None
    assert found.flops == pytest.approx(5.9e12, rel=0.03)


def test_streams_that_are_cut_off_have_no_share() -> None:
    work = workload(((1,), 5))
    assert (
        needs(
            Workload(name="W4", title="", requests=work.requests, concurrency=1, late=work.requests), COSTS, Peaks(1, 1)
        )
        is None
    )
