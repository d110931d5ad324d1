from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.openai.schemas import PublicSchemas


@pytest.fixture(scope="session")
def public_schemas(shared_dir: Path) -> PublicSchemas:
    return PublicSchemas(shared_dir)
