"""From a graph to a request that can be run, and what the library is told about precision and threads."""

from __future__ import annotations

from typing import Any, Final

import openvino as ov
import torch

from llm_inference.errors import UnsupportedModelError
from llm_inference.native.runner.kv_format import KVFormat
from llm_inference.native.runner.openvino.graph import KV_TYPES, Graph

#: Divides `weights.GROUP_SIZE`. Without effect on matrices that are not quantized.
ACTIVATION_GROUP_SIZE: Final = 32

_TYPES: Final = {torch.float32: ov.Type.f32, torch.bfloat16: ov.Type.bf16}


def ov_type(dtype: torch.dtype) -> Any:
    """float32 or bfloat16, as the library calls it."""
    return _TYPES[dtype]


def compile_graph(
    graph: Graph, dtype: torch.dtype, kv: KVFormat, num_threads: int, *, count_nodes: bool = False
) -> Any:
    """An infer request. Raises `UnsupportedModelError` when the library has no kernels for the graph here.

    Nothing is left to the library's taste. Keys of 8 bits are scaled by token, where it would scale by channel over a
    block and round the block anew with every token that comes in. Threads are not pinned: two processes would pin
    theirs to the same CPUs. Before a product with int8 weights each row of the activations is rounded to 8 bits in
    groups of its own, whatever else is in the batch: twice as fast from a few rows on. `count_nodes`: each node
    is clocked, which costs a little.
    """
    kind = ov_type(dtype)
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_NUM_THREADS": num_threads,
        "ENABLE_HYPER_THREADING": True,  # the number of threads is decided; a half of it would stay idle
        "INFERENCE_PRECISION_HINT": kind,
        "KV_CACHE_PRECISION": KV_TYPES[kv.dtype],
        "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": ACTIVATION_GROUP_SIZE,
        "PERF_COUNT": count_nodes,
    }
    try:
        return ov.Core().compile_model(graph.model, "CPU", properties).create_infer_request()
    except RuntimeError as exc:
        raise UnsupportedModelError(
            f"openvino {ov.get_version()} cannot compile this model: {exc}. Set `runner: torch`."
        ) from exc
