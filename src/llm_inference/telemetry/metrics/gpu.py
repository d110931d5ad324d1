"""NVIDIA GPUs through NVML, the library that comes with the driver; nothing to install. Absent without one.

Names and numbers as in NVML's public header (nvml.h).
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

from llm_inference.telemetry.metrics.snapshot import Labels

logger = logging.getLogger(__name__)

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEMPERATURE_GPU = 0
_CLOCKS = (("sm", 1), ("mem", 2))
_NAME_BYTES = 96


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """All GPUs that the driver shows. What a device cannot tell is left out."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._devices = [(str(index), *found) for index in range(self._count()) if (found := self._device(index))]

    @classmethod
    def open(cls) -> Gpus | None:
        """None where there is no driver, or no GPU."""
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return None
        if library.nvmlInit_v2() != _SUCCESS:
            logger.info("NVML is there and does not start: no metrics of GPUs")
            return None
        gpus = cls(library)
        return gpus if gpus else None

    def __len__(self) -> int:
        return len(self._devices)

    def read(self) -> dict[str, list[tuple[Labels, float]]]:
        """By metric, then by (index, name of the product)."""
        figures: dict[str, list[tuple[Labels, float]]] = {}
        for index, name, handle in self._devices:
            for metric, more, value in self._figures(handle):
                figures.setdefault(metric, []).append(((index, name, *more), value))
        return figures

    def _figures(self, handle: Any) -> list[tuple[str, Labels, float]]:
        nvml = self._nvml
        found: list[tuple[str, Labels, float]] = []
        use, memory, number = _Utilization(), _Memory(), ctypes.c_uint()
        if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)) == _SUCCESS:
            found.append(("gpu_utilization_ratio", (), use.gpu / 100))
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _SUCCESS:
            found.append(("gpu_memory_used_bytes", (), float(memory.used)))
            found.append(("gpu_memory_bytes", (), float(memory.total)))
        if nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(number)) == _SUCCESS:
            found.append(("gpu_power_watts", (), number.value / 1000))
        if nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU, ctypes.byref(number)) == _SUCCESS:
            found.append(("gpu_temperature_celsius", (), float(number.value)))
        for name, clock in _CLOCKS:
            if nvml.nvmlDeviceGetClockInfo(handle, clock, ctypes.byref(number)) == _SUCCESS:
                found.append(("gpu_clock_hertz", (name,), number.value * 1e6))
        return found

    def _count(self) -> int:
        number = ctypes.c_uint()
        return number.value if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(number)) == _SUCCESS else 0

    def _device(self, index: int) -> tuple[str, Any] | None:
        handle = ctypes.c_void_p()
        if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != _SUCCESS:
            return None
        text = ctypes.create_string_buffer(_NAME_BYTES)
        known = self._nvml.nvmlDeviceGetName(handle, text, ctypes.c_uint(_NAME_BYTES)) == _SUCCESS
        return (text.value.decode("utf-8", "replace") if known else "", handle)
