"""Rotary position embedding (arXiv:2104.09864) and the scalings that lengthen it.

A head's dimensions are turned in pairs (i, i + d/2). The rows of the query and key projections are reordered once at
load so that the partners lie side by side; a pair is then one complex number and the rotation one multiplication in
place. Scores do not change, since queries and keys are reordered alike; nothing outside sees the order.
"""

from __future__ import annotations

import math

import torch

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import RopeSpec

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class RotaryEmbedding:
    """Frequencies of one kind of rotation."""

    def __init__(self, head_dim: int, rope: RopeSpec, *, original_context: int, device: torch.device) -> None:
        """`original_context`: tokens that the model was first trained for, where `rope` itself does not say.

        Raises `UnsupportedModelError` for an unknown type, `SourceError` for a missing or malformed parameter.
        """
        frequencies, scale = inverse_frequencies(head_dim, rope, original_context)
        self._frequencies = frequencies.to(device)
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device)

    def rotation(self, positions: torch.Tensor) -> torch.Tensor:
        """`[tokens]` → complex64 `[tokens, 1, head_dim / 2]`, to multiply any number of heads with."""
        angles = positions.to(torch.float32)[:, None] * self._frequencies
        return torch.polar(self._scale.expand_as(angles), angles)[:, None, :]


def rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Turn `heads [tokens, heads, head_dim]` (partners side by side) in place; half precision goes through float32."""
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        turned = torch.view_as_complex(pairs.float()).mul_(rotation)
        pairs.copy_(torch.view_as_real(turned))


def rotated(heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """`rotate_` as a new tensor, of real numbers alone. `rotation [tokens, 1, head_dim / 2, 2]`: cosines and sines."""
    even, odd = heads.float().view(*heads.shape[:-1], -1, 2).unbind(-1)
    cos, sin = rotation.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(heads.dtype)


def interleave(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder rows `[heads · head_dim, …]` from halves (0, 1, …, d/2, …) to partners side by side (0, d/2, 1, …)."""
    half = head_dim // 2
    shape = rows.shape
    return rows.reshape(-1, 2, half, *shape[1:]).transpose(1, 2).reshape(shape)


def inverse_frequencies(head_dim: int, rope: RopeSpec, original_context: int) -> tuple[torch.Tensor, float]:
    """Angle per position for each pair, float32 `[head_dim / 2]`, and the factor on queries and keys."""
    if rope.rope_type not in ROPE_TYPES or rope.partial_rotary_factor != 1.0:
        what = (
            f"rope type {rope.rope_type!r}" if rope.rope_type not in ROPE_TYPES else "rotation of a part of each head"
        )
        raise UnsupportedModelError(
            f"config.json: {what} is not known to the native engine; known types are {', '.join(ROPE_TYPES)}. "
            "Serve the model with another engine (`engine:` in the configuration)."
        )
    original = float(rope.original_max_position_embeddings or original_context)
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.rope_type == "linear":
        return plain / rope.factor, 1.0
    if rope.rope_type == "llama3":
        return _llama3(plain, rope, original), 1.0
    if rope.rope_type == "yarn":
        return _yarn(plain, head_dim, rope, original)
    return plain, 1.0


def _llama3(plain: torch.Tensor, rope: RopeSpec, original: float) -> torch.Tensor:
    """Slow pairs are stretched by `factor`, fast ones kept, those between blended (Llama 3.1)."""
    low = _number(rope, "low_freq_factor")
    high = _number(rope, "high_freq_factor")
    turns = original * plain / (2 * math.pi)  # full turns within the original context
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(plain: torch.Tensor, head_dim: int, rope: RopeSpec, original: float) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv:2309.00071): interpolate slow pairs, keep fast ones, sharpen attention by a factor on q and k."""

    def magnitude(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    def pair_turning(turns: float) -> float:
        """The (fractional) pair that makes `turns` full turns within the original context."""
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    if rope.parameters.get("attention_factor") is not None:
        scale = _number(rope, "attention_factor")
    elif rope.parameters.get("mscale") and rope.parameters.get("mscale_all_dim"):
        scale = magnitude(_number(rope, "mscale")) / magnitude(_number(rope, "mscale_all_dim"))
    else:
        scale = magnitude(1.0)
    first = pair_turning(_number(rope, "beta_fast", 32.0))
    last = pair_turning(_number(rope, "beta_slow", 1.0))
    if rope.parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first if last != first else 1e-3
    stretch = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return stretch * plain / rope.factor + (1 - stretch) * plain, scale


def _number(rope: RopeSpec, key: str, default: float | None = None) -> float:
    value = rope.parameters.get(key)
    if value is None:
        value = default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise SourceError(f"config.json: the rope parameter {key!r} must be a positive number, not {value!r}")
    return float(value)
