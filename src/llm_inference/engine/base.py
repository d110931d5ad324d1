"""The contract that every engine fulfils, native or foreign."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol, runtime_checkable

import msgspec

from llm_inference.engine.types import (
    Delta,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    ModelInfo,
    Prompt,
    TokenizeResult,
)
from llm_inference.telemetry.profiling.figures import ProfileOrder, ProfileResult

#: What happens to a request field: the engine does it, we do it around the engine, or it is a 400 with the reason.
Support = Literal["enforced", "emulated", "refused"]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """For every request field that is not always supported: how. A field that is absent here is refused."""

    fields: dict[str, Support] = msgspec.field(default_factory=dict)
    reasons: dict[str, str] = msgspec.field(default_factory=dict)  # why a field is refused
    generate: bool = True  # False: an encoder, which has vectors and no text to give
    tokenize: bool = False
    embeddings: bool = False

    def support(self, field: str) -> Support:
        return self.fields.get(field, "refused")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`live`: the engine (or its restart) is under way. `ready`: a request would be answered now.

    `progressing`: no work is queued, or steps complete. `reason` says why one of them is False.
    """

    live: bool
    ready: bool
    progressing: bool = True
    reason: str = ""


class StepSizes(msgspec.Struct, frozen=True):
    """How large the engine's steps were, as a histogram: how many up to each bound of the metric, and their sum."""

    counts: tuple[int, ...]
    total: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an engine's load; what it cannot know is None, or not among `known` (None: all is known).

    `per_process`: counted by this gateway process alone; otherwise all of them see the same figures of the engine.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float | None = None  # 0..1
    num_kv_blocks: int | None = None
    num_free_kv_blocks: int | None = None
    kv_block_size: int | None = None  # tokens
    prefix_cache_queries: int = 0  # tokens looked up
    prefix_cache_hits: int = 0  # tokens found
    num_preemptions: int = 0
    num_evictions: int = 0
    num_steps: int = 0
    num_restarts: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_drafted_tokens: int = 0  # speculation: computed on trial
    num_accepted_tokens: int = 0  # of them, those that stood
    step_tokens: StepSizes | None = None
    step_sequences: StepSizes | None = None
    known: tuple[str, ...] | None = None
    per_process: bool = False


class Engine(Protocol):
    """Five methods. Everything else is a capability with a protocol of its own."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def info(self) -> ModelInfo: ...

    async def start(self) -> None:
        """Ready to serve when it returns. Raises `StartupError`."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Deltas until every choice has finished. `aclose()` aborts and frees the work within a step.

        Raises `RequestError` before the first delta when the request is wrong, `ServiceError` at any time.
        """
        ...

    async def health(self) -> Health: ...

    async def stop(self, grace_s: float) -> None:
        """Let what runs finish for `grace_s` seconds, then abort it. Nothing is left behind."""


@runtime_checkable
class Tokenizes(Protocol):
    """Optional power: the engine's own tokenizer, for `/tokenize`, `/detokenize` and counting before admission."""

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult: ...

    async def detokenize(self, token_ids: tuple[int, ...]) -> str: ...


@runtime_checkable
class Embeds(Protocol):
    """Optional power: vectors of texts, for `/embeddings`."""

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """One vector for each input, in their order. Cancelling it aborts the work within a step.

        Raises `RequestError` before anything runs when an input is wrong, `ServiceError` at any time.
        """
        ...


@runtime_checkable
class ReportsOwnMetrics(Protocol):
    """Optional power of engines that run elsewhere: the load of the whole engine, whoever sent it."""

    async def own_stats(self) -> EngineStats | None:
        """Asked of the engine now; None where it does not say. Raises `ServiceError` when it does not answer."""
        ...


@runtime_checkable
class ReportsStats(Protocol):
    """Optional power: load figures for metrics and routing."""

    def stats(self) -> EngineStats: ...


@runtime_checkable
class Profiles(Protocol):
    """Optional power: where the time of the next steps goes, while the engine goes on serving."""

    async def profile(self, order: ProfileOrder) -> ProfileResult:
        """One at a time. Raises `OverloadedError` while another one runs, `ServiceError` where the engine is away."""
        ...
