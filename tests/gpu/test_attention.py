"""The kernels of flash-attn and flashinfer against torch's own operators, in half precision."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest
import torch

from llm_inference.native.attention.base import Attention, AttentionShape
from llm_inference.native.attention.choice import BLOCK_SIZES
from llm_inference.native.attention.flash_attention import FlashAttention
from llm_inference.native.attention.flashinfer_attention import FlashInferAttention
from llm_inference.native.attention.torch_attention import TorchAttention
from tests.native.attention import fake_kernels
from tests.native.attention.steps import attend_all, by_sdpa, filled_cache, paged_step

pytestmark = pytest.mark.gpu

MAX_MODEL_LEN = 2048
WORK = {
    "decodes": [(1, 1), (1, 255), (1, 256), (1, 257), (1, 1500)],
    "chunks": [(5, 5), (20, 300), (256, 256), (2, 513)],
    "both": [(1, 300), (1, 2), (1, 1100), (7, 7), (130, 390)],
}


def make(name: str, shape: AttentionShape, dtype: torch.dtype, device: torch.device, num_blocks: int) -> Attention:
    cache = filled_cache(shape, num_blocks, BLOCK_SIZES[name], dtype=dtype, device=device)  # type: ignore[index]
    if name == "flash_attn":
        return FlashAttention(shape, cache, dtype, device, max_model_len=MAX_MODEL_LEN)
    if name == "flashinfer":
        return FlashInferAttention(shape, cache, dtype, device, max_model_len=MAX_MODEL_LEN)
    return TorchAttention(shape, cache, dtype, device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_kv_heads", [8, 4, 1])
@pytest.mark.parametrize("work", WORK)
def test_it_attends_as_float32_on_the_cpu(
    attention: str, work: str, num_kv_heads: int, dtype: torch.dtype, device: torch.device
) -> None:
    shape = AttentionShape(8, num_kv_heads, 64, 0.1, (None, 100, 256, 1))
    block_size = BLOCK_SIZES[attention]  # type: ignore[index]
    num_blocks = 4096 // block_size
    step = paged_step(WORK[work], num_blocks, block_size)
    num_rows = len(step.token_ids) + 3
    made = make(attention, shape, dtype, device, num_blocks)
    attended = attend_all(made, shape, step, num_rows).float().cpu()
    expected, cache = by_sdpa(shape, step, num_rows, num_blocks, block_size)
    tolerance = 2e-3 if dtype == torch.float16 else 2e-2  # a few units in the last place of numbers about 1
    torch.testing.assert_close(attended, expected, atol=tolerance, rtol=4 * tolerance)
    torch.testing.assert_close(made.cache.data.float().cpu(), cache, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("module", "name", "stand_in"),
    [
        ("flash_attn", "flash_attn_varlen_func", fake_kernels.FakeFlashAttn.__call__),
        *(
            ("flashinfer", f"{wrapper.__name__}.{method}", getattr(wrapper, method))
            for wrapper in (
                fake_kernels.BatchDecodeWithPagedKVCacheWrapper,
                fake_kernels.BatchPrefillWithPagedKVCacheWrapper,
            )
            for method in ("__init__", "plan", "run")
        ),
    ],
)
def test_the_stand_ins_have_the_arguments_of_the_real_ones(
    module: str, name: str, stand_in: Any, device: torch.device
) -> None:
    """Else what the tests on CPUs prove is of no use here."""
    pytest.importorskip(module, exc_type=ImportError)
    real = import_module(module)
    for part in name.split("."):
        real = getattr(real, f"_{part}_impl", None) or getattr(real, part)  # newer releases wrap `plan`
    expected = [argument for argument in inspect.signature(stand_in).parameters if argument != "self"]
    found = [argument for argument in inspect.signature(inspect.unwrap(real)).parameters if argument in expected]
    assert found == expected
