"""Each kernel of the native engine against a plain reference: how far off it is, and how long both take.

References are computed in float64 from the same inputs; those of weight kernels know the exact weights, so that what
quantization costs is part of the error. Times are the best of several runs, in the engine's own number of threads
where nothing else is said. Imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import torch
import torch.nn.functional as F

from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.base import AttentionShape
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.attention.torch_attention import TorchAttention
from llm_inference.native.batch import ModelInput
from llm_inference.native.layers.kernels import DenseKernel, LinearKernel, OneDnnKernel
from llm_inference.native.layers.linear import Placement
from llm_inference.native.layers.norm import RMSNorm
from llm_inference.native.quantization.registry import QUANTIZATIONS, kernel_factory
from llm_inference.native.runner.compiled.build import find_or_build, obstacle
from llm_inference.native.runner.compiled.library import Library, Matrix
from llm_inference.native.runner.compiled.memory import Region
from llm_inference.native.runner.compiled.packing import FLOAT_BITS, float_panels, pack, round_weight
from llm_inference.sources.resolve import resolve
from llm_inference.telemetry.devices import available_cpus
from llm_inference.tools.compare.peaks import best_s

_TRIES = 10
#: Of attention: tokens that each sequence has behind it, and how many sequences decode at once at most.
_CONTEXT, _MOST_SEQUENCES = 300, 32
_BLOCK_SIZE = 16
_SEED = 0


class KernelResult(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: the root of the mean squared error over that of the mean squared reference. `reference_s` is the time of
    the framework's plain float32 operation on the same inputs; `num_bytes` what the weights take.
    """

    kernel: str
    shape: str
    rows: int
    error: float
    seconds: float
    reference_s: float
    num_bytes: int | None = None


class CompiledKernel:
    """The compiled runner's product with a matrix, on the calling thread. See `LinearKernel`."""

    preferred_rows = 1

    def __init__(self, library: Library, weight: torch.Tensor, bits: int) -> None:
        panels = float_panels(weight) if bits == FLOAT_BITS else pack(round_weight(weight, bits))
        self._library, self.num_bytes = library, panels.nbytes
        self._panels = Region(panels.nbytes).put(panels)
        outs, ins = weight.shape
        self._matrix = Matrix(panels=self._panels.data_ptr(), bias=None, outs=outs, ins=ins, bits=bits)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.empty(len(x), self._matrix.outs)
        x = x.contiguous()
        self._library.multiply(self._matrix, x.data_ptr(), len(x), y.data_ptr())
        return y if residual is None else y.add_(residual)


def run(model: str, rows: Sequence[int], *, quick: bool = False) -> list[KernelResult]:
    """All kernels on the shapes of `model`. Raises what resolving it raises."""
    torch.set_num_threads(available_cpus())
    if quick:
        shapes, hidden, heads, context = {"small": (96, 64)}, 64, AttentionShape(4, 2, 16, 0.25, (None,)), 20
    else:
        spec = ModelSpec.from_directory(resolve(model, progress=False).directory)
        shapes, hidden, context = matrix_shapes(spec), spec.hidden_size, _CONTEXT
        heads = AttentionShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim**-0.5, (None,))
    tries = 1 if quick else _TRIES
    with torch.inference_mode():
        sequences = sorted({min(count, _MOST_SEQUENCES) for count in rows})
        attention = [_attention(heads, count, context, tries) for count in sequences]
        return [*_linears(shapes, rows, tries), *_norms(hidden, rows, tries), *attention]


def matrix_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """The matrices of a layer as they are stored, fused where the engine fuses them, and the head: name → (out, in)."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "q, k, v": (q + 2 * kv, hidden),
        "attention output": (hidden, q),
        "gate, up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (spec.vocab_size, hidden),
    }


def render(results: Sequence[KernelResult]) -> str:
    """A Markdown table; the last line ends in a line feed."""
    rows: list[tuple[str, ...]] = [("Kernel", "Shape", "Rows", "Error", "Time", "Plain float32", "Ratio", "Weights")]
    for one in results:
        rows.append(
            (
                one.kernel,
                one.shape,
                str(one.rows),
                f"{one.error:.1e}",
                f"{one.seconds * 1e6:,.0f} µs",
                f"{one.reference_s * 1e6:,.0f} µs",
                f"{one.seconds / one.reference_s:.2f}",
                "" if one.num_bytes is None else f"{one.num_bytes / 2**20:,.1f} MiB",
            )
        )
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    rows.insert(1, tuple("-" * max(width, 3) for width in widths))
    lines = (" | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"| {line} |\n" for line in lines)


def to_json(results: Sequence[KernelResult]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(list(results)), indent=1) + b"\n"


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """See `KernelResult.error`."""
    exact = reference.double()
    return float(((value.double() - exact).square().mean() / exact.square().mean()).sqrt())


def _linears(shapes: dict[str, tuple[int, int]], rows: Sequence[int], tries: int) -> Iterator[KernelResult]:
    generator = torch.Generator().manual_seed(_SEED)
    library = None if obstacle() is not None else Library(find_or_build())
    for name, (out_features, in_features) in shapes.items():
        weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5
        kernels: dict[str, LinearKernel] = {"dense": DenseKernel(weight, None)}
        if OneDnnKernel.supports(weight.dtype, weight.device):
            kernels["oneDNN, packed"] = OneDnnKernel(weight, None)
        kernels |= {quantization: kernel_factory(quantization)(weight, None) for quantization in QUANTIZATIONS}
        if library is not None:
            kinds = {"float32": FLOAT_BITS, "int8": 8, "int4": 4}
            kernels |= {f"compiled {k}, 1 thread": CompiledKernel(library, weight, bits) for k, bits in kinds.items()}
        for count in rows:
            x = torch.randn(count, in_features, generator=generator)
            exact = x.double() @ weight.double().t()
            plain_s = best_s(lambda x=x, weight=weight: F.linear(x, weight), tries)  # type: ignore[misc]
            for kernel_name, kernel in kernels.items():
                yield KernelResult(
                    kernel=kernel_name,
                    shape=f"{name}: {in_features} → {out_features}",
                    rows=count,
                    error=relative_error(kernel(x), exact),
                    seconds=best_s(lambda x=x, kernel=kernel: kernel(x), tries),  # type: ignore[misc]
                    reference_s=plain_s,
                    num_bytes=kernel.num_bytes,
                )


def _norms(hidden: int, rows: Sequence[int], tries: int) -> Iterator[KernelResult]:
    generator = torch.Generator().manual_seed(_SEED)
    norm = RMSNorm(hidden, 1e-5, Placement(torch.float32, torch.device("cpu")))
    norm.weight.copy_(torch.randn(hidden, generator=generator))
    for count in rows:
        x = torch.randn(count, hidden, generator=generator)
        wide = x.double()
        exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()

        def plain(x: torch.Tensor = x) -> torch.Tensor:
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight

        yield KernelResult(
            kernel="RMS norm",
            shape=str(hidden),
            rows=count,
            error=relative_error(norm(x), exact),
            seconds=best_s(lambda x=x: norm(x), tries),  # type: ignore[misc]
            reference_s=best_s(plain, tries),
        )


def _attention(shape: AttentionShape, count: int, context: int, tries: int) -> KernelResult:
    """One decode of `count` sequences over the paged cache, beside fused attention on keys in one piece."""
    generator = torch.Generator().manual_seed(_SEED)
    device = torch.device("cpu")
    per_sequence = -(-context // _BLOCK_SIZE)
    cache = PagedKV(shape, per_sequence * count, _BLOCK_SIZE, torch.float32, device)
    kernel = TorchAttention(shape, cache, torch.float32, device)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv = torch.randn(count, context, width, generator=generator)
    tables = [list(range(index * per_sequence, (index + 1) * per_sequence)) for index in range(count)]

    def step(first: int, end: int) -> torch.Tensor:
        made = _step(tables, first, end)
        cache.begin_step(made)
        return kernel.begin(made, count * (end - first)).attend(0, qkv[:, first:end].reshape(-1, width).clone())

    step(0, context - 1)
    last = _step(tables, context - 1, context)
    attended = step(context - 1, context)
    sizes = [size * shape.head_dim for size in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)]
    q, k, v = torch.split(qkv, sizes, dim=-1)
    query = q[:, -1:].reshape(count, 1, shape.num_heads, shape.head_dim).transpose(1, 2)
    groups = shape.num_heads // shape.num_kv_heads
    key, value = (
        one.reshape(count, context, shape.num_kv_heads, shape.head_dim).transpose(1, 2).repeat_interleave(groups, 1)
        for one in (k, v)
    )
    scores = query.double() @ key.double().transpose(-1, -2) * shape.scale
    exact = (scores.softmax(-1) @ value.double()).transpose(1, 2).reshape(count, -1)
    begun = kernel.begin(last, count)
    row = qkv[:, -1].clone()
    return KernelResult(
        kernel="paged attention, torch",
        shape=f"{shape.num_heads} heads of {shape.head_dim}, context {context}",
        rows=count,
        error=relative_error(attended, exact),
        seconds=best_s(lambda: begun.attend(0, row), tries),
        reference_s=best_s(lambda: F.scaled_dot_product_attention(query, key, value, scale=shape.scale), tries),
    )


def _step(tables: list[list[int]], first: int, end: int) -> ModelInput:
    """Tokens `first` to `end` of every sequence."""
    positions = list(range(first, end))
    count = len(tables)
    return ModelInput(
        token_ids=[0] * (len(positions) * count),
        positions=positions * count,
        slot_mapping=[table[p // _BLOCK_SIZE] * _BLOCK_SIZE + p % _BLOCK_SIZE for table in tables for p in positions],
        query_lens=[len(positions)] * count,
        context_lens=[end] * count,
        block_tables=[table[: -(-end // _BLOCK_SIZE)] for table in tables],
        logits_indices=[],
        block_copies=[],
        num_decodes=count if len(positions) == 1 else 0,
    )
