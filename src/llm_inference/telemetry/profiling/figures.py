"""What a profile measured, as plain values that cross processes. No words, no judgement: see `diagnosis.py`.

`seconds` has exclusive parts that add up to `wall_s`, the time of the engine's one working thread:

    attention, linear   the model's operators of these kinds
    other               its other operators: norms, rotations, activations, embeddings
    copies              operators that only move or convert data, wherever they run
    library             inside a runner's library that does not say more
    sampling            from logits to tokens, operators and Python
    python              the model's Python between operators
    scheduler           who computes what in the next step, and what came of it
    tokenizer           chat template and tokenizer     (offline alone: a service does it in another process)
    detokenizer         from tokens to text             (likewise)
    waiting             no step runs: nothing to do, or somebody else has not done his part
"""

from __future__ import annotations

import msgspec

PARTS = (
    "attention",
    "linear",
    "other",
    "copies",
    "library",
    "sampling",
    "python",
    "scheduler",
    "tokenizer",
    "detokenizer",
    "waiting",
)


class ProfileOrder(msgspec.Struct, frozen=True, kw_only=True):
    """How long to look. Steps pass unseen first, then some are recorded and thrown away (a profiler's first steps cost
    more), then `num_steps` count. It ends after `max_s` seconds with what there is."""

    num_wait: int = 1
    num_warmup: int = 2
    num_steps: int = 20
    max_s: float = 10.0


class Operator(msgspec.Struct, frozen=True):
    """One kind of operator in one part. `seconds` are its own, without those of operators that it calls."""

    name: str
    part: str
    calls: int
    seconds: float


class Moved(msgspec.Struct, frozen=True):
    """Copies between memories, as the driver counted them."""

    count: int
    num_bytes: int
    seconds: float


class TraceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace alone says. Of a GPU, `device_seconds` by part, and `device_idle` as a share of the wall time; None
    where no device apart took part. `moved`: "HtoD", "DtoH", "DtoD".

    `sampling_calls`: the calls of `sampling_operator`, 0 where there is none. Half of the time of sampling's operators
    goes into it and those that are called more often.
    `sampling_python_s`: the part of sampling that no operator covers.
    """

    wall_s: float
    seconds: dict[str, float]
    device_seconds: dict[str, float] = {}
    device_idle: float | None = None
    moved: dict[str, Moved] = {}
    attention_kernels: dict[str, int] = {}
    operators: tuple[Operator, ...] = ()
    sampling_operator: str = ""
    sampling_calls: int = 0
    sampling_python_s: float = 0.0


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine itself counted meanwhile. Sums over the steps; None: not known of this kind of model.

    `peak_memory_bytes`: of the process, `peak_device_bytes`: of the GPU's allocator; both during the profile.
    `nodes`: seconds by kind of node, from a runner's library that counts them.
    """

    runner: str
    num_steps: int
    num_tokens: int | None = None
    num_sequences: int | None = None
    max_num_seqs: int | None = None
    num_preemptions: int = 0
    num_waiting: int = 0
    kv_cache_usage: float | None = None
    peak_memory_bytes: int | None = None
    peak_device_bytes: int | None = None
    nodes: dict[str, float] = {}


class FrontFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the gateway process that asked, over the same stretch: its threads' seconds by stage, and how long its event
    loop's thread was at work. `num_prepared`: prompts through the tokenizer."""

    wall_s: float
    seconds: dict[str, float]
    num_prepared: int
    loop_cpu_s: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """`front`: None where tokenizer and model share a process, and its seconds are among the trace's."""

    trace: TraceFigures
    steps: StepFigures
    front: FrontFigures | None = None


class ProfileResult(msgspec.Struct, frozen=True, kw_only=True):
    """`trace_gz`: the trace itself in the Chrome format, packed; empty where no step was recorded."""

    profile: Profile
    trace_gz: bytes = b""
