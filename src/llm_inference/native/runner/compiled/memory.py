"""Memory for weights: one region in large pages, where the system has them, since all of it is read for each token."""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

import torch

from llm_inference.errors import OutOfMemoryError

_ALIGNMENT: Final = 64
_LARGE_PAGE: Final = 2 << 20


class Region:
    """Hands out parts of `num_bytes`, one behind the other. They live as long as any tensor in them."""

    def __init__(self, num_bytes: int) -> None:
        """Raises `OutOfMemoryError`."""
        try:
            memory = mmap.mmap(-1, max(num_bytes, 1) + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as exc:
            raise OutOfMemoryError(
                f"no memory for {num_bytes / 2**20:.0f} MiB of weights; choose a smaller `precision` or model"
            ) from exc
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._next = -self._bytes.data_ptr() % _LARGE_PAGE

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of `tensor`, at an address that is a multiple of 64."""
        size = tensor.nbytes
        part = self._bytes[self._next : self._next + size]
        assert len(part) == size, "the region is full"
        self._next += -(-size // _ALIGNMENT) * _ALIGNMENT
        copy = part.view(tensor.dtype).view(tensor.shape)
        return copy.copy_(tensor)
