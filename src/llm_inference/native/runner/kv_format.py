"""How keys and values are kept, and so what a token of the cache takes. Torch-free, since planning needs it too."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Final

from llm_inference.model_spec import DTYPE_BYTES, ModelSpec
from llm_inference.native.runner.choice import KVCacheDType, RunnerName

#: Machines on which openvino's attention reads a cache of 8 bits.
_EIGHT_BIT_MACHINES: Final = ("x86_64", "AMD64")
#: A float32 scale and a float32 zero point, kept behind the values that they belong to.
_SCALE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class KVFormat:
    """`dtype`: "float32", "float16", "bfloat16" or "uint8". `num_extra`: elements behind a head's values of a token."""

    dtype: str
    num_extra: int = 0

    def width(self, head_dim: int) -> int:
        """Elements of one token in one head."""
        return head_dim + self.num_extra

    def bytes_per_token(self, spec: ModelSpec) -> int:
        """Keys and values over all layers."""
        width = self.width(spec.head_dim)
        itemsize = 1 if self.dtype == "uint8" else int(DTYPE_BYTES[self.dtype])
        return 2 * spec.num_layers * spec.num_kv_heads * width * itemsize


def kv_format(
    runner: RunnerName,
    precision: str,
    quantization: str | None,
    kv_cache_dtype: KVCacheDType = "auto",
    *,
    architecture: str | None = None,
) -> KVFormat:
    """`kv_cache_dtype` as the choice of the runner has accepted it. "auto": the format of the computation, or 8 bits
    beside quantized weights where the runner can read them.

    Each token has its own scale in each head: what it becomes does not depend on its company or on chunks.
    """
    reads_eight_bit = runner == "compiled" or (
        runner == "openvino" and (architecture or platform.machine()) in _EIGHT_BIT_MACHINES
    )
    if kv_cache_dtype == "int8" or (quantization is not None and kv_cache_dtype == "auto" and reads_eight_bit):
        return KVFormat("uint8", _SCALE_BYTES)
    return KVFormat("float32" if runner == "compiled" else precision)
