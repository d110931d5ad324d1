"""The library is compiled once for all tests of this folder."""

from __future__ import annotations

import pytest

from llm_inference.errors import StartupError
from llm_inference.native.runner.compiled.build import find_or_build
from llm_inference.native.runner.compiled.library import Library


@pytest.fixture(scope="session")
def library() -> Library:
    try:
        return Library(find_or_build())
    except StartupError as error:
        pytest.skip(error.message)
