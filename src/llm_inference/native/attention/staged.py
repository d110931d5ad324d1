"""Attention that tells when it begins and ends, for whoever looks where a step's time goes."""

from __future__ import annotations

import torch

from llm_inference.native.attention.base import AttentionStep
from llm_inference.telemetry.stages import Stages


class StagedAttention:
    """An `AttentionStep` around another one; every `attend` is a stage."""

    def __init__(self, step: AttentionStep, stages: Stages) -> None:
        self._step = step
        self._stages = stages

    @property
    def positions(self) -> torch.Tensor:
        return self._step.positions

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        with self._stages("attention"):
            return self._step.attend(layer, qkv)
