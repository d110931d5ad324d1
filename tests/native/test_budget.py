"""Memory arithmetic against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import OutOfMemoryError
from llm_inference.native.budget import GIB, MemoryNeeds, plan_memory

MIB = 2**20

NEEDS = MemoryNeeds(
    weight_bytes=4 * GIB,
    kv_bytes_per_token=MIB,
    workspace_bytes=GIB,
    alternatives={"int8": 1 * GIB, "int4": GIB // 2},
)


def plan(needs: MemoryNeeds = NEEDS, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "available_bytes": 20 * GIB,
        "utilization": 0.5,
        "kv_cache_bytes": None,
        "default_kv_bytes": None,
        "max_model_len": 1024,
        "max_num_seqs": 64,
        "block_size": 16,
    }
    return plan_memory(needs, **{**arguments, **changes})


def test_what_is_left_of_the_share_becomes_the_cache() -> None:
    # 20 GiB x 0.5 - 4 - 1 = 5 GiB; a block of 16 tokens takes 16 MiB: 320 blocks.
    assert plan().num_kv_blocks == 320
    assert plan().kv_cache_bytes == 5 * GIB


def test_never_more_than_every_sequence_can_use() -> None:
    # 2 sequences of 1,024 tokens: 128 blocks of 16.
    result = plan(max_num_seqs=2)
    assert result.num_kv_blocks == 128
    assert "max_num_seqs=2" in result.reason


def test_the_default_bounds_a_cpu_but_never_below_one_sequence() -> None:
    assert plan(default_kv_bytes=2 * GIB).kv_cache_bytes == 2 * GIB
    assert plan(default_kv_bytes=MIB).kv_cache_bytes == GIB


def test_the_users_own_number_goes_first() -> None:
    result = plan(kv_cache_bytes=3 * GIB, default_kv_bytes=MIB)
    assert result.num_kv_blocks == 192
    assert "kv_cache_memory" in result.reason


def test_the_users_number_is_too_small_for_one_sequence() -> None:
    with pytest.raises(OutOfMemoryError, match=r"kv_cache_memory is 0.50 GiB.* max_model_len to at most 512"):
        plan(kv_cache_bytes=512 * MIB)


def test_the_users_number_is_more_than_there_is() -> None:
    with pytest.raises(OutOfMemoryError, match=r"20\.00 GiB can be used"):
        plan(kv_cache_bytes=16 * GIB)


def test_refusal_names_the_parts_and_a_shorter_context_that_fits() -> None:
    # 11 GiB x 0.5 - 5 GiB leaves half a GiB: 512 tokens.
    with pytest.raises(OutOfMemoryError) as caught:
        plan(available_bytes=11 * GIB)
    message = caught.value.message
    assert "4.00 GiB for weights" in message
    assert "1.00 GiB of KV cache for 1024 tokens" in message
    assert "max_model_len to at most 512" in message
    assert plan(available_bytes=11 * GIB, max_model_len=512).num_kv_blocks == 32


def test_refusal_names_a_quantization_that_fits() -> None:
    # 8 GiB x 0.5 = 4 GiB: no room beside 4 GiB of weights, but int8 leaves 2 GiB.
    with pytest.raises(OutOfMemoryError, match=r"set precision: int8 \(1.00 GiB of weights\)"):
        plan(available_bytes=8 * GIB)


def test_refusal_when_nothing_helps() -> None:
    with pytest.raises(OutOfMemoryError, match="a smaller model"):
        plan(available_bytes=GIB)
