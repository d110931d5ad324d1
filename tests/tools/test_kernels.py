from __future__ import annotations

import json

import torch

from llm_inference.native.runner.compiled.build import obstacle
from llm_inference.tools import kernels
from llm_inference.tools.kernels import relative_error


def test_every_kernel_has_an_error_and_a_time() -> None:
    results = kernels.run("not used", (1, 3), quick=True)
    names = {one.kernel for one in results}
    assert {"dense", "int8", "int4", "RMS norm", "paged attention, torch"} <= names
    compiled = {f"compiled {kind}, 1 thread" for kind in ("float32", "int8", "int4")}
    assert obstacle() is not None or compiled <= names
    for one in results:
        bits = next((name for name in ("int8", "int4") if name in one.kernel), "")
        bound = {"int8": 0.02, "int4": 0.2}.get(bits, 1e-5)
        assert one.error < bound, one
        assert one.seconds > 0
    assert json.loads(kernels.to_json(results))[0]["rows"] == 1
    lines = kernels.render(results).splitlines()
    assert len(lines) == len(results) + 2
    assert len({len(line) for line in lines}) == 1


def test_the_error_is_relative() -> None:
    assert relative_error(torch.tensor([1.1, 2.2]), torch.tensor([1.0, 2.0])) < 0.1001
    assert relative_error(torch.tensor([2.0]), torch.tensor([2.0])) == 0
