"""From a profiler's trace (the Chrome format that Perfetto and TensorBoard show) to figures.

    ProfilerStep#4 ───────────────────────────────────────────────
     llm:schedule   llm:forward ──────────────────   llm:sampling ─
                     aten::linear   llm:attention ─
                                     aten::bmm

Ranges and operators of the engine's thread are nested by time; each part gets what no range or operator inside covers.
Kernels and copies of a GPU are counted under the operator that launched them. Knows no torch.

    python -m llm_inference.telemetry.profiling.trace TRACE      a process of its own, for a service that goes on
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from llm_inference.telemetry.profiling.figures import PARTS, Moved, Operator, TraceFigures

#: Before the name of a stage in a trace.
RANGE: Final = "llm:"
_STEP: Final = "ProfilerStep#"
_MAX_OPERATORS: Final = 12
#: A stage's own time, where no operator runs. What is not here counts as the model's Python.
_STAGE_PARTS: Final = {
    "schedule": "scheduler",
    "update": "scheduler",
    "messages": "scheduler",
    "sampling": "sampling",
    "library": "library",
    "tokenizer": "tokenizer",
    "detokenizer": "detokenizer",
}
#: All that happens in these belongs to them, but copies.
_WHOLE: Final = ("sampling", "attention", "tokenizer", "detokenizer")
_COPIES: Final = re.compile(r"^aten::(copy_|_to_copy|to|clone|contiguous|_copy_from|_pin_memory|pin_memory)$")
_LINEAR: Final = re.compile(r"linear|::addmm|::mm$|::matmul|pack_mm|scaled_mm|gemm", re.IGNORECASE)
_ATTENTION: Final = re.compile(r"attention|flash|fmha", re.IGNORECASE)
#: Names of GPU kernels, for those that no operator of the trace has launched: a recorded graph replays many at once.
_PRODUCTS: Final = re.compile(r"gemm|gemv|cutlass|nvjet|splitK", re.IGNORECASE)
_KERNELS: Final = (
    (re.compile(r"flash_attention_for_cpu"), "SDPA flash (CPU)"),
    (re.compile(r"_scaled_dot_product_flash_attention$|_flash_attention_forward$"), "SDPA FlashAttention"),
    (re.compile(r"_scaled_dot_product_efficient_attention$"), "SDPA memory-efficient"),
    (re.compile(r"_scaled_dot_product_cudnn_attention$"), "SDPA cuDNN"),
    (re.compile(r"_scaled_dot_product_attention_math"), "SDPA math"),
)
_BATCHED: Final = "batched matrix products"
_Key = TypeVar("_Key")


class _Args(msgspec.Struct, frozen=True):
    """What is read of an event's arguments: the operator that launched a kernel, and the size of a copy."""

    external_id: int | str | None = msgspec.field(default=None, name="External id")
    num_bytes: int | float | str | None = msgspec.field(default=None, name="bytes")


_NO_ARGS: Final = _Args()


class _Event(msgspec.Struct, frozen=True):
    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Args = _NO_ARGS


class _Trace(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]


@dataclass(slots=True)
class _Open:
    """A range or an operator that has begun."""

    event: _Event
    end: float
    part: str
    inside: str  # the innermost stage
    covered: float = 0.0


@dataclass(slots=True)
class _Calls:
    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Sums:
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    operators: dict[tuple[str, str], _Calls] = field(default_factory=dict)
    sampling: dict[str, _Calls] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    sampling_python_s: float = 0.0
    part_of: dict[int, str] = field(default_factory=dict)  # by the id that kernels carry

    def close(self, one: _Open) -> None:
        own = max(one.event.dur - one.covered, 0.0) / 1e6
        self.seconds[one.part] += own
        if one.event.cat == "cpu_op":
            _add(self.operators, (one.event.name, one.part), own)
            if one.inside == "sampling":
                _add(self.sampling, one.event.name, own)
        elif one.inside == "sampling":
            self.sampling_python_s += own


def _add(table: dict[_Key, _Calls], key: _Key, seconds: float) -> None:
    calls = table.setdefault(key, _Calls())
    calls.count += 1
    calls.seconds += seconds


def read_trace(content: bytes) -> TraceFigures | None:
    """`content`: the trace's JSON. None where no step was recorded. Raises `ValueError` where it is no trace."""
    events = msgspec.json.decode(content, type=_Trace).traceEvents
    steps = [one for one in events if one.cat == "user_annotation" and one.name.startswith(_STEP)]
    if not steps:
        return None
    begin, end = min(one.ts for one in steps), max(one.ts + one.dur for one in steps)
    thread = steps[0].tid
    wall_s = (end - begin) / 1e6
    sums = _nested(one for one in events if one.ph == "X" and one.tid == thread and begin <= one.ts < end)
    sums.seconds["waiting"] = max(wall_s - sum(sums.seconds.values()), 0.0)
    on_device = [one for one in events if one.cat in ("kernel", "gpu_memcpy", "gpu_memset") and begin <= one.ts < end]
    heaviest = _typical(sums.sampling)
    operators = sorted(
        (Operator(name, part, calls.count, calls.seconds) for (name, part), calls in sums.operators.items()),
        key=lambda one: -one.seconds,
    )
    return TraceFigures(
        wall_s=wall_s,
        seconds={part: own for part, own in sums.seconds.items() if own},
        device_seconds=_device_parts(on_device, sums),
        # What was begun within may end behind.
        device_idle=max(1 - _union(on_device) / (end - begin), 0.0) if on_device and end > begin else None,
        moved=_moved(on_device),
        attention_kernels=_kernels(on_device, sums),
        operators=tuple(operators[:_MAX_OPERATORS]),
        sampling_operator=heaviest,
        sampling_calls=sums.sampling[heaviest].count if heaviest else 0,
        sampling_python_s=sums.sampling_python_s,
    )


def _typical(operators: dict[str, _Calls]) -> str:
    """The operator with the most calls in whose, and in more frequent ones', half of the time goes; "" of none.

    Not the one that takes longest: what the machine does meanwhile may fall into any call, of a cheap one too.
    """
    by_calls = sorted(operators, key=lambda name: -operators[name].count)
    half_s, passed_s = sum(one.seconds for one in operators.values()) / 2, 0.0
    for name in by_calls:
        passed_s += operators[name].seconds
        if passed_s >= half_s:
            return name
    return ""


def _nested(events: Iterable[_Event]) -> _Sums:
    sums = _Sums()
    stack: list[_Open] = []
    for event in sorted(events, key=lambda one: (one.ts, -one.dur)):
        is_range = event.cat == "user_annotation" and event.name.startswith(RANGE)
        if not is_range and event.cat != "cpu_op":
            continue
        while stack and stack[-1].end <= event.ts:
            sums.close(stack.pop())
        parent = stack[-1] if stack else None
        if parent is not None:
            parent.covered += min(event.dur, parent.end - event.ts)
        inside = event.name.removeprefix(RANGE) if is_range else parent.inside if parent is not None else ""
        part = _stage_part(inside) if is_range else _operator_part(event.name, inside, parent)
        stack.append(_Open(event, event.ts + event.dur, part, inside))
        if not is_range:
            _note_kernel(event.name, inside, sums)
            number = event.args.external_id
            if isinstance(number, int):
                sums.part_of[number] = part
    while stack:
        sums.close(stack.pop())
    return sums


def _stage_part(stage: str) -> str:
    return _STAGE_PARTS.get(stage, "python")


def _operator_part(name: str, inside: str, parent: _Open | None) -> str:
    if _COPIES.match(name):
        return "copies"
    if inside in _WHOLE:
        return inside
    if parent is not None and parent.event.cat == "cpu_op" and parent.part in ("attention", "linear"):
        return parent.part
    if _ATTENTION.search(name):
        return "attention"
    return "linear" if _LINEAR.search(name) else "other"


def _note_kernel(name: str, inside: str, sums: _Sums) -> None:
    found = next((word for pattern, word in _KERNELS if pattern.search(name)), None)
    if found is None and inside == "attention" and name in ("aten::baddbmm", "aten::bmm"):
        found = _BATCHED if name == "aten::bmm" else None
    if found is not None:
        sums.kernels[found] = sums.kernels.get(found, 0) + 1


def _kernels(on_device: list[_Event], sums: _Sums) -> dict[str, int]:
    """By the words above, and by a GPU kernel's own name where it speaks of attention."""
    found = dict(sums.kernels)
    for one in on_device:
        if one.cat == "kernel" and _ATTENTION.search(one.name):
            name = one.name.removeprefix("void ").split("<")[0].split("(")[0]
            found[name] = found.get(name, 0) + 1
    return found


def _device_parts(on_device: list[_Event], sums: _Sums) -> dict[str, float]:
    parts: dict[str, float] = {}
    for one in on_device:
        number = one.args.external_id
        if one.cat == "gpu_memcpy":
            part = "copies"
        elif _ATTENTION.search(one.name):
            part = "attention"
        else:
            part = sums.part_of.get(number, "") if isinstance(number, int) else ""
            part = part or ("linear" if _PRODUCTS.search(one.name) else "other")
        parts[part] = parts.get(part, 0.0) + one.dur / 1e6
    return parts


def _moved(on_device: list[_Event]) -> dict[str, Moved]:
    found: dict[str, Moved] = {}
    for one in on_device:
        match = re.match(r"Memcpy (HtoD|DtoH|DtoD)", one.name)
        if one.cat != "gpu_memcpy" or match is None:
            continue
        so_far, size = found.get(match[1], Moved(0, 0, 0.0)), one.args.num_bytes
        num_bytes = size if isinstance(size, int) else 0
        found[match[1]] = Moved(so_far.count + 1, so_far.num_bytes + num_bytes, so_far.seconds + one.dur / 1e6)
    return found


def _union(events: list[_Event]) -> float:
    """How long at least one of them ran."""
    total = reached = 0.0
    for begin, end in sorted((one.ts, one.ts + one.dur) for one in events):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def main() -> int:
    """Print the figures of the trace as JSON (null: no step in it), and pack it as TRACE.gz."""
    file = Path(sys.argv[1])
    content = file.read_bytes()
    with gzip.open(f"{file}.gz", "wb", compresslevel=5) as packed:
        packed.write(content)
    sys.stdout.buffer.write(msgspec.json.encode(read_trace(content)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
