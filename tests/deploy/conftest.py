from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_inference.deploy.output import write


@pytest.fixture
def written(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Writes files and returns their folder."""

    def put(files: Mapping[str, str]) -> Path:
        write(files, tmp_path / "out")
        return tmp_path / "out"

    return put
