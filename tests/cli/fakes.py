"""An engine that says what it was asked, and errors on demand. Enough for the terminal's commands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities, Engine, Health
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, ModelInfo
from llm_inference.errors import ContextLengthError


class EchoEngine:
    """Answers "<role>:<content>|…" of the prompt in three deltas; the word "overlong" is refused."""

    def __init__(self, name: str = "echo") -> None:
        self.requests: list[GenerateRequest] = []
        self.aborted = 0
        self.info = ModelInfo(name=name, max_model_len=64, engine="fake")
        self.capabilities = Capabilities()

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self, grace_s: float) -> None:
        """Nothing to stop."""

    async def health(self) -> Health:
        return Health(live=True, ready=True)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        text = spelt(request.prompt)
        if "overlong" in text:
            raise ContextLengthError("the prompt has 99 tokens, the model takes 64", param="messages")
        third = len(text) // 3
        try:
            yield Delta(reasoning="thinking")
            yield Delta(text=text[:third])
            yield Delta(text=text[third : 2 * third])
            yield Delta(text=text[2 * third :], finish_reason="stop")
        except GeneratorExit:
            self.aborted += 1
            raise


def spelt(prompt: Any) -> str:
    if isinstance(prompt, ChatPrompt):
        return "|".join(f"{message['role']}:{message['content']}" for message in prompt.messages)
    return str(prompt)


class FakeServe:
    """Stands in for `llm_inference.serve`."""

    def __init__(self) -> None:
        self.engine = EchoEngine()
        self.models: list[ModelConfig] = []
        self.closed = 0

    @asynccontextmanager
    async def open_engine(self, model: ModelConfig, *, progress: bool = True) -> AsyncIterator[Engine]:
        self.models.append(model)
        self.engine.info = ModelInfo(name=model.name, max_model_len=64, engine="fake")
        try:
            yield self.engine
        finally:
            self.closed += 1
