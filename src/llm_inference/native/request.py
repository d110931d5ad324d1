"""A request inside the core, and its sequences. No tensors, no text, no sockets.

    CoreRequest ── one prompt, resolved sampling
      └── Sequence 0 … n-1 ── one choice each: tokens, blocks, progress

A sequence's tokens are prompt then output. The invariant that everything else leans on:

    token_ids:  [ computed: KV in cache | scheduled this step | not yet scheduled ]
                 0        num_computed_tokens                        len(token_ids)

A decoding sequence has exactly one token that is not computed: the one sampled last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from llm_inference.engine.types import FinishReason, Pooling, SamplingParams


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a vector instead of tokens. `group`: the client's request that this input is a part of."""

    mode: Pooling
    normalize: bool = True
    dimensions: int | None = None
    group: str = ""


class CoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the front sends to the core. `sampling` is resolved: no None where a default applies, `max_tokens` set."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # lower runs first
    cache_salt: str = ""
    pooling: PoolingParams | None = None  # set: `sampling.max_tokens` is 0

    @property
    def needs_every_position(self) -> bool:
        """Whether what is asked for can only come from computing the whole prompt, whatever the cache holds of it."""
        if self.pooling is not None:
            return self.pooling.mode != "last"
        return self.sampling.prompt_logprobs is not None


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class SampledToken(msgspec.Struct, frozen=True):
    """One sampled token. `logprob` and `top` (id, logprob; best first) only where they were asked for."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request. Mutated only by the scheduler and the KV cache manager."""

    request: CoreRequest
    index: int
    token_ids: list[int]
    arrival_s: float
    num_prompt_tokens: int
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    #: Prompt tokens found in the prefix cache when first admitted; -1 before that.
    num_cached_tokens: int = -1
    #: Physical block of each logical block, in order.
    block_table: list[int] = field(default_factory=list)
    #: Chain hash of each full block of `token_ids`, as far as computed so far.
    block_hashes: list[bytes] = field(default_factory=list)
    #: How many blocks of `block_table`, from the first, others can find by their hash.
    num_committed_blocks: int = 0
    #: Choices still to be forked from this one once its prompt is computed (n - 1 at first).
    num_pending_forks: int = 0
    num_preemptions: int = 0
    #: Computed, and waiting for a decision on its next token (beam search): nothing to schedule until `grow`.
    parked: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    first_scheduled_s: float | None = None
    first_token_s: float | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_output_tokens_left(self) -> int:
        """What `max_tokens` leaves."""
        assert self.request.sampling.max_tokens is not None  # resolved by the front
        return self.request.sampling.max_tokens - self.num_output_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def append(self, token_id: int) -> None:
        """Add a sampled token and decide whether it ends the sequence.

        Order: EOS and stop ids (not before `min_tokens`), then the length. An ending token stays in `token_ids`;
        the front leaves it out of the text.
        """
        self.token_ids.append(token_id)
        sampling = self.request.sampling
        num_output = self.num_output_tokens
        if num_output >= sampling.min_tokens:
            if not sampling.ignore_eos and token_id in self.request.eos_token_ids:
                self.finish_reason, self.stop_reason = "stop", None
                return
            if token_id in sampling.stop_token_ids:
                self.finish_reason, self.stop_reason = "stop", token_id
                return
        assert sampling.max_tokens is not None  # resolved by the front
        if num_output >= sampling.max_tokens:
            self.finish_reason = "length"
