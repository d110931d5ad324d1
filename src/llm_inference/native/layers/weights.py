"""Where a checkpoint's tensor goes. The loader knows files and names, a layer knows shapes: they meet here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

#: Rearranges the rows (axis 0) of a weight or a bias; same shape in and out.
RowOrder: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """One tensor that a model needs. `store` takes it on the CPU, in the checkpoint's dtype, exactly once."""

    shape: tuple[int, ...]
    store: Callable[[torch.Tensor], None]
