"""A foreign engine as a child of ours: spawned under the supervisor, spoken to over HTTP.

    create ─► find the program ─► check its flags ─► plan
    start  ─► spawn ─► health answers ─► ready        a death: requests in flight fail once, it is brought back

With `url` nothing is spawned: `open_engine` then gives the plain HTTP engine. A further gateway worker attaches to the
address that the owner wrote down.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec

from llm_inference.adapters import launch as launching
from llm_inference.adapters.launch import Launch, Plan
from llm_inference.adapters.openai_http import OpenAIEngine, OpenAISettings
from llm_inference.adapters.profile import Profile
from llm_inference.adapters.upstream import Upstream
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities, Engine, EngineStats, Health
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.supervisor import Child, ChildSpec, ChildState
from llm_inference.engine.types import Delta, GenerateRequest, GenerationDefaults, ModelInfo, Prompt, TokenizeResult
from llm_inference.errors import ConfigError, NotReadyError, StartupError, UnsupportedModelError
from llm_inference.model_spec.fields import JsonFields
from llm_inference.sources.resolve import resolve
from llm_inference.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

#: What is ours to do, wherever the server runs.
REMOTE_KEYS = frozenset(
    {"name", "aliases", "model", "engine", "url", "api_key", "engine_args", "tokenizer", "generation", "warmup"}
    | {"max_model_len", "max_num_seqs", "max_batch_size"}
    | {"limits", "price"}  # the gateway's, whoever runs the model
)
ADDRESS_FILE = "engine.json"
POLL_S = 0.2
#: A server that lives and for so long has not said that it is well stands still.
STALLED_AFTER_S = 20.0


class Address(msgspec.Struct, frozen=True):
    """What a further gateway worker must know of the server that another process owns."""

    url: str
    model: str
    tokenizer_dir: str | None = None  # the model's directory


class ManagedEngine:
    """`argv` serves `inner`'s model at `inner`'s only URL. Owns the process."""

    def __init__(
        self, inner: OpenAIEngine, launch: Launch, argv: tuple[str, ...], url: str, env: dict[str, str] | None = None
    ) -> None:
        self._inner = inner
        self._launch = launch
        self._url = url
        self._unwell_since: float | None = None
        name = inner.info.engine
        self._child = Child(
            ChildSpec(
                name=f"the engine {name!r} of {inner.info.name}",
                argv=argv,
                ready=self._wait_healthy,
                ready_timeout_s=launch.ready_timeout_s,
                env=env or {},
                on_exit=self._on_exit,
                on_failed=lambda reason: logger.critical("%s", self._with_advice(reason)),
                on_line=lambda line: logger.debug("%s: %s", name, line),
            )
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def info(self) -> ModelInfo:
        return self._inner.info

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> None:
        """Raises `StartupError` with the server's last words, and what to do about them where that is known."""
        try:
            await self._child.start()
        except StartupError as error:
            raise StartupError(self._with_advice(error.message)) from error
        try:
            await self._inner.start()
        except BaseException:
            await self._child.stop(grace_s=0)
            raise

    async def stop(self, grace_s: float) -> None:
        await self._inner.stop(grace_s)
        await self._child.stop(grace_s=5.0)

    async def health(self) -> Health:
        state = self._child.state
        if state is not ChildState.READY:
            self._unwell_since = None
            reason = f"the engine is {state.value}"
            if self._child.reason:
                advice = launching.advise(self._launch, self._child.reason)
                reason += f": {self._child.public_reason}" + (f"; what helps: {advice}" if advice else "")
            return Health(live=state is not ChildState.FAILED, ready=False, reason=reason)
        health = await self._inner.health()
        if health.ready:
            self._unwell_since = None
            return health
        now = time.monotonic()
        if self._unwell_since is None:
            self._unwell_since = now
        if now - self._unwell_since < STALLED_AFTER_S:
            return health
        reason = f"{health.reason}, for {now - self._unwell_since:.0f} s"
        return Health(live=True, ready=False, progressing=False, reason=reason)

    def stats(self) -> EngineStats:
        return self._with_restarts(self._inner.stats())

    async def own_stats(self) -> EngineStats | None:
        if self._child.state is not ChildState.READY:
            return None
        stats = await self._inner.own_stats()
        return None if stats is None else self._with_restarts(stats)

    def _with_restarts(self, stats: EngineStats) -> EngineStats:
        known = (*(stats.known or ()), "num_restarts")
        return msgspec.structs.replace(stats, num_restarts=self._child.num_restarts, known=known)

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        return await self._inner.tokenize(prompt, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        return await self._inner.detokenize(token_ids)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if self._child.state is not ChildState.READY:
            raise NotReadyError(f"the engine is {self._child.state.value}; try again shortly", retry_after_s=2.0)
        async with aclosing(self._inner.generate(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def _wait_healthy(self) -> None:
        """Polls until the server answers 200; the supervisor bounds the wait and notices a death."""
        upstream = Upstream([self._url], name=self.info.engine)
        await upstream.open()
        try:
            while True:
                try:
                    if (await upstream.ask(self._url + self._inner.profile.health_path)).status == 200:
                        return
                except NotReadyError:
                    pass
                await asyncio.sleep(POLL_S)
        finally:
            await upstream.close()

    def _on_exit(self, reason: str) -> None:
        logger.error("%s; restarting it", self._with_advice(reason))

    def _with_advice(self, reason: str) -> str:
        advice = launching.advise(self._launch, reason)
        return f"{reason}\nWhat helps: {advice}" if advice else reason


def open_engine(model: ModelConfig, context: EngineContext, profile: Profile, launch: Launch) -> Engine:
    """The engine of `model`: at its `url`, or started here. Raises `StartupError` for what can be known before."""
    if model.url is not None:
        return remote(model, profile)
    address_file = context.run_dir / ADDRESS_FILE
    if not context.owns_core:
        address = msgspec.json.decode(address_file.read_bytes(), type=Address)
        return _engine_at(model, profile, address)
    program, by_module = launching.own_command(model.engine_args), False
    if program is None:
        program, by_module = launching.find_program(profile.name, launch, model.engine_args.get("program"))
    source, directory = _source(model, launch, context.progress)
    plan = Plan(model=model, source=source, port=free_port(), by_module=by_module)
    if "command" in model.engine_args:
        program = launching.fill_command(program, plan)
    theirs = launching.engine_flags(model.engine_args)
    flags = launching.merge(list(launch.arguments(plan)), theirs)
    launching.check_flags(profile.name, program, flags, theirs, launching.read_help(program, launch.help_flags))
    url = f"http://{plan.host}:{plan.port}"
    served = source if launch.serves_source else plan.served_name
    address = Address(url, served, None if directory is None else str(directory))
    address_file.write_bytes(msgspec.json.encode(address))
    env = {**launch.env(plan), **{str(key): str(value) for key, value in model.engine_args.get("env", {}).items()}}
    return ManagedEngine(_engine_at(model, profile, address), launch, (*program, *flags), url, env)


def remote(model: ModelConfig, profile: Profile) -> OpenAIEngine:
    """The engine at `url`."""
    settings = settings_of(model, model.model, remote_urls(model), profile)
    return OpenAIEngine(settings, profile, local_tokenizer(model))


def remote_urls(model: ModelConfig) -> tuple[str, ...]:
    """`url` may name several servers of one model, separated by commas. Raises `ConfigError`, also for vain keys."""
    assert model.url is not None
    check_remote_keys(model)
    urls = tuple(url.strip() for url in model.url.split(",") if url.strip())
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url: {url!r} must begin with http:// or https://; several are separated by commas")
    return urls


def check_remote_keys(model: ModelConfig) -> None:
    """Keys for whoever starts a server would have no effect on one that runs. Raises `ConfigError` naming the first."""
    for key in sorted(model.model_fields_set - REMOTE_KEYS):
        raise ConfigError(f"{key}: has no effect on the server at `url`, which was started elsewhere; leave it out")
    for key in sorted(model.engine_args.keys() - {"fields"}):
        raise ConfigError(f"engine_args.{key}: has no effect on the server at `url`; leave it out")


def settings_of(model: ModelConfig, served: str, urls: tuple[str, ...], profile: Profile) -> OpenAISettings:
    return OpenAISettings(
        name=model.name,
        model=served,
        urls=urls,
        api_key=model.api_key.get_secret_value() if model.api_key is not None else None,
        max_model_len=model.max_model_len,
        max_num_seqs=model.max_num_seqs or model.max_batch_size,
        defaults=GenerationDefaults(**model.generation.model_dump()),
        engine=profile.name,
    )


def local_tokenizer(model: ModelConfig) -> Tokenizer | None:
    """Ours for a remote model: where `tokenizer` or `model` is a directory on this machine."""
    if model.tokenizer is not None:
        place = Path(model.tokenizer).expanduser()
        return Tokenizer.load(place, tokenizer=place)
    place = Path(model.model).expanduser()
    if any((place / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return Tokenizer.load(place)
    return None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _engine_at(model: ModelConfig, profile: Profile, address: Address) -> OpenAIEngine:
    settings = settings_of(model, address.model, (address.url,), profile)
    if address.tokenizer_dir is None:
        return OpenAIEngine(settings, profile)
    directory = Path(address.tokenizer_dir)
    positions = JsonFields.read(directory / "config.json").content.get("max_position_embeddings")
    if isinstance(positions, int):
        settings = dataclasses.replace(settings, files_max_model_len=positions)
    tokenizer = Tokenizer.load(directory, chat_template=model.chat_template)
    return OpenAIEngine(settings, profile, tokenizer)


def _source(model: ModelConfig, launch: Launch, progress: bool) -> tuple[str, Path | None]:
    """(what the engine is given, the model's directory where we know it)."""
    if launch.needs == "name":
        return model.model, None
    try:
        resolved = resolve(model.model, progress=progress, trust_remote_code=model.trust_remote_code)
    except UnsupportedModelError:
        # We convert fewer architectures than engines that read GGUF know; without ours, they count tokens themselves.
        path = Path(model.model).expanduser()
        if launch.needs == "gguf" and path.suffix == ".gguf" and path.is_file():
            return str(path.resolve()), None
        raise
    if launch.needs == "directory":
        return str(resolved.directory), resolved.directory
    if resolved.gguf is None:
        raise ConfigError(f"model: {model.model} is no GGUF file, and this engine reads nothing else")
    return str(resolved.gguf), resolved.directory
