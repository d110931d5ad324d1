"""How long the library's own nodes took over all steps so far, by kind of work."""

from __future__ import annotations

from typing import Any, Final

#: By the beginning of a node's type, in the library's own spelling; every other one is "other".
_PARTS: Final = (
    ("FullyConnected", "linear"),
    ("MatMul", "linear"),
    ("PagedAttention", "attention"),
    ("ScaledDotProductAttention", "attention"),
    ("Reorder", "copies"),
    ("Convert", "copies"),
    ("Concat", "copies"),
    ("Transpose", "copies"),
    ("VariadicSplit", "copies"),
    ("Split", "copies"),
)


def node_seconds(request: Any, num_runs: int) -> dict[str, float]:
    """By part. `request`: compiled with counters, and run so often; of each node it tells the mean time."""
    seconds: dict[str, float] = {}
    for node in request.get_profiling_info() if num_runs else ():
        part = next((part for kind, part in _PARTS if node.node_type.startswith(kind)), "other")
        seconds[part] = seconds.get(part, 0.0) + node.real_time.total_seconds() * num_runs
    return seconds
