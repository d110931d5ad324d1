from __future__ import annotations

import dataclasses
import re

import pytest

from llm_inference.adapters.recipes import RECIPES, Recipe, recipe
from llm_inference.errors import ConfigError

BUILDS = [
    pytest.param(one, build, id=f"{name}-{kind}")
    for name, one in RECIPES.items()
    for kind, build in (("cpu", one.cpu), ("cuda", one.cuda))
    if build is not None
]


@pytest.mark.parametrize(("one", "build"), BUILDS)
def test_everything_is_pinned_and_the_engine_among_it(one: Recipe, build: object) -> None:
    assert one.cpu is build or one.cuda is build
    steps = build.steps  # type: ignore[attr-defined]
    requirements = [requirement for step in steps for requirement in step]
    assert all(re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", requirement) for requirement in requirements)
    names = {re.split(r"[\[=]", requirement)[0] for requirement in requirements}
    assert names & {one.distribution, *one.also_known_as}


@pytest.mark.parametrize("one", RECIPES.values(), ids=RECIPES)
def test_a_cpu_gets_the_small_torch_before_anything_asks_for_it(one: Recipe) -> None:
    if one.cpu is not None and len(one.cpu.steps) > 1:
        assert one.cpu.steps[0][0].startswith("torch==")


@pytest.mark.parametrize("one", RECIPES.values(), ids=RECIPES)
def test_names_agree(one: Recipe) -> None:
    assert RECIPES[one.name] is one
    assert one.abilities.engine == one.name
    assert (one.program is None) == (one.kind == "library")
    assert one.cpu is not None or one.cuda is not None
    assert ("cpu" in one.abilities.devices) == (one.cpu is not None)


def test_what_a_machine_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="sglang needs an NVIDIA GPU"):
        recipe("sglang").build(gpu=False)
    assert recipe("vllm").build(gpu=True) is recipe("vllm").cuda
    assert dataclasses.replace(recipe("vllm"), cuda=None).build(gpu=True) is recipe("vllm").cpu


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"'vlm' is no engine .* llama\.cpp, openvino, onnx, vllm"):
        recipe("vlm")
