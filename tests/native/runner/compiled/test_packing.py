"""Rounding against its definition, panels against what `linear.c` says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from llm_inference.native.runner.compiled.packing import (
    GROUP_BYTES,
    GROUP_SIZES,
    interleave_gate_up,
    pack,
    packed_bytes,
    round_weight,
)

SHAPES = [(32, 64), (33, 64), (5, 7), (70, 130), (96, 200)]


def weight_of(outs: int, ins: int) -> torch.Tensor:
    return torch.randn(outs, ins, generator=torch.Generator().manual_seed(outs * ins)) * 0.3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_is_off_by_half_a_step_at_most(bits: int, shape: tuple[int, int]) -> None:
    weight = weight_of(*shape)
    rounded = round_weight(weight, bits)
    size = {8: 64, 4: 32}[bits]
    steps = rounded.scales.float().repeat_interleave(size, 1)[:, : shape[1]]
    off = (rounded.widen(shape[1]) - weight).abs()
    # Half precision of scale and minimum may cost a little beyond it at the ends of a group.
    assert bool((off <= 0.5 * steps + 0.001 * weight.abs().max()).all())


def test_q4_1_blocks_come_back_as_they_were() -> None:
    """A scale and a minimum in half precision, and whole numbers of which 0 and 15 occur."""
    generator = torch.Generator().manual_seed(1)
    scale = torch.rand(40, 3, 1, generator=generator).half().float()
    minimum = -torch.rand(40, 3, 1, generator=generator).half().float()
    values = torch.randint(0, 16, (40, 3, 32), generator=generator)
    values[..., 0], values[..., 1] = 0, 15
    weight = (minimum + scale * values).flatten(1)
    assert torch.equal(round_weight(weight, 4).widen(96), weight)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [0.0, 3.0, -0.25])
def test_constant_rows(bits: int, value: float) -> None:
    weight = torch.full((3, 70), value)
    assert (round_weight(weight, bits).widen(70) - weight).abs().max() <= 0.002 * abs(value)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_stay_none(bits: int, value: float) -> None:
    """Their group of inputs is lost, and nothing beside it."""
    weight = torch.ones(3, 128)
    weight[1, 70] = value
    wide = round_weight(weight, bits).widen(128)
    assert wide[1, 64 : 64 + GROUP_SIZES[bits]].isnan().all()
    assert wide.isnan().sum() == GROUP_SIZES[bits]


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_beyond_half_precision_become_finite_ones(bits: int) -> None:
    weight = torch.tensor([[1e7, -1e7, 1.0, 0.0]])
    assert torch.isfinite(round_weight(weight, bits).widen(4)).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_of_8_bits(shape: tuple[int, int]) -> None:
    rounded = round_weight(weight_of(*shape), 8)
    panels = pack(rounded).numpy()
    assert panels.nbytes == packed_bytes(*shape, 8)
    for out in (0, 3, shape[0] - 1):
        panel, lane = panels[out // 32], out % 32
        for group in range(panels.shape[1]):
            quads = panel[group][:2048].reshape(16, 32, 4)
            np.testing.assert_array_equal(quads[:, lane].reshape(-1), rounded.values[out, group].numpy())
            assert panel[group][2048:].view(np.float16)[lane] == rounded.scales[out, group].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_panels_of_4_bits(shape: tuple[int, int]) -> None:
    rounded = round_weight(weight_of(*shape), 4)
    assert rounded.minima is not None
    panels = pack(rounded).numpy()
    assert panels.nbytes == packed_bytes(*shape, 4)
    for out in (0, 3, shape[0] - 1):
        panel, lane = panels[out // 32], out % 32
        for group in range(panels.shape[1]):
            pairs = panel[group][:512].reshape(4, 32, 4)[:, lane]
            both = np.stack((pairs & 15, pairs >> 4), axis=1).reshape(-1)
            np.testing.assert_array_equal(both, rounded.values[out, group].numpy())
            constants = panel[group][512:].view(np.float16)
            assert constants[lane] == rounded.scales[out, group].numpy()
            assert constants[32 + lane] == rounded.minima[out, group].numpy()


@pytest.mark.parametrize("bits", [8, 4])
def test_rows_behind_the_last_are_zero(bits: int) -> None:
    panels = pack(round_weight(torch.ones(5, 64), bits))
    assert panels.shape == (1, {8: 1, 4: 2}[bits], GROUP_BYTES[bits])
    scales = panels[0, 0, {8: 2048, 4: 512}[bits] :].view(torch.float16)
    assert not scales[5:32].any()


def test_gate_and_up_alternate_in_runs_of_sixteen() -> None:
    gate, up = torch.arange(20)[:, None], 100 + torch.arange(20)[:, None]
    both = interleave_gate_up(gate, up)[:, 0].tolist()
    assert both == [*range(16), *range(100, 116), *range(16, 20), *[0] * 12, *range(116, 120), *[0] * 12]
