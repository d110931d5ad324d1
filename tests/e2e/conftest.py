from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """The default model, served as `llm-inference serve` does."""
    with running_server() as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def model() -> str:
    return "SmolLM2-135M-Instruct"
