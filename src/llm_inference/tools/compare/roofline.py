"""How much of what the machine can do a workload used: the model's own needs over measured peaks. Arithmetic alone.

    bytes      of one decode step: every weight once, and the keys and values of the contexts in the batch
    FLOPs      of a token: 2 · (P - E) in the layers (P parameters, E of them embeddings), 4 · L · H · D · c in
               attention to c tokens (L layers, H heads of D), and 2 · V · h in the head, where a token is sampled
    ideal      for each step the longer of reading its bytes and computing its FLOPs; steps are as few as the
               concurrency allows, a shared beginning is computed once
    share      ideal time over measured time

Peaks are those of float32; an engine that multiplies integers may exceed a whole share of the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from llm_inference.model_spec import ModelSpec
from llm_inference.tools.compare.machine import Peaks
from llm_inference.tools.compare.workloads import Request, Workload

#: Bits of a weight by class. Four bits have a scale and a minimum for every 32 (GGUF's Q4_1).
WEIGHT_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.0, "int4": 5.0}


class Needs(msgspec.Struct, frozen=True):
    """What a workload asks of any engine, with weights of one class."""

    num_bytes: float
    flops: float
    ideal_s: float


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """`weight_bytes` are read in each step; see the module for the rest."""

    weight_bytes: float
    kv_bytes_per_token: float
    layer_flops: float
    head_flops: float
    attention_flops: float  # for each token of the context

    @classmethod
    def of(cls, spec: ModelSpec, precision: str, gguf_bytes: int | None = None) -> ModelCosts | None:
        """None for a class without known bits. `gguf_bytes`: of a file whose own blocks are the 4-bit weights."""
        bits = WEIGHT_BITS.get(precision)
        if bits is None:
            return None
        embeddings = spec.vocab_size * spec.hidden_size
        both = embeddings * (1 if spec.tie_word_embeddings else 2)
        # Of an untied table of embeddings a step reads single rows.
        read = spec.num_parameters - (both - embeddings)
        weight_bytes = float(gguf_bytes) if precision == "int4" and gguf_bytes is not None else read * bits / 8
        return cls(
            weight_bytes=weight_bytes,
            kv_bytes_per_token=spec.kv_bytes_per_token("float32" if precision == "fp32" else "float16"),
            layer_flops=2.0 * (spec.num_parameters - both),
            head_flops=2.0 * embeddings,
            attention_flops=4.0 * spec.num_layers * spec.num_heads * spec.head_dim,
        )


def needs(workload: Workload, costs: ModelCosts, peaks: Peaks) -> Needs | None:
    """None for a workload whose streams are cut off at some point: there is no telling how much it was."""
    if workload.late:
        return None
    shared = _shared_tokens(workload.requests)
    prompt_tokens = shared + sum(one.num_tokens - shared for one in workload.requests)
    output_tokens = sum(one.max_tokens for one in workload.requests)
    # The first answer token comes with the prompt's own step.
    decodes = sum(one.max_tokens - 1 for one in workload.requests)
    prompt_flops = prompt_tokens * costs.layer_flops + len(workload.requests) * costs.head_flops
    prompt_flops += costs.attention_flops * _pairs(workload.requests, shared)
    decode_flops = decodes * (costs.layer_flops + costs.head_flops)
    contexts = sum(
        one.num_tokens * (one.max_tokens - 1) + one.max_tokens * (one.max_tokens - 1) / 2 for one in workload.requests
    )
    decode_flops += costs.attention_flops * contexts
    steps = decodes / min(workload.concurrency, len(workload.requests))
    decode_bytes = steps * costs.weight_bytes + contexts * costs.kv_bytes_per_token
    decode_s = max(decode_bytes / peaks.read_bytes_per_s, decode_flops / peaks.gemm_flops_per_s)
    prompt_s = prompt_flops / peaks.gemm_flops_per_s
    assert output_tokens
    return Needs(decode_bytes, prompt_flops + decode_flops, prompt_s + decode_s)


def decode_share(workload: Workload, costs: ModelCosts, peaks: Peaks, decode_tokens_per_s: float) -> float:
    """Of one stream after its first token: bytes a second over what memory can be read at."""
    context = sum(one.num_tokens + one.max_tokens / 2 for one in workload.requests) / len(workload.requests)
    step_bytes = costs.weight_bytes + context * costs.kv_bytes_per_token
    return step_bytes * decode_tokens_per_s / peaks.read_bytes_per_s


def _shared_tokens(requests: Sequence[Request]) -> int:
    """The length of the beginning that all prompts have in common; 0 for one prompt."""
    ids = [one.token_ids for one in requests if one.token_ids is not None]
    if len(ids) < 2 or len(ids) < len(requests):
        return 0
    first = ids[0]
    length = min(len(one) for one in ids)
    for place in range(length):
        if any(one[place] != first[place] for one in ids):
            return place
    return length


def _pairs(requests: Sequence[Request], shared: int) -> float:
    """Pairs of a prompt's tokens and the tokens that each attends to, itself included."""
    total = shared * (shared + 1) / 2
    for one in requests:
        total += one.num_tokens * (one.num_tokens + 1) / 2 - shared * (shared + 1) / 2
    return total
