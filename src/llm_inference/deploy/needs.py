"""What a model takes, as plain numbers: the part of a deployment that comes from the model's files.

`tools/footprint.py` makes them, from headers and with the native allocator's own formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["cpu", "cuda", "remote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """One model's sizes in bytes. `place`: where it computes; a remote one needs nothing here.

    `kv_bytes` is the cache that a CPU deployment gets and pins; `least_kv_bytes` is one longest sequence.
    `download_bytes` is fetched at the first start, `disk_bytes` stays in the cache volume, conversion included.
    `local_path` is where the model is on this machine, when its source is a path. `worker_flags` say of the model, to
    `worker_program` on a further machine, what our server says to the first; only of engines that know several.
    """

    engine: str
    place: Place
    engine_why: str
    weight_bytes: int = 0
    kv_bytes: int = 0
    least_kv_bytes: int = 0
    workspace_bytes: int = 0
    download_bytes: int = 0
    disk_bytes: int = 0
    local_path: str | None = None
    chat_template: str | None = None
    sizes_why: str = ""
    worker_program: str = ""
    worker_flags: tuple[str, ...] = ()
