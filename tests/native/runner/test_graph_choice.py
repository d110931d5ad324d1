"""Which batch sizes are recorded, and when none."""

from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.native.runner.graph_choice import GRAPH_BYTES, choose_graphs, graph_bytes, graph_sizes


@pytest.mark.parametrize(
    ("max_num_seqs", "expected"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (9, (1, 2, 4, 8, 9)),
        (30, (1, 2, 4, 8, 16, 24, 30)),
        (256, (1, 2, 4, *range(8, 257, 8))),
        (1000, (1, 2, 4, *range(8, 257, 8))),
    ],
)
def test_sizes(max_num_seqs: int, expected: tuple[int, ...]) -> None:
    assert graph_sizes(max_num_seqs) == expected


@pytest.mark.parametrize(
    ("requested", "device", "attention", "has_graphs"),
    [
        ("auto", "cuda", "flash_attn", True),
        ("auto", "cuda:1", "flashinfer", True),
        ("auto", "cuda", "sdpa", False),
        ("auto", "cpu", "sdpa", False),
        (False, "cuda", "flash_attn", False),
        (True, "cuda", "flashinfer", True),
    ],
)
def test_choice(requested: Any, device: str, attention: Any, has_graphs: bool) -> None:
    choice = choose_graphs(requested, device=device, attention=attention, max_num_seqs=16)
    assert bool(choice.sizes) == has_graphs
    assert choice.reason


@pytest.mark.parametrize(
    ("device", "attention", "reason"),
    [("cpu", "sdpa", "an NVIDIA GPU, and the device is cpu"), ("cuda", "sdpa", "with attention sdpa")],
)
def test_asked_for_and_not_to_be_had(device: str, attention: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"cuda_graphs: true cannot be had: .*{reason}"):
        choose_graphs(True, device=device, attention=attention, max_num_seqs=16)


def test_bytes() -> None:
    """The largest batch's logits and activations once, and each graph's own."""
    shapes = {"vocab_size": 1000, "hidden_size": 10, "intermediate_size": 20}
    assert graph_bytes((), **shapes) == 0
    assert graph_bytes((1, 2, 4), **shapes) == 3 * GRAPH_BYTES + 4 * (12000 + 4 * (60 + 60))
