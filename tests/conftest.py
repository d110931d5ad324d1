"""What every test room may ask for. The default model comes from the plugin `tests.fixtures_model`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

pytest_plugins = ["tests.fixtures_model"]


def find_shared_dir(candidate: Path, *, in_ci: bool) -> Path:
    """The folder of shared facts and fixtures, or the end of the test: a skip for users, a failure in CI."""
    if candidate.is_dir():
        return candidate
    message = f"{candidate} is not there; it holds recorded replies and schemas that this test compares with"
    if in_ci:
        pytest.fail(message + ", and CI must not skip it", pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """`../shared` beside the repository: recorded replies of other engines, schemas, cases."""
    return find_shared_dir(REPOSITORY.parent / "shared", in_ci=bool(os.environ.get("CI")))
