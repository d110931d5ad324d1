"""What a front and a library engine's worker say to each other: JSON lines over a Unix socket.

The worker's half is `workers/serving.py`, which runs under another interpreter and cannot import this. There a message
is a plain dict; here it is a struct, so that what does not decode is noticed at the border.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from llm_inference.engine.base import EngineStats


class Grammar(msgspec.Struct, frozen=True):
    """A constraint in the library's own words."""

    kind: str
    source: str


class WorkerSampling(msgspec.Struct, frozen=True, kw_only=True):
    """`SamplingParams` with everything said, as the workers read it. One sequence, but for beams."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    forced_eos_token_id: int | None = None
    logprobs: int | None = None
    n: int = 1  # of the beams, how many are wanted
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    grammar: Grammar | None = None


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A front is here."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    id: str
    token_ids: tuple[int, ...]
    sampling: WorkerSampling


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Unknown ids are ignored: they have just finished."""

    id: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded; `report` says what that came to, at least its `precision`."""

    report: dict[str, Any]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Loading was refused: the class name of a `StartupError` and its message."""

    error: str
    message: str


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    """New tokens of one sequence, the one that ended it included. `logprobs`: one `[log p, [[id, log p], …]]` each."""

    id: str
    ids: tuple[int, ...]
    index: int = 0
    logprobs: tuple[tuple[float, tuple[tuple[int, float], ...]], ...] | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Error(msgspec.Struct, frozen=True, tag="error"):
    """A request ended in an error: its class name, message and field."""

    id: str
    error: str
    message: str
    param: str | None = None


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """The worker's load; at least once a second."""

    stats: EngineStats


FromFront = Hello | Submit | Abort
FromWorker = Ready | Failed | Tokens | Error | Stats
