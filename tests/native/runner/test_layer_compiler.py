"""Compiled layers give what eager ones give. Traced here; the compilers themselves take the better part of a minute."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from llm_inference.errors import ConfigError, StartupError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.layers.kernels import DenseKernel
from llm_inference.native.loader import load_model
from llm_inference.native.models.base import CausalLM, CompilableLM
from llm_inference.native.quantization.int8 import Int8Kernel
from llm_inference.native.runner import layer_compiler
from llm_inference.native.runner.layer_compiler import MIN_ROWS, compilable_kernels, compile_layers, compiling
from llm_inference.native.runner.torch_runner import TorchRunner
from tests.native.paging import Pager, random_tokens
from tests.native.tiny_models import CPU, TinyModel, save_tiny

#: torch's own import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """With biases."""
    return save_tiny(tmp_path_factory.mktemp("qwen2"), "qwen2")


def load(tiny: TinyModel, quantization: str | None = None) -> CausalLM:
    return load_model(
        tiny.directory,
        ModelSpec.from_directory(tiny.directory),
        dtype=torch.float32,
        device=CPU,
        quantization=quantization,
        kernel=compilable_kernels(quantization),
    )


def run(model: CausalLM, token_ids: list[int], *cuts: int) -> torch.Tensor:
    runner = TorchRunner(model, block_size=4, min_rows=MIN_ROWS)
    return Pager(runner, block_size=4, num_blocks=32).run(token_ids, *cuts)


def test_traced_layers_equal_transformers(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of the compiler but its code: one graph without breaks, real numbers, any number of rows."""
    programs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        programs.append(graph)
        assert not any(tensor.is_complex() for tensor in inputs if isinstance(tensor, torch.Tensor))
        return graph

    monkeypatch.setattr(
        layer_compiler,
        "_compiled",
        lambda function: torch.compile(function, dynamic=True, fullgraph=True, backend=backend),
    )
    torch.compiler.reset()
    model = load(tiny)
    compile_layers(model)
    token_ids = random_tokens(40, seed=1)
    expected = tiny.logits(token_ids)
    for cuts in ((), (7, 8, 9, 25), (3, 38, 39)):
        torch.testing.assert_close(run(model, token_ids, *cuts), expected, atol=1e-4, rtol=1e-4)
    assert len(programs) == 2, "one before and one after the attention, for all layers and numbers of rows"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_traced_quantized_layers_equal_eager_ones(
    tiny: TinyModel, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        layer_compiler,
        "_compiled",
        lambda function: torch.compile(function, dynamic=True, fullgraph=True, backend="eager"),
    )
    torch.compiler.reset()
    model = load(tiny, quantization)
    compile_layers(model)
    token_ids = random_tokens(20, seed=2)
    torch.testing.assert_close(run(model, token_ids, 9, 10), run(load(tiny, quantization), token_ids, 9, 10))


@pytest.mark.slow
def test_compiled_layers_equal_transformers(tiny: TinyModel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    torch.compiler.reset()
    model = load(tiny)
    compile_layers(model)
    token_ids = random_tokens(40, seed=1)
    with compiling():
        first = run(model, token_ids)
    assert "compiled the layers in" in caplog.text
    torch.testing.assert_close(first, tiny.logits(token_ids), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(run(model, token_ids, 7, 8, 25), tiny.logits(token_ids), atol=1e-4, rtol=1e-4)


def test_kernels_that_a_compiler_sees_into() -> None:
    assert compilable_kernels(None) is DenseKernel
    assert compilable_kernels("int8") is Int8Kernel


def test_a_model_that_cannot_be_compiled(tiny: TinyModel) -> None:
    class Other:
        """A custom architecture without the power."""

    assert isinstance(load(tiny), CompilableLM)
    with pytest.raises(ConfigError, match="Other does not say which parts of it can be compiled"):
        compile_layers(Other())  # type: ignore[arg-type]


def test_no_compiler(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(layer_compiler, "_compiled", lambda function: torch.compile(function, backend=backend))
    torch.compiler.reset()
    model = load(tiny)
    compile_layers(model)
    with (
        pytest.raises(StartupError, match=r"compile: true failed \(.*No working C\+\+ compiler.*such as g\+\+"),
        compiling(),
    ):
        run(model, [1, 2, 3])
