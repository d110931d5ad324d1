"""What front and core say to each other over a local ZeroMQ socket, as msgpack. Never pickle.

front (DEALER, any number)                    core (ROUTER, one)
  Hello ────────────────────────────────────►   (answered once the model is loaded)
  ◄──────────────────────────────── Ready | Failed
  Submit, Abort, ProfileSteps ───────────────►
  ◄──────────── Step (after each step that concerns this front; at least one a second, empty, as a heartbeat)
  ◄──────────────────────────────── Rejected | Profiled
"""

from __future__ import annotations

import msgspec

from llm_inference.engine.base import EngineStats
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.request import CoreRequest, SampledToken
from llm_inference.telemetry.profiling.figures import ProfileOrder, StepFigures


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A front is here."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: CoreRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop one choice, or all of them (`index` None). Unknown ids are ignored: they have just finished."""

    request_id: str
    index: int | None = None


class ProfileSteps(msgspec.Struct, frozen=True, tag=True):
    """Profile the next steps, and write their trace to `trace_file`, which only this user may read."""

    profile_id: str
    order: ProfileOrder
    trace_file: str


class Profiled(msgspec.Struct, frozen=True, tag=True):
    """A profile has ended: what the core counted meanwhile, or why there is none (the class name of an error)."""

    profile_id: str
    steps: StepFigures | None = None
    error: str = ""
    message: str = ""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded. `report` says what it came to: dtype, KV blocks, seconds by stage."""

    report: CoreReport


class CoreReport(msgspec.Struct, frozen=True, kw_only=True):
    precision: str
    num_kv_blocks: int
    block_size: int
    weight_bytes: int
    kv_cache_bytes: int
    runner: str
    load_s: dict[str, float] = {}


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Loading was refused: the class name of a `StartupError` and its message."""

    error: str
    message: str


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """A request was refused on arrival: the class name of an error, its message and field."""

    request_id: str
    error: str
    message: str
    param: str | None = None


class PromptLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of the next prompt tokens, in order; the very first token of a prompt has none."""

    request_id: str
    tokens: tuple[SampledToken, ...]


class Failure(msgspec.Struct, frozen=True):
    """A running request failed; its other choices are gone too. `error`: the class name of an error."""

    request_id: str
    message: str
    error: str = "EngineError"
    param: str | None = None


class Step(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The outcome of a step for one front."""

    stats: EngineStats
    outputs: tuple[SequenceOutput, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    failures: tuple[Failure, ...] = ()


FromFront = Hello | Submit | Abort | ProfileSteps
FromCore = Ready | Failed | Rejected | Step | Profiled
