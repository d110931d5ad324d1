"""Weight-only quantizations that are made while loading: name → kernel."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from llm_inference.errors import UnsupportedModelError
from llm_inference.native.layers.kernels import make_kernel
from llm_inference.native.layers.linear import KernelFactory

#: name → "module:Class", called with a dense weight and a bias.
QUANTIZATIONS: Final = {
    "int8": "llm_inference.native.quantization.int8:Int8Kernel",
    "int4": "llm_inference.native.quantization.int4:Int4Kernel",
}


def kernel_factory(quantization: str | None) -> KernelFactory:
    """None: unquantized. Raises `UnsupportedModelError` listing what is known."""
    if quantization is None:
        return make_kernel
    if quantization not in QUANTIZATIONS:
        raise UnsupportedModelError(
            f"the native engine cannot quantize to {quantization!r} while loading; it can to "
            f"{', '.join(QUANTIZATIONS)}. For a checkpoint quantized beforehand choose another engine (`engine:`)."
        )
    module, _, name = QUANTIZATIONS[quantization].partition(":")
    return cast(KernelFactory, getattr(import_module(module), name))
