"""Options of the torch runner, as far as a front can check them: attention, CUDA graphs, compilation. Torch-free."""

from __future__ import annotations

import logging

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.choice import (
    AttentionChoice,
    AttentionWanted,
    InstalledPackages,
    choose_attention,
)
from llm_inference.native.runner.choice import RunnerName
from llm_inference.native.runner.graph_choice import choose_graphs

logger = logging.getLogger(__name__)


def check_torch_options(
    model: ModelConfig,
    spec: ModelSpec,
    *,
    runner: RunnerName,
    device: str,
    precision: str,
    max_num_seqs: int,
    installed: InstalledPackages | None = None,
) -> None:
    """Raises `ConfigError` for what can be seen to be impossible without the GPU itself. The core decides the rest."""
    if runner != "torch":
        for key, unset in (("attention", "auto"), ("cuda_graphs", "auto"), ("compile", False)):
            if getattr(model, key) != unset:
                raise ConfigError(
                    f"{key}: it is an option of the runner torch, and {runner} computes here; set `runner: torch`, "
                    f"or leave `{key}` out"
                )
        return
    attention = _attention(model, spec, device, precision, installed or InstalledPackages())
    graphs = choose_graphs(model.cuda_graphs, device=device, attention=attention.name, max_num_seqs=max_num_seqs)
    if device != "cpu":
        logger.info("%s: attention: %s so far, because %s", model.name, attention.name, attention.reason)
        logger.info("%s: CUDA graphs: %s so far, because %s", model.name, bool(graphs.sizes), graphs.reason)


def _attention(
    model: ModelConfig, spec: ModelSpec, device: str, precision: str, installed: InstalledPackages
) -> AttentionChoice:
    wanted = AttentionWanted(device=device, precision=precision, head_dim=spec.head_dim, block_size=model.block_size)
    return choose_attention(model.attention, wanted, installed)
