"""The kernels against whole numbers in numpy, and what the door to them refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from llm_inference.errors import EngineError, OutOfMemoryError, StartupError, UnsupportedModelError
from llm_inference.native.runner.compiled.library import Library, Matrix, Model
from llm_inference.native.runner.compiled.memory import Region
from llm_inference.native.runner.compiled.packing import (
    FLOAT_BITS,
    GROUP_SIZES,
    ROUNDED_GROUP,
    Rounded,
    float_panels,
    pack,
    round_weight,
)

Array = npt.NDArray[np.float32]


def multiply(library: Library, rounded: Rounded, ins: int, x: Array, bias: Array | None = None) -> Array:
    packed = pack(rounded)
    panels = Region(packed.nbytes).put(packed)
    outs = len(rounded.values)
    padded = np.zeros(-(-outs // 32) * 32, np.float32)
    if bias is not None:
        padded[:outs] = bias
    matrix = Matrix(
        panels=panels.data_ptr(),
        bias=None if bias is None else padded.ctypes.data,
        outs=outs,
        ins=ins,
        bits=8 if rounded.minima is None else 4,
    )
    out = np.full((len(x), outs), np.nan, np.float32)
    library.multiply(matrix, x.ctypes.data, len(x), out.ctypes.data)
    return out


def multiply_floats(library: Library, weight: torch.Tensor, x: Array, bias: Array | None = None) -> Array:
    panels = float_panels(weight)
    kept = Region(panels.nbytes).put(panels)
    outs, ins = weight.shape
    padded = np.zeros(-(-outs // 32) * 32, np.float32)
    padded[:outs] = 0 if bias is None else bias
    matrix = Matrix(panels=kept.data_ptr(), bias=padded.ctypes.data, outs=outs, ins=ins, bits=FLOAT_BITS)
    out = np.full((len(x), outs), np.nan, np.float32)
    library.multiply(matrix, x.ctypes.data, len(x), out.ctypes.data)
    return out


def in_whole_numbers(rounded: Rounded, x: Array) -> npt.NDArray[np.float64]:
    """The same products, summed in integers within a group and in float64 over groups."""
    outs, groups, size = rounded.values.shape
    padded = np.zeros((len(x), groups * size), np.float32)
    padded[:, : x.shape[1]] = x
    grouped = padded.reshape(len(x), -1, ROUNDED_GROUP)
    largest = np.abs(grouped).max(-1, keepdims=True)
    values = np.rint(grouped * np.divide(np.float32(127), largest, where=largest > 0, out=np.zeros_like(largest)))
    values = values.astype(np.int64)
    scales = (largest / np.float32(127)).astype(np.float64)[..., 0]
    weights = rounded.values.numpy().astype(np.int64).reshape(outs, -1, ROUNDED_GROUP)
    if rounded.minima is None:
        weights -= 128
    sums = np.einsum("tgi,ogi->tog", values, weights).astype(np.float64)
    weight_scales = rounded.scales.double().numpy().repeat(size // ROUNDED_GROUP, axis=1)
    y = np.einsum("tog,tg,og->to", sums, scales, weight_scales)
    if rounded.minima is not None:
        y += np.einsum("tg,tg,og->to", values.sum(-1).astype(np.float64), scales, rounded.minima.double().numpy())
    return y


@pytest.mark.parametrize("shape", [(32, 64), (16, 32), (101, 64), (70, 130), (64, 96), (33, 1000)])
@pytest.mark.parametrize("bits", [8, 4])
def test_products_are_those_of_whole_numbers(library: Library, bits: int, shape: tuple[int, int]) -> None:
    outs, ins = shape
    generator = np.random.default_rng(outs)
    rounded = round_weight(torch.from_numpy(generator.normal(size=shape).astype(np.float32)), bits)
    bias = generator.normal(size=outs).astype(np.float32)
    for num_tokens in (1, 2, 3, 4, 5, 6, 7, 13):
        x = generator.normal(size=(num_tokens, ins)).astype(np.float32) * 3
        x[:, 0] = 40  # a value that stands out, as models have them
        x[-1, :64] = 0
        expected = in_whole_numbers(rounded, x)
        tolerance = 1e-5 * np.abs(expected).max() + 1e-6
        np.testing.assert_allclose(multiply(library, rounded, ins, x), expected, rtol=0, atol=tolerance)
        np.testing.assert_allclose(multiply(library, rounded, ins, x, bias), expected + bias, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(32, 64), (16, 32), (101, 64), (70, 130), (64, 96), (33, 1000), (1, 1)])
def test_products_with_floats(library: Library, shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(shape[0])
    weight = generator.normal(size=shape).astype(np.float32)
    bias = generator.normal(size=shape[0]).astype(np.float32)
    x = generator.normal(size=(300, shape[1])).astype(np.float32)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    # As many roundings as there are products, each of at most half a unit in the last place.
    tolerance = 6e-8 * shape[1] * np.abs(x).max() * np.abs(weight).max() + 1e-6
    together = multiply_floats(library, torch.from_numpy(weight), x, bias)
    np.testing.assert_allclose(together, expected, rtol=0, atol=tolerance)
    for num_tokens in (1, 2, 3, 5, 11, 12, 13, 24, 25, 37, 100):
        some = np.ascontiguousarray(x[-num_tokens:])
        np.testing.assert_array_equal(
            multiply_floats(library, torch.from_numpy(weight), some, bias), together[-num_tokens:]
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_floats_that_are_no_numbers_spoil_their_token_and_no_other(library: Library, value: float) -> None:
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=(40, 96)).astype(np.float32))
    x = np.ones((30, 96), np.float32)
    expected = multiply_floats(library, weight, x)
    x[7, 50] = value
    out = multiply_floats(library, weight, x)
    assert not np.isfinite(out[7]).any()
    np.testing.assert_array_equal(np.delete(out, 7, 0), np.delete(expected, 7, 0))


@pytest.mark.parametrize("bits", [8, 4])
def test_the_largest_sums_do_not_overflow(library: Library, bits: int) -> None:
    """Weights and activations at the ends of their ranges, of either sign."""
    size = GROUP_SIZES[bits]
    for sign in (1.0, -1.0):
        rounded = round_weight(torch.full((32, 4 * size), sign), bits)
        x = np.full((3, 4 * size), 2.0, np.float32)
        np.testing.assert_allclose(multiply(library, rounded, 4 * size, x), sign * 8.0 * size, rtol=1e-3)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_token_gets_the_same_bits_in_any_company(library: Library, bits: int) -> None:
    generator = np.random.default_rng(3)
    rounded = round_weight(torch.from_numpy(generator.normal(size=(70, 200)).astype(np.float32)), bits)
    x = generator.normal(size=(17, 200)).astype(np.float32)
    together = multiply(library, rounded, 200, x)
    for begin in range(17):
        for size in range(1, 8):
            some = np.ascontiguousarray(x[begin : begin + size])
            np.testing.assert_array_equal(multiply(library, rounded, 200, some), together[begin : begin + size])


def test_activations_of_zero_give_the_bias(library: Library) -> None:
    rounded = round_weight(torch.ones(40, 64), 8)
    bias = np.arange(40, dtype=np.float32)
    out = multiply(library, rounded, 64, np.zeros((2, 64), np.float32), bias)
    np.testing.assert_array_equal(out, np.stack([bias, bias]))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_spoil_their_token_and_no_other(library: Library, bits: int, value: float) -> None:
    """Wherever they stand: an answer from them must not look like one."""
    rounded = round_weight(torch.from_numpy(np.random.default_rng(4).normal(size=(40, 96)).astype(np.float32)), bits)
    for at in range(96):
        x = np.ones((3, 96), np.float32)
        x[1, at] = value
        out = multiply(library, rounded, 96, x)
        assert np.isnan(out[1]).all()
        np.testing.assert_array_equal(out[[0, 2]], multiply(library, rounded, 96, np.ones((2, 96), np.float32)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_ends_without_the_threads_that_it_does_not_have(library: Library) -> None:
    """In a process of its own, since this one has other threads."""
    script = """
import os, sys
from pathlib import Path
from llm_inference.native.runner.compiled.library import Library, Model
model = Model(hidden_size=64, inner_size=64, num_heads=2, num_kv_heads=1, head_dim=64, cache_bits=8)
native = Library(Path(sys.argv[1])).create(model, 3)
child = os.fork()
native.close()
native.close()
assert child == 0 or os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", script, library.path], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_it_says_what_it_was_compiled_for(library: Library) -> None:
    assert library.instruction_set in {"avx512-vnni", "avx512", "avx-vnni", "avx2", "generic"}


@pytest.mark.parametrize(("head_dim", "cache_bits"), [(18, 8), (260, 8), (18, 32), (260, 32)])
def test_heads_that_it_cannot_do(library: Library, head_dim: int, cache_bits: int) -> None:
    sizes = {"num_layers": 1, "hidden_size": 64, "inner_size": 64, "num_heads": 2, "num_kv_heads": 1}
    model = Model(**sizes, head_dim=head_dim, cache_bits=cache_bits)
    with pytest.raises(UnsupportedModelError, match=f"heads of {head_dim} dimensions .*runner: torch"):
        library.create(model, 1)


class Refusing:
    """In the place of the shared library: makes no runner, for the reason that it is told."""

    def __init__(self, error: int) -> None:
        self._error = error

    def llm_create(self, model: object, num_threads: int, error: Any) -> None:
        error._obj.value = self._error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (1, OutOfMemoryError, "no memory for the compiled runner"),
        (2, EngineError, "gives no 7 threads to the compiled runner; raise the limit of processes"),
    ],
)
def test_what_the_system_refuses(
    library: Library, error: int, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_library", Refusing(error))
    with pytest.raises(kind, match=message):
        library.create(Model(), 7)


def test_memory_that_is_not_there(library: Library) -> None:
    matrix = Matrix(panels=None, bias=None, outs=32, ins=2**31 - 65, bits=8)
    with pytest.raises(EngineError, match="no memory for a step of this size; lower `max_num_batched_tokens`"):
        library.multiply(matrix, 0, 2**31 - 1, 0)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "step.so"
    path.write_bytes(b"no library")
    with pytest.raises(StartupError, match=r"step\.so: cannot be loaded as the compiled runner's library"):
        Library(path)


def test_a_library_of_something_else() -> None:
    import ctypes.util

    path = ctypes.util.find_library("m")
    if path is None:
        pytest.skip("no library of the system to try with")
    with pytest.raises(StartupError, match="cannot be loaded as the compiled runner's library"):
        Library(Path(path))


def test_out_of_memory_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemoryError, match="MiB of weights; choose a smaller"):
        Region(1 << 62)
