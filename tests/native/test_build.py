"""From a setup to a core: which runner it gets, and what it reports."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import StartupError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.build import build_core
from llm_inference.native.plan import compiled_weight_bytes, make_plan
from llm_inference.native.setup import CoreSetup


@pytest.fixture
def setup(default_model_dir: Path) -> CoreSetup:
    options = {"model": str(default_model_dir), "runner": "torch", "block_size": 32, "max_model_len": 256}
    return make_plan(ModelConfig.model_validate(options | {"kv_cache_memory": "64MiB"}), progress=False).setup


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_core_with_the_compiled_runner(setup: CoreSetup, quantization: str) -> None:
    core, report = build_core(msgspec.structs.replace(setup, runner="compiled", quantization=quantization))
    assert not core.has_work
    assert (report.runner, report.precision, report.block_size) == ("compiled on cpu", quantization, 32)
    assert report.kv_cache_bytes == report.num_kv_blocks * 32 * 12_960
    spec = ModelSpec.from_directory(Path(setup.model_dir))
    assert 0.9 < report.weight_bytes / compiled_weight_bytes(spec, quantization) <= 1
    assert torch.get_num_threads() == 1, "one pool of threads, the runner's"
    assert {"compile", "weights", "warm_up"} <= report.load_s.keys()


def test_a_core_with_the_openvino_runner(setup: CoreSetup) -> None:
    pytest.importorskip("openvino", reason="the package openvino is not installed (extra `cpu`)")
    core, report = build_core(msgspec.structs.replace(setup, runner="openvino"))
    assert not core.has_work
    assert (report.runner, report.precision, report.block_size) == ("openvino on cpu", "float32", 32)
    assert report.kv_cache_bytes == report.num_kv_blocks * 32 * 46_080
    assert torch.get_num_threads() == 1, "one pool of threads, the runner's"


def test_an_openvino_that_cannot_be_imported(setup: CoreSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_inference.native.runner.openvino_runner", None)
    with pytest.raises(StartupError, match=r"openvino cannot be imported \(.*set `runner: torch`"):
        build_core(msgspec.structs.replace(setup, runner="openvino"))
