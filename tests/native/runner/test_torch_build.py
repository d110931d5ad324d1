"""The torch runner by what its device can: what is chosen, what it takes, and that it runs. The device is pretended."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from llm_inference.errors import ConfigError, OutOfMemoryError, StartupError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.choice import AttentionChoice
from llm_inference.native.attention.flash_attention import FlashAttention
from llm_inference.native.attention.flashinfer_attention import WORKSPACE_BYTES, WRAPPER_BYTES
from llm_inference.native.attention.torch_attention import TorchAttention
from llm_inference.native.runner import torch_build
from llm_inference.native.runner.graph_choice import GraphChoice, graph_bytes
from llm_inference.native.runner.torch_build import TorchParts, blocks_on_gpu, choose_parts, load_runner, start
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.native.setup import CoreSetup
from tests.native.attention.fake_kernels import FakeFlashAttn
from tests.native.paging import Pager, random_tokens
from tests.native.tiny_models import CPU, TinyModel, save_tiny

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("llama"))


def setup_of(tiny: TinyModel, **changes: Any) -> CoreSetup:
    usual = CoreSetup(
        model_dir=str(tiny.directory),
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_valid_tokens=101,
        block_size=None,
    )
    return msgspec.structs.replace(usual, **changes)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A GPU of capability 9.0 that no kernel is ever sent to, and the packages that are installed."""
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    packages = torch_build.InstalledPackages
    monkeypatch.setattr(torch_build, "InstalledPackages", lambda import_error: packages(version, lambda module: None))
    return installed


def test_on_a_cpu(tiny: TinyModel) -> None:
    parts = choose_parts(setup_of(tiny), ModelSpec.from_directory(tiny.directory), torch.float32, CPU)
    assert (parts.attention.name, parts.attention.block_size, parts.graphs.sizes) == ("sdpa", 16, ())
    assert parts.reserved_bytes == 0


def test_on_a_gpu(tiny: TinyModel, gpu: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    spec = ModelSpec.from_directory(tiny.directory)
    shapes = {"vocab_size": 101, "hidden_size": 64, "intermediate_size": 96}
    parts = choose_parts(setup_of(tiny), spec, torch.bfloat16, CUDA)
    assert (parts.attention.name, parts.title) == ("sdpa", ", attention sdpa")
    assert "CUDA graphs: none, because with attention sdpa" in caplog.text
    gpu["flash-attn"] = "2.8.3"
    parts = choose_parts(setup_of(tiny), spec, torch.bfloat16, CUDA)
    assert (parts.attention.name, parts.attention.block_size) == ("flash_attn", 256)
    assert (parts.graphs.sizes, parts.title) == ((1, 2, 4), ", attention flash_attn, CUDA graphs up to 4")
    assert "attention: flash_attn, because flash-attn 2.8.3 is installed and fits" in caplog.text
    scratch = 256 * spec.kv_bytes_per_token("bfloat16")
    assert parts.reserved_bytes == graph_bytes((1, 2, 4), **shapes) + scratch
    parts = choose_parts(setup_of(tiny, cuda_graphs=False), spec, torch.bfloat16, CUDA)
    assert (parts.graphs.sizes, parts.reserved_bytes) == ((), 0)
    with pytest.raises(ConfigError, match=r"heads of 64, 128 or 256, and this model's are of 16"):
        choose_parts(setup_of(tiny, attention="flashinfer"), spec, torch.bfloat16, CUDA)


def test_what_flashinfer_takes(default_model_dir: Path, tiny: TinyModel, gpu: dict[str, str]) -> None:
    gpu["flashinfer-python"] = "0.7.4"
    spec = ModelSpec.from_directory(default_model_dir)  # heads of 64
    setup = setup_of(tiny, max_model_len=1600, cuda_graphs=False)
    parts = choose_parts(setup, spec, torch.float16, CUDA)
    assert (parts.attention.name, parts.attention.block_size) == ("flashinfer", 16)
    assert parts.reserved_bytes == WORKSPACE_BYTES + 4 * WRAPPER_BYTES
    with_graphs = choose_parts(msgspec.structs.replace(setup, cuda_graphs="auto"), spec, torch.float16, CUDA)
    assert with_graphs.reserved_bytes > parts.reserved_bytes + 3 * WRAPPER_BYTES + 4 * 100 * 4


def test_a_runner_with_another_attention(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its module's name; blocks of the size that was chosen."""
    fake = FakeFlashAttn()
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=fake))
    parts = TorchParts(AttentionChoice("flash_attn", "", 256), GraphChoice((), ""), 0)
    setup = setup_of(tiny)
    runner = load_runner(parts, setup, ModelSpec.from_directory(tiny.directory), torch.float32, CPU)
    pager = Pager(runner, block_size=256, num_blocks=4)
    assert isinstance(runner._attention, FlashAttention)
    start(runner, parts, setup, CPU, 4)
    token_ids = random_tokens(20, seed=1)
    torch.testing.assert_close(pager.run(token_ids, 12, 19), tiny.logits(token_ids), atol=1e-4, rtol=1e-4)
    assert fake.calls


def test_an_attention_that_fails_in_its_first_step(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = TorchParts(AttentionChoice("flashinfer", "", 16), GraphChoice((), ""), 0)
    spec = ModelSpec.from_directory(tiny.directory)
    sdpa = TorchParts(AttentionChoice("sdpa", "", 16), GraphChoice((), ""), 0)
    runner = load_runner(sdpa, setup_of(tiny), spec, torch.float32, CPU)
    runner.allocate_kv_cache(8)

    def fail(self: TorchAttention, *args: Any) -> None:
        raise RuntimeError("nvcc: not found")

    monkeypatch.setattr(TorchAttention, "prepare", fail)
    with pytest.raises(StartupError, match=r"flashinfer fails in its first step \(RuntimeError: nvcc: not found\)"):
        start(runner, parts, setup_of(tiny), CUDA, 8)
    with pytest.raises(RuntimeError, match="nvcc"):
        start(runner, sdpa, setup_of(tiny), CUDA, 8)


def test_graphs_that_cannot_be_recorded(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By themselves they are left out; asked for they are an error."""
    plain = TorchParts(AttentionChoice("sdpa", "", 16), GraphChoice((), ""), 0)
    runner = load_runner(plain, setup_of(tiny), ModelSpec.from_directory(tiny.directory), torch.float32, CPU)
    runner.allocate_kv_cache(8)
    parts = TorchParts(AttentionChoice("flashinfer", "", 16), GraphChoice((1, 2), ""), 0)

    def fail(self: TorchRunner) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(TorchRunner, "record_graphs", fail)
    assert start(runner, parts, setup_of(tiny), CPU, 8).title == ", attention flashinfer"
    assert "recording CUDA graphs failed (RuntimeError: operation not permitted" in caplog.text
    with pytest.raises(StartupError, match=r"cuda_graphs: true cannot be had: .*set `cuda_graphs: false`"):
        start(runner, parts, setup_of(tiny, cuda_graphs=True), CPU, 8)


def parts_of(name: Any, reserved_bytes: int) -> TorchParts:
    return TorchParts(AttentionChoice(name, "", 256), GraphChoice((), ""), reserved_bytes)


def test_graphs_and_workspaces_come_off_the_cache(default_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 2**30, 8 * 2**30))
    spec = ModelSpec.from_directory(default_model_dir)
    setup = setup_of(TinyModel(default_model_dir, None), max_num_seqs=1000, max_num_batched_tokens=1000)  # type: ignore[arg-type]
    setup = msgspec.structs.replace(setup, max_model_len=8192)
    block_bytes = 256 * spec.kv_bytes_per_token("float16")

    def blocks(parts: TorchParts | None, device: torch.device = CUDA) -> int:
        return blocks_on_gpu(parts, setup, spec, torch.float16, device)

    usual = blocks(parts_of("flash_attn", 0))
    assert blocks(parts_of("flash_attn", 10 * block_bytes)) == usual - 10
    assert blocks(parts_of("sdpa", 0)) == pytest.approx(usual * 30 / 31, abs=2), "what it gathers of one of 30 layers"
    with pytest.raises(OutOfMemoryError, match="What would help"):
        blocks(parts_of("flash_attn", 2**31))
    for parts, device in ((None, CUDA), (parts_of("sdpa", 0), CPU)):
        with pytest.raises(OutOfMemoryError, match="not planned for this device"):
            blocks(parts, device)
