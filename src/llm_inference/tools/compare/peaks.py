"""Measures what this machine can do at best, and prints it as JSON: memory read, and float32 matrix products.

    python -m llm_inference.tools.compare.peaks [--quick]

Memory: a matrix far larger than the caches times a vector, which reads every value once, as a decode step reads
weights; and a plain sum. Products: large squares, and tall ones like those of a prompt. The best of all tries counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

from llm_inference.telemetry.devices import available_cpus

_ROWS, _COLUMNS = 16_384, 8_192  # 512 MiB in float32
_SQUARES = ((2048, 2048, 2048), (4096, 1536, 576), (1024, 4096, 1024))


def best_s(work: Callable[[], object], tries: int) -> float:
    """The shortest time of `tries` runs, after one that does not count."""
    work()
    best = float("inf")
    for _ in range(tries):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def read_bytes_per_s(rows: int = _ROWS, columns: int = _COLUMNS, tries: int = 8) -> float:
    matrix = torch.ones(rows, columns)
    vector = torch.ones(columns)
    num_bytes = matrix.numel() * matrix.element_size()
    return num_bytes / min(best_s(lambda: matrix.mv(vector), tries), best_s(matrix.sum, tries))


def gemm_flops_per_s(shapes: tuple[tuple[int, int, int], ...] = _SQUARES, tries: int = 8) -> float:
    best = 0.0
    for rows, inner, columns in shapes:
        left, right = torch.ones(rows, inner), torch.ones(inner, columns)
        seconds = best_s(lambda left=left, right=right: left.mm(right), tries)  # type: ignore[misc]
        best = max(best, 2 * rows * inner * columns / seconds)
    return best


def main(argv: list[str]) -> None:
    torch.set_num_threads(available_cpus())
    quick = "--quick" in argv
    with torch.inference_mode():
        read = read_bytes_per_s(1024, 1024, 2) if quick else read_bytes_per_s()
        flops = gemm_flops_per_s(((256, 256, 256),), 2) if quick else gemm_flops_per_s()
    print(json.dumps({"read_bytes_per_s": read, "gemm_flops_per_s": flops}))


if __name__ == "__main__":
    main(sys.argv[1:])
