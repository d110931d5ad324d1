"""`compile: true`: the parts of a decoder between its attentions, compiled by torch for any number of rows.

Attention stays as it is: it reads tables that change from step to step. The functions that are compiled are the same in
all layers, so one program serves them all, whatever the number of rows above one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from llm_inference.errors import ConfigError, StartupError
from llm_inference.native.layers.kernels import DenseKernel
from llm_inference.native.layers.linear import KernelFactory
from llm_inference.native.models.base import CausalLM, CompilableLM
from llm_inference.native.quantization.registry import kernel_factory

logger = logging.getLogger(__name__)

#: A step of one row would get a program of its own: 1 is a number that compilers take for granted.
MIN_ROWS: Final = 2


def compilable_kernels(quantization: str | None) -> KernelFactory:
    """Kernels that a compiler can see into: packed weights are opaque to it."""
    return DenseKernel if quantization is None else kernel_factory(quantization)


def compile_layers(model: CausalLM) -> None:
    """Nothing is compiled before the first steps. Raises `ConfigError` for a model that cannot be."""
    if not isinstance(model, CompilableLM):
        raise ConfigError(
            f"compile: true cannot be had: {type(model).__name__} does not say which parts of it can be compiled; "
            "leave `compile` out"
        )
    model.compile_layers(_compiled)


@contextmanager
def compiling() -> Iterator[None]:
    """Around the first steps. Raises `StartupError` where there is no compiler to compile with; logs the time."""
    begun = time.monotonic()
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as exc:
        cause = getattr(exc, "inner_exception", exc)
        reason = str(cause).strip().partition("\n")[0] or type(cause).__name__
        raise StartupError(
            f"compile: true failed ({reason}); on a CPU it needs a C++ compiler such as g++, on a GPU triton "
            "and a C compiler; install them, or leave `compile` out"
        ) from exc
    logger.info("compiled the layers in %.1f s", time.monotonic() - begun)


def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, dynamic=True, fullgraph=True)
