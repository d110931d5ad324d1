"""Starts a contender in the way that its file says, and stops it with all its processes.

serve     `llm-inference serve` as a child; measured through its gateway
direct    the engine's own server, started by its adapter; measured at its own address
library   the engine's library under its own Python, driven by a script
offline   the native core without HTTP, in a child
url       nothing is started
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from llm_inference.adapters.installs import EngineStore
from llm_inference.adapters.library import onnx, openvino
from llm_inference.adapters.library.interpreter import Library
from llm_inference.adapters.managed import ADDRESS_FILE, Address
from llm_inference.adapters.recipes import RECIPES
from llm_inference.adapters.transformers_serve import rewrite as transformers_words
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.engine.supervisor import Child, ChildSpec, RestartPolicy
from llm_inference.sources.resolve import resolve
from llm_inference.telemetry.devices import available_cpus, thread_environment
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.compare.contender import Contender
from llm_inference.tools.compare.http_target import Rewrite, open_http
from llm_inference.tools.compare.library_target import SCRIPTS, open_library
from llm_inference.tools.compare.target import Started
from llm_inference.tools.compare.weights import with_gguf
from llm_inference.tools.compare.workloads import Suite
from llm_inference.version import __version__

_READY_LINE = re.compile(r"serving .+ on (?P<url>http://[\d.:]+)")
_READY_POLL_S = 0.1


@asynccontextmanager
async def started(
    contender: Contender, suite: Suite, tokenizer: Tokenizer | None, limit_s: float, folder: Path
) -> AsyncIterator[Started]:
    """`folder` is private and empty. Raises `StartupError`, `ConfigError` and `EngineError`."""
    if contender.model is None:
        assert contender.url is not None
        async with open_http(
            contender.url, model=contender.url_model, tokenizer=tokenizer, api_key=contender.api_key
        ) as (target, version, notes):
            yield Started(target, (), {} if version is None else {"server": version}, tuple(notes))
        return
    model = await asyncio.to_thread(with_gguf, contender.model, contender.bench.gguf)
    if contender.through == "serve":
        way = _served(model, tokenizer, folder)
    elif contender.through == "direct":
        way = _direct(model, tokenizer, folder)
    elif contender.through == "offline":
        way = _offline(model, suite, limit_s, folder)
    else:
        way = _library(model, contender.bench.batching, suite, limit_s, folder)
    async with way as one:
        yield one


@asynccontextmanager
async def _served(model: ModelConfig, tokenizer: Tokenizer | None, folder: Path) -> AsyncIterator[Started]:
    config = _write_config(model, folder)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(line: str) -> None:
        match = _READY_LINE.search(line)
        if match is not None and not address.done():
            address.set_result(match["url"])

    async def ready() -> None:
        url = await address
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{url}/ready") as reply:
                    if reply.status == 200:
                        return
                await asyncio.sleep(_READY_POLL_S)

    argv = (sys.executable, "-m", "llm_inference.cli.main", "serve", "--config", str(config), "--port", "0")
    child = Child(
        ChildSpec(
            name=f"the server of {model.name}",
            argv=argv,
            ready=ready,
            ready_timeout_s=1800.0,
            on_line=hear,
            policy=RestartPolicy(max_restarts=0),
        )
    )
    await child.start()
    try:
        async with open_http(address.result(), model=model.name, tokenizer=tokenizer) as (target, version, notes):
            versions = {"llm-inference": version or __version__, **_installed(model.engine)}
            yield Started(target, () if child.pid is None else (child.pid,), versions, tuple(notes))
    finally:
        await child.stop(grace_s=10.0)


@asynccontextmanager
async def _direct(model: ModelConfig, tokenizer: Tokenizer | None, folder: Path) -> AsyncIterator[Started]:
    context = EngineContext(run_dir=folder, progress=False, log_level="warning", log_format="console")
    engine: Any = await asyncio.to_thread(engine_factory(model.engine), model, context)
    # Whatever is wrong while it starts, and whoever interrupts it: it is stopped.
    try:
        await engine.start()
        address = msgspec.json.decode((folder / ADDRESS_FILE).read_bytes(), type=Address)
        rewrite = _WORDS.get(model.engine)
        async with open_http(address.url, model=address.model, tokenizer=tokenizer, rewrite=rewrite) as opened:
            target, _, notes = opened
            yield Started(target, () if engine.pid is None else (engine.pid,), _installed(model.engine), tuple(notes))
    finally:
        await engine.stop(grace_s=0)


@asynccontextmanager
async def _offline(model: ModelConfig, suite: Suite, limit_s: float, folder: Path) -> AsyncIterator[Started]:
    setup = {"config": str(_write_config(model, folder))}
    argv = (sys.executable, "-u", "-m", "llm_inference.tools.compare.offline")
    async with open_library(f"the engine of {model.name}", argv, setup, suite, limit_s, folder) as one:
        yield one


@asynccontextmanager
async def _library(
    model: ModelConfig, batching: str, suite: Suite, limit_s: float, folder: Path
) -> AsyncIterator[Started]:
    make = {"openvino": _openvino_setup, "onnx": _onnx_setup}.get(model.engine)
    if make is not None:
        python, setup = await asyncio.to_thread(make, model, folder)
        env: dict[str, str] = {}
    else:
        python, setup = await asyncio.to_thread(_transformers_setup, model, batching)
        env = thread_environment(available_cpus())
    script = f"{model.engine}_pipeline"
    argv = (python, "-u", str(SCRIPTS / "loop.py"), script)
    name = f"the library {model.engine}"
    async with open_library(name, argv, setup, suite, limit_s, folder, env) as one:
        yield one


def _openvino_setup(model: ModelConfig, folder: Path) -> tuple[str, dict[str, Any]]:
    """(its Python, what the script is told), by the adapter's own plan: model file, cache, threads, properties."""
    plan, _ = openvino.make_plan(model, EngineContext(run_dir=folder, progress=False))
    said = plan.setup
    limits = ("num_kv_blocks", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
    hints = {"auto": "f32", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    exact = {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if said["dtype"] == "float32" else {}
    properties = {
        "INFERENCE_NUM_THREADS": said["num_threads"],
        "INFERENCE_PRECISION_HINT": hints[said["dtype"]],
        **exact,
        **said["properties"],
    }
    scheduler = {**{name: said[name] for name in limits}, **said["scheduler"]}
    return plan.argv[0], {"model": said["model"], "scheduler": scheduler, "properties": properties}


def _onnx_setup(model: ModelConfig, folder: Path) -> tuple[str, dict[str, Any]]:
    plan, _ = onnx.make_plan(model, EngineContext(run_dir=folder, progress=False))
    options = {"intra_op_num_threads": plan.setup["num_threads"], **plan.setup["session_options"]}
    return plan.argv[0], {"model": plan.setup["model"], "session_options": options}


def _transformers_setup(model: ModelConfig, batching: str) -> tuple[str, dict[str, Any]]:
    python = Library("transformers", "transformers", "transformers").python(model.engine_args.get("program"))
    dtype = "float32" if model.resolved_dtype == "auto" else model.resolved_dtype
    options = {key: value for key, value in model.engine_args.items() if key != "program"}
    setup = {
        "model": str(resolve(model.model, progress=False).directory),
        "dtype": dtype,
        "num_threads": available_cpus(),
        "batching": batching,
        "continuous_batching": options,
    }
    return str(python), setup


def _transformers_rewrite(body: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """`transformers serve` has no ignore_eos; a least length as long as the longest one does the same."""
    body.pop("ignore_eos", None)
    return transformers_words({**body, "min_tokens": max_tokens})


#: Servers that want requests in other words than OpenAI's.
_WORDS: dict[str, Rewrite] = {"transformers": _transformers_rewrite}


def _write_config(model: ModelConfig, folder: Path) -> Path:
    data = model.model_dump(mode="json", exclude_unset=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"models": [data]}), encoding="utf-8")
    return path


def _installed(engine: str) -> dict[str, str]:
    """The version of an engine that was installed beside us."""
    if engine not in RECIPES:
        return {}
    found = EngineStore.default().find(RECIPES[engine])
    return {} if found is None or found.version is None else {engine: found.version}
