"""Whether a model fits, and how many KV blocks it gets. Pure arithmetic, torch-free; refusals say what would fit.

available memory × utilization
├── weights            parameters × bytes each
├── working space      activations and logits of the largest step
└── KV cache           num_blocks × block_size × bytes per token
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_inference.errors import OutOfMemoryError

GIB = 2**30

#: On a CPU nobody asked for all the memory: without a word in the config the cache stops growing here.
DEFAULT_CPU_KV_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """Sizes in bytes, computed from the model's description (`model_spec.py`)."""

    weight_bytes: int
    kv_bytes_per_token: int
    workspace_bytes: int
    #: What the weights would take in other precisions, for the advice: name → bytes.
    alternatives: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    num_kv_blocks: int
    kv_cache_bytes: int
    reason: str


def plan_memory(
    needs: MemoryNeeds,
    *,
    available_bytes: int,
    utilization: float,
    kv_cache_bytes: int | None,
    default_kv_bytes: int | None,
    max_model_len: int,
    max_num_seqs: int,
    block_size: int,
) -> MemoryPlan:
    """Size the KV cache of a device with `available_bytes` free.

    `kv_cache_bytes` asked for by the user goes before `utilization`. Raises `OutOfMemoryError` unless the weights and
    one sequence of `max_model_len` tokens fit.
    """
    block_bytes = block_size * needs.kv_bytes_per_token
    usable = int(available_bytes * utilization)
    room = usable - needs.weight_bytes - needs.workspace_bytes
    least = -(-max_model_len // block_size) * block_bytes
    most = max_num_seqs * least
    if kv_cache_bytes is not None:
        wanted, reason = kv_cache_bytes, "as configured in kv_cache_memory"
        if wanted < least:
            fits = wanted // block_bytes * block_size
            raise OutOfMemoryError(
                f"kv_cache_memory is {_show(wanted)}, but one sequence of max_model_len={max_model_len} tokens takes "
                f"{_show(least)}. Set kv_cache_memory to at least that, or max_model_len to at most {fits}."
            )
        if wanted + needs.weight_bytes + needs.workspace_bytes > available_bytes:
            raise OutOfMemoryError(_refusal(needs, available_bytes, wanted, block_bytes, block_size, max_model_len))
    else:
        if room < least:
            raise OutOfMemoryError(_refusal(needs, usable, least, block_bytes, block_size, max_model_len))
        wanted, reason = room, f"{utilization:.0%} of {_show(available_bytes)} available, less weights and workspace"
        if default_kv_bytes is not None and wanted > max(default_kv_bytes, least):
            wanted, reason = max(default_kv_bytes, least), "the default on a CPU; kv_cache_memory sets another"
        if wanted > most:
            wanted, reason = most, f"enough for max_num_seqs={max_num_seqs} sequences of {max_model_len} tokens"
    num_blocks = wanted // block_bytes
    return MemoryPlan(num_kv_blocks=num_blocks, kv_cache_bytes=num_blocks * block_bytes, reason=reason)


def _refusal(
    needs: MemoryNeeds, usable: int, kv_bytes: int, block_bytes: int, block_size: int, max_model_len: int
) -> str:
    total = needs.weight_bytes + needs.workspace_bytes + kv_bytes
    message = (
        f"the model needs {_show(total)} of memory: {_show(needs.weight_bytes)} for weights, "
        f"{_show(needs.workspace_bytes)} to work in and {_show(kv_bytes)} of KV cache for {max_model_len} tokens; "
        f"{_show(usable)} can be used."
    )
    advice = []
    room = usable - needs.weight_bytes - needs.workspace_bytes
    if room >= block_bytes:
        advice.append(f"set max_model_len to at most {room // block_bytes * block_size}")
    for name, weight_bytes in needs.alternatives.items():
        if weight_bytes < needs.weight_bytes and weight_bytes + needs.workspace_bytes + kv_bytes <= usable:
            advice.append(f"set precision: {name} ({_show(weight_bytes)} of weights)")
            break
    if not advice:
        advice.append("free some memory, or use a smaller model or a machine with more")
    return f"{message} What would help: {', or '.join(advice)}."


def _show(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / 2**20:.1f} MiB"
