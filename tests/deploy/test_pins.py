"""Pinned versions are those that the project itself is tested with."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.deploy import pins


def test_packages_are_those_of_the_constraints(repository: Path) -> None:
    constraints = (repository / "constraints.txt").read_text().splitlines()
    assert [package for package in pins.PACKAGES if package not in constraints] == [], "change deploy/pins.py as well"


@pytest.mark.parametrize("name", pins.ENGINE_PACKAGES)
def test_engines_are_those_of_the_recipes(name: str) -> None:
    from llm_inference.adapters.recipes import RECIPES

    recipe = RECIPES[name]
    assert recipe.cuda is not None
    assert [pins.ENGINE_PACKAGES[name].requirements] == list(recipe.cuda.steps), "change deploy/pins.py as well"
    assert pins.ENGINE_PACKAGES[name].program == recipe.program


def test_images_have_a_version() -> None:
    images = [value for name, value in vars(pins).items() if name.endswith("_IMAGE")]
    assert len(images) == 7
    assert all(":" in image and not image.endswith(":latest") for image in images)


def test_validators_are_those_that_these_tests_use() -> None:
    from tests.deploy.install_tools import PIP

    assert set(pins.VALIDATORS) <= set(PIP), "change deploy/pins.py as well"
