from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_inference.errors import EngineError
from llm_inference.tools.compare import machine
from llm_inference.tools.compare.machine import measure_peaks, this_machine
from llm_inference.tools.compare.memory import PeakMemory, resident_bytes, tree


def test_a_processor_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 avx512_vnni amx_int8\n")
    found = this_machine(file)
    assert (found.cpu, found.flags) == ("Some CPU @ 2 GHz", ("avx2", "avx512_vnni", "amx_int8"))
    assert found.num_cpus >= 1
    assert this_machine(tmp_path / "absent").cpu


async def test_peaks_are_measured_elsewhere() -> None:
    peaks = await measure_peaks(quick=True)
    assert peaks.read_bytes_per_s > 1e8
    assert peaks.gemm_flops_per_s > 1e8


async def test_peaks_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="cannot be measured"):
        await measure_peaks(quick=True)


def test_memory_of_a_tree() -> None:
    code = "import subprocess, sys, time; b = bytearray(60_000_000); c = subprocess.Popen([sys.executable, '-c', "
    code += "'import time; b = bytearray(60_000_000); print(1, flush=True); time.sleep(60)'], stdout=subprocess.PIPE); "
    code += "c.stdout.readline(); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(tree([process.pid])) == 2
        with PeakMemory([process.pid]) as memory:
            pass
        assert memory.peak_bytes > 120_000_000
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert resident_bytes([process.pid]) == 0


def test_memory_of_nobody() -> None:
    with PeakMemory([]) as memory:
        pass
    assert memory.peak_bytes == 0
