"""From host to device without waiting for it: the numbers of one step in one copy, from pinned memory.

    tensors on the host  ─►  ▓a▓b▓▓▓▓c▓ one pinned buffer  ── one copy ──►  the same bytes on the device, as views

A copy from pinned memory may still be under way when the next step is prepared, so there are two such buffers, each
with a mark of when it may be written again. On a CPU nothing is packed or copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

#: Every tensor begins where the widest loads of a kernel may begin.
_ALIGNMENT: Final = 16
_NUM_BUFFERS: Final = 2


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in the bytes of all of them."""

    start: int
    shape: torch.Size
    dtype: torch.dtype

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        num_bytes = self.shape.numel() * self.dtype.itemsize
        return buffer[self.start : self.start + num_bytes].view(self.dtype).view(self.shape)


class Mark:
    """How far a device had come. Of a CPU nothing is to be waited for."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def set(self) -> None:
        """Behind all that has been given to the device so far."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Until the device is past it; not at all where it was never set."""
        if self._event is not None:
            self._event.synchronize()


class _HostBuffers:
    """Pinned memory to pack into, larger when more is needed."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = device.type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(_NUM_BUFFERS)]
        self._free = [Mark(device) for _ in range(_NUM_BUFFERS)]
        self._next = 0

    def copy(self, tensors: Sequence[torch.Tensor], places: Sequence[_Place], target: torch.Tensor) -> None:
        """Pack `tensors` and start their copy to `target`, which has as many bytes as all of them take."""
        index, self._next = self._next, (self._next + 1) % _NUM_BUFFERS
        self._free[index].wait()  # the step before the last one: long done
        if len(self._buffers[index]) < len(target):
            self._buffers[index] = torch.empty(2 * len(target), dtype=torch.uint8, pin_memory=self._pinned)
        packed = self._buffers[index][: len(target)]
        for tensor, place in zip(tensors, places, strict=True):
            place.of(packed).copy_(tensor)
        target.copy_(packed, non_blocking=True)
        self._free[index].set()


class Courier:
    """Takes what a step needs to the device. `pack` False: hands the tensors through, as is right for a CPU."""

    def __init__(self, device: torch.device, *, pack: bool | None = None) -> None:
        """`pack` None: unless the device is the CPU."""
        self._device = device
        self._pack = device.type != "cpu" if pack is None else pack
        self._host = _HostBuffers(device)

    def send(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`tensors` of the host → the same on the device, in order. The copy is ordered before later kernels."""
        if not self._pack:
            return list(tensors)
        places, size = _lay_out(tensors)
        arrived = torch.empty(size, dtype=torch.uint8, device=self._device)
        if size:
            self._host.copy(tensors, places, arrived)
        return [place.of(arrived) for place in places]


class StaticParcel:
    """Tensors that stay where they are on the device, to be overwritten in one copy: what a CUDA graph reads."""

    def __init__(self, like: Sequence[torch.Tensor], device: torch.device) -> None:
        """Room for tensors of the shapes and types of `like`, and their values as the first ones."""
        self._places, size = _lay_out(like)
        self._target = torch.empty(size, dtype=torch.uint8, device=device)
        self._host = _HostBuffers(device)
        self.tensors = [place.of(self._target) for place in self._places]
        self.fill(like)

    @property
    def num_bytes(self) -> int:
        return len(self._target)

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """New values, of the same shapes and types."""
        for tensor, place in zip(tensors, self._places, strict=True):
            assert tensor.shape == place.shape, f"a static input of {list(place.shape)} got {list(tensor.shape)}"
            assert tensor.dtype == place.dtype, f"a static input of {place.dtype} got {tensor.dtype}"
        self._host.copy(tensors, self._places, self._target)


def to_device(values: object, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A few numbers of the host as a tensor on the device. Not through pageable memory, whose copies wait for all that
    was queued before."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _lay_out(tensors: Sequence[torch.Tensor]) -> tuple[list[_Place], int]:
    places, end = [], 0
    for tensor in tensors:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append(_Place(start, tensor.shape, tensor.dtype))
        end = start + tensor.nbytes
    return places, end
