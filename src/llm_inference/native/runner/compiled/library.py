"""The C interface of `step.h` in Python: its structs, its functions with their types, its errors as ours. Torch-free.

Arrays are numpy's or anything else that has an address; whoever passes one keeps it alive.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import ClassVar, Final

from llm_inference.errors import EngineError, OutOfMemoryError, StartupError, UnsupportedModelError

#: `LLM_ABI_VERSION` of the header that this file was written for.
ABI_VERSION: Final = 2
#: `LLM_SILU` and so on, by the names of config.json.
ACTIVATIONS: Final = {
    "silu": 0,
    "swish": 0,
    "gelu": 1,
    "gelu_new": 2,
    "gelu_pytorch_tanh": 2,
    "relu": 3,
}
#: Heads may be as wide, in whole quads.
MAX_HEAD_DIM: Final = 256
HEAD_DIM_STEP: Final = 4

_OK, _OUT_OF_MEMORY, _NO_THREADS = range(3)


class Matrix(ctypes.Structure):
    """`llm_matrix`."""

    _fields_: ClassVar = [
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("outs", c_int32),
        ("ins", c_int32),
        ("bits", c_int32),
    ]


class Layer(ctypes.Structure):
    """`llm_layer`."""

    _fields_: ClassVar = [
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("window", c_int32),
    ]


class Model(ctypes.Structure):
    """`llm_model`."""

    _fields_: ClassVar = [
        ("num_layers", c_int32),
        ("hidden_size", c_int32),
        ("inner_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab_size", c_int32),
        ("activation", c_int32),
        ("cache_bits", c_int32),
        ("norm_epsilon", c_float),
        ("rope_scale", c_float),
        ("frequencies", c_void_p),
        ("last_norm", c_void_p),
        ("layers", POINTER(Layer)),
        ("embedding", Matrix),
        ("head", Matrix),
    ]


class Step(ctypes.Structure):
    """`llm_step`."""

    _fields_: ClassVar = [
        ("num_tokens", c_int32),
        ("num_sequences", c_int32),
        ("num_rows", c_int32),
        ("num_logits", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_begins", c_void_p),
        ("block_begins", c_void_p),
        ("block_ids", c_void_p),
        ("rows", c_void_p),
        ("logits", c_void_p),
        ("hidden", c_void_p),
    ]


class Library:
    """The functions of one shared library."""

    def __init__(self, path: Path) -> None:
        """Raises `StartupError` for a file that cannot be loaded or belongs to another version."""
        self.path: Final = path
        try:
            self._library = ctypes.CDLL(str(path))
            self._library.llm_abi_version.restype = c_int32
            version = self._library.llm_abi_version()
        except (OSError, AttributeError) as exc:
            raise StartupError(
                f"{path}: cannot be loaded as the compiled runner's library ({exc}); remove the file, or set "
                "`runner: openvino` or `torch`"
            ) from exc
        if version != ABI_VERSION:
            raise StartupError(
                f"{path}: is of version {version} of the compiled runner, and {ABI_VERSION} is needed; remove the file"
            )
        self._library.llm_instruction_set.restype = c_char_p
        self._library.llm_create.restype = c_void_p
        self._library.llm_create.argtypes = [POINTER(Model), c_int32, POINTER(c_int32)]
        self._library.llm_set_cache.restype = None
        self._library.llm_set_cache.argtypes = [c_void_p, c_void_p, c_int64]
        self._library.llm_run_step.restype = c_int32
        self._library.llm_run_step.argtypes = [c_void_p, POINTER(Step)]
        self._library.llm_destroy.restype = None
        self._library.llm_destroy.argtypes = [c_void_p]
        self._library.llm_multiply.restype = c_int32
        self._library.llm_multiply.argtypes = [POINTER(Matrix), c_void_p, c_int32, c_void_p]

    @property
    def instruction_set(self) -> str:
        """What the kernels were compiled for, such as "avx512-vnni" or "generic"."""
        return bytes(self._library.llm_instruction_set()).decode()

    def create(self, model: Model, num_threads: int) -> Native:
        """Raises `OutOfMemoryError`, `EngineError` when no threads are to be had, `UnsupportedModelError`."""
        error = c_int32()
        handle = self._library.llm_create(ctypes.byref(model), num_threads, ctypes.byref(error))
        if handle:
            return Native(self._library, handle, model)
        if error.value == _OUT_OF_MEMORY:
            raise OutOfMemoryError("no memory for the compiled runner; free some, or choose a smaller model")
        if error.value == _NO_THREADS:
            raise EngineError(
                f"the system gives no {num_threads} threads to the compiled runner; raise the limit of processes, or "
                "set `num_threads` lower"
            )
        raise UnsupportedModelError(
            f"heads of {model.head_dim} dimensions are none for the compiled runner: a multiple of {HEAD_DIM_STEP} up "
            f"to {MAX_HEAD_DIM} is needed; set `runner: torch`"
        )

    def multiply(self, matrix: Matrix, x: int, num_tokens: int, out: int) -> None:
        """float32 at the address `x` `[num_tokens, ins]` → at `out` `[num_tokens, outs]`, on this thread."""
        _check(self._library.llm_multiply(ctypes.byref(matrix), x, num_tokens, out))


class Native:
    """A runner on the other side. What its model points to must outlive it."""

    def __init__(self, library: ctypes.CDLL, handle: int, model: Model) -> None:
        self._process = os.getpid()
        self._library = library
        self._handle: int | None = handle
        self._model = model  # a late thread may still look at it

    def set_cache(self, address: int, num_blocks: int) -> None:
        self._library.llm_set_cache(self._handle, address, num_blocks)

    def run(self, step: Step) -> None:
        """One step, without the interpreter's lock. Raises `EngineError` when memory is short."""
        _check(self._library.llm_run_step(self._handle, ctypes.byref(step)))

    def close(self) -> None:
        """Ends its threads. Any number of times. Nothing in a fork of the process: its threads are not there, and to
        wait for them would be for ever."""
        if self._handle is not None:
            if self._process == os.getpid():
                self._library.llm_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


def _check(result: int) -> None:
    if result != _OK:
        raise EngineError("no memory for a step of this size; lower `max_num_batched_tokens`")
