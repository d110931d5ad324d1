"""NVML through a fake library that fills in what the real one would."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.metrics.gpu import Gpus
from llm_inference.telemetry.metrics.machine import Machine
from llm_inference.telemetry.metrics.table import METRICS

_NOT_SUPPORTED = 3


class FakeNvml:
    """Two GPUs; the second cannot tell its power."""

    def __init__(self, num_devices: int = 2) -> None:
        self.num_devices = num_devices

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.num_devices
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:
        text.value = f"Fake {handle.value}".encode()
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = 37
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 80 * 2**30, 60 * 2**30
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, milliwatts: Any) -> int:
        milliwatts._obj.value = 312_500
        return _NOT_SUPPORTED if handle.value == 2 else 0

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, degrees: Any) -> int:
        assert sensor == 0
        degrees._obj.value = 64
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int, megahertz: Any) -> int:
        megahertz._obj.value = {1: 1410, 2: 1593}[clock]
        return 0


def test_what_a_gpu_says() -> None:
    figures = Gpus(FakeNvml()).read()
    assert figures["gpu_utilization_ratio"] == [(("0", "Fake 1"), 0.37), (("1", "Fake 2"), 0.37)]
    assert figures["gpu_memory_used_bytes"][0][1] / figures["gpu_memory_bytes"][0][1] == 0.75
    assert figures["gpu_power_watts"] == [(("0", "Fake 1"), 312.5)]  # absent, not zero, for the other
    assert figures["gpu_temperature_celsius"][1][1] == 64
    assert figures["gpu_clock_hertz"][:2] == [(("0", "Fake 1", "sm"), 1.41e9), (("0", "Fake 1", "mem"), 1.593e9)]
    assert figures.keys() == {metric.name for metric in METRICS if metric.origin == "gpu"}


def test_they_come_out() -> None:
    text = Metrics(machine=Machine(gpus=Gpus(FakeNvml()))).exposition().decode()
    assert 'llm_inference_gpu_power_watts{gpu="0",name="Fake 1"} 312.5' in text
    assert "gpu_" not in Metrics(machine=Machine()).exposition().decode()


@pytest.mark.parametrize("library", [None, FakeNvml(0)])
def test_no_driver_or_no_gpu_is_nothing(library: FakeNvml | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert Gpus.open() is None
