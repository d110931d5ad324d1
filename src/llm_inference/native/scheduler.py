"""Who computes which tokens in the next step. No tensors, no text, no clock of its own (`now` is given).

    add ──► waiting ──admit──► running ──► finished          update, abort: out of either list
               ▲                  │
               └──────preempt─────┘   blocks freed (but findable), recomputed later

**Order.** Everything is ranked by `priority + arrival / ageing`, then by arrival: a waiting request gains one priority
level per `priority_ageing_s` on those that arrive later, so none starves; and since all age alike, ranks never change
and nothing is ever sorted again.

**A step** first takes one token of each running sequence that decodes, in rank order. A sequence that gets no block
preempts the lowest-ranked running one, perhaps itself; so the highest-ranked always goes on. Then prompts are computed
in chunks within what is left of `max_num_batched_tokens`, at most `max_prefill_tokens_with_decodes` beside decodes:
the highest-ranked running prompt, the other running ones, shortest remainder first, then waiting ones in rank order.
`prefill_budget.py` shares the tokens out, so that a short prompt does not wait for all chunks of a long one.

**Admission.** A sequence enters with a seat for each of its choices and blocks for all of its tokens, and one block to
spare for each other seat taken; nothing is preempted for it, and none is admitted in a step that preempts. It is
passed over, its seats and blocks kept free, while a longer prompt has the budget or while a running sequence computes
the very blocks that it needs next (if that one goes away, it computes them itself). For want of seats or blocks all
wait.

**Choices.** All n choices are one sequence until its prompt is computed; in that step the others fork off and share
its blocks.

**Beams.** A sequence whose token is left open in `update` (None) is parked until `grow` gives it one; `fork` and `drop`
do the rest, between `update` and `schedule`. When parked sequences hold the blocks that others wait for, they give way.

**Drafts.** What the budget has left may go to guessed tokens (`speculation.py`) behind a decoding sequence's last one,
in free blocks: nobody is preempted for them. Wrong ones' slots are written again later; only what stands is committed.

Look-ahead (scheduling a step before the last one's tokens are known) would need positions counted from tokens in
flight rather than from `num_computed_tokens`, nothing else here. How tokens are computed, sampled or sent is not
known here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import islice

from llm_inference.engine.base import EngineStats
from llm_inference.engine.types import FinishReason
from llm_inference.errors import InvalidRequestError
from llm_inference.native.batch import Batch, ScheduledSequence
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.prefill_budget import PrefillBudget
from llm_inference.native.request import CoreRequest, SampledToken, Sequence, SequenceStatus
from llm_inference.native.scheduler_config import SchedulerConfig
from llm_inference.native.speculation import Speculator


@dataclass(slots=True, eq=False)
class _Group:
    """The choices of one request: live sequences by index, and indices that have not forked off yet."""

    rank: tuple[float, int]
    live: dict[int, Sequence] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)


class Scheduler:
    """Call `schedule`, compute and sample the batch, call `update` with it; `add` and `abort` at any time between.

    Not thread-safe. `num_preemptions` counts sequences sent back to wait. Without a `speculator` nothing is drafted.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, speculator: Speculator | None = None) -> None:
        assert config.block_size == kv.block_size
        self.config = config
        self.kv = kv
        self.num_preemptions = 0
        self._speculator = Speculator() if speculator is None else speculator
        self._num_added = 0
        #: A sequence ends here at the latest: prompt and output tokens.
        self._max_len = min(config.max_model_len, kv.num_slots)
        self._groups: dict[str, _Group] = {}
        self._waiting: list[Sequence] = []  # both lists by rank, the first goes first
        self._running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks. Choices that have not forked off are not counted."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold nothing yet, or nothing any more."""
        return len(self._waiting)

    def is_live(self, request_id: str) -> bool:
        """Whether any choice of the request is waiting or running."""
        return request_id in self._groups

    def stats(self) -> EngineStats:
        """Load and cache figures; steps and tokens are counted by the one who drives the steps."""
        return EngineStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            kv_cache_usage=self.kv.usage,
            num_kv_blocks=self.kv.num_blocks,
            num_free_kv_blocks=self.kv.num_free_blocks,
            kv_block_size=self.kv.block_size,
            prefix_cache_queries=self.kv.num_prefix_queries,
            prefix_cache_hits=self.kv.num_prefix_hits,
            num_preemptions=self.num_preemptions,
            num_evictions=self.kv.num_evictions,
            num_drafted_tokens=self._speculator.num_drafted_tokens,
            num_accepted_tokens=self._speculator.num_accepted_tokens,
        )

    # --- requests come and go

    def add(self, request: CoreRequest, now: float) -> None:
        """Let `request` wait. Raises `InvalidRequestError` or `ContextLengthError` if it could never run."""
        if request.request_id in self._groups:
            raise InvalidRequestError(
                f"Request id {request.request_id!r} is in use by a request that is not finished; choose another.",
                param="request_id",
            )
        num_choices = self.config.check(request, self.kv.num_slots)
        self._num_added += 1
        rank = request.priority + now / self.config.priority_ageing_s
        group = _Group((rank, self._num_added), pending=list(range(1, num_choices)))
        prompt = list(request.prompt_token_ids)
        sequence = Sequence(request, 0, prompt, now, len(prompt), num_pending_forks=num_choices - 1)
        group.live[0] = sequence
        self._groups[request.request_id] = group
        insort(self._waiting, sequence, key=self._rank)
        self.kv.lookup(sequence)  # hashes the prompt once, here rather than within a step

    def abort(self, request_id: str, index: int | None = None) -> bool:
        """Drop a request, or one choice of it, at once and without an output. False if there is none (any more)."""
        group = self._groups.get(request_id)
        if group is None:
            return False
        if index is None:
            group.pending.clear()
            for sequence in list(group.live.values()):
                self.drop(sequence, "abort")
            return True
        if index in group.pending:
            group.pending.remove(index)
            next(iter(group.live.values())).num_pending_forks -= 1
            return True
        found = group.live.get(index)
        if found is None:
            return False
        if group.pending:  # the others still need the prompt that it computes: it becomes the next of them
            del group.live[index]
            found.index = group.pending.pop(0)
            found.num_pending_forks -= 1
            group.live[found.index] = found
        else:
            self.drop(found, "abort")
        return True

    def drop(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """End a live sequence: its blocks are free for others, and its request is forgotten with the last one."""
        self._remove(self._running if sequence.status is SequenceStatus.RUNNING else self._waiting, sequence)
        self.kv.free(sequence)
        self._speculator.forget(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        request_id = sequence.request.request_id
        group = self._groups[request_id]
        del group.live[sequence.index]
        if not group.live:
            del self._groups[request_id]

    def fork(self, parent: Sequence, index: int) -> Sequence:
        """A copy of a live `parent` as choice `index`, sharing what blocks it has. The seat is the caller's care."""
        child = Sequence(
            parent.request, index, list(parent.token_ids), parent.arrival_s, parent.num_prompt_tokens,
            status=parent.status,
            first_scheduled_s=parent.first_scheduled_s,
            first_token_s=parent.first_token_s,
        )  # fmt: skip
        self.kv.fork(parent, child)
        self._groups[parent.request.request_id].live[index] = child
        insort(self._running if parent.status is SequenceStatus.RUNNING else self._waiting, child, key=self._rank)
        return child

    def grow(self, sequence: Sequence, token_id: int) -> None:
        """Give a parked sequence (or its fresh fork) the next token, and let it run. Ends are the caller's care."""
        sequence.token_ids.append(token_id)
        sequence.parked = False

    def sequences(self, request_id: str) -> list[Sequence]:
        """The live sequences of a request, by index; none if it is not live."""
        group = self._groups.get(request_id)
        return [] if group is None else [group.live[index] for index in sorted(group.live)]

    # --- steps

    def schedule(self, now: float) -> Batch:
        """The next step's work; empty only if there is none. One-token items come first."""
        while True:
            batch = self._schedule_once(now)
            parked = [sequence for sequence in self._running if sequence.parked]
            if batch or not parked:
                return batch
            self._preempt(parked[-1])  # what the others wait for are its blocks

    def _schedule_once(self, now: float) -> Batch:
        num_preemptions = self.num_preemptions
        decodes = self._schedule_decodes()
        budget = num_free = self.config.max_num_batched_tokens - len(decodes)
        if decodes:
            context = max((s.num_computed_tokens for s in self._running if s.num_uncomputed_tokens > 1), default=0)
            budget = min(budget, self.config.prefill_tokens_with_decodes(context))
        chunks = self._schedule_prefills(budget, now, may_admit=self.num_preemptions == num_preemptions)
        self._draft(decodes, num_free - sum(num_tokens for _, num_tokens in chunks))
        items = decodes + [ScheduledSequence(sequence, sequence.num_computed_tokens, n) for sequence, n in chunks]
        for item in items:
            sequence = item.sequence
            if item.known_end == len(sequence.token_ids) and sequence.request.sampling.max_tokens != 0:
                item.samplers = [sequence, *self._fork_pending(sequence)]
        items.sort(key=lambda item: item.num_tokens > 1)  # stable: each kind stays in its order
        return Batch(items, self.kv.take_block_copies(), now)

    def update(self, batch: Batch, sampled: Rows[Rows[SampledToken | None]], now: float) -> list[SequenceOutput]:
        """Take back a computed batch. `sampled[i][j]` is the token of `batch.scheduled[i].samplers[j]`; None parks it.

        Of an item with a draft: the one sampler's next tokens, all but the last of them as drafted (`num_kept`).
        Returns one output per sampled token, and the last one of each choice that is only scored. Sequences
        aborted since `schedule` are passed over.
        """
        outputs: list[SequenceOutput] = []
        if all(item.num_known_tokens == 1 for item in batch.scheduled):
            self._speculator.observe_step(batch.num_tokens, now - batch.scheduled_s)
        for item, tokens in zip(batch.scheduled, sampled, strict=True):
            sequence = item.sequence
            if item.drafted:
                outputs += self._take_drafted(item, tokens, now)
                continue
            for computed in item.samplers or (sequence,):
                if computed.status is SequenceStatus.RUNNING:
                    computed.num_computed_tokens = item.end
                    self.kv.commit(computed)
            if item.samplers:
                for sampler, token in zip(item.samplers, tokens, strict=True):
                    if sampler.status is not SequenceStatus.RUNNING:
                        continue
                    if token is None:
                        sampler.parked = True
                    else:
                        outputs.append(self._take_token(sampler, token, now))
            elif sequence.status is SequenceStatus.RUNNING and sequence.num_uncomputed_tokens == 0:
                outputs += self._finish_scoring(sequence)
        return outputs

    # --- inside: requests

    def _rank(self, sequence: Sequence) -> tuple[float, int, int]:
        rank, number = self._groups[sequence.request.request_id].rank
        return rank, number, sequence.index

    def _remove(self, sequences: list[Sequence], sequence: Sequence) -> None:
        position = bisect_left(sequences, self._rank(sequence), key=self._rank)
        assert sequences[position] is sequence
        del sequences[position]

    # --- inside: schedule

    def _schedule_decodes(self) -> list[ScheduledSequence]:
        """One token of each running sequence that lacks just one; preempts from the end when blocks run out."""
        items = []
        for sequence in [s for s in self._running if s.num_uncomputed_tokens == 1]:
            while sequence.status is SequenceStatus.RUNNING:
                if self.kv.allocate(sequence, 1):
                    items.append(ScheduledSequence(sequence, sequence.num_computed_tokens, 1))
                    break
                self._preempt(self._running[-1])  # not yet in `items`: it ranks last
        return items

    def _preempt(self, sequence: Sequence) -> None:
        self._remove(self._running, sequence)
        self.kv.free(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        insort(self._waiting, sequence, key=self._rank)

    def _schedule_prefills(self, budget: int, now: float, may_admit: bool) -> list[tuple[Sequence, int]]:
        """(sequence, number of tokens) for prompts, running and newly admitted."""
        shares = PrefillBudget(budget)
        running = [s for s in self._running if s.num_uncomputed_tokens > 1]
        for sequence in running[:1] + sorted(running[1:], key=lambda s: s.num_uncomputed_tokens):
            shares.offer(sequence)
        if may_admit and self._waiting and shares.rest > 0:
            self._admit_waiting(shares, now)
        return shares.close()

    def _draft(self, decodes: list[ScheduledSequence], budget: int) -> None:
        """Let decodes compute, beside their last token, tokens that may follow: within `budget` and the free blocks."""
        budget = min(budget, self._speculator.begin_step(len(decodes)))
        for item in decodes:
            sequence = item.sequence
            # The last token of all is never drafted: there would be nothing to sample behind it.
            limit = min(budget, sequence.num_output_tokens_left - 1, self._max_len - len(sequence.token_ids) - 1)
            drafted = self._speculator.draft(sequence, limit, len(decodes)) if limit > 0 else ()
            if drafted and self.kv.allocate(sequence, 1 + len(drafted)):
                item.drafted = drafted
                budget -= len(drafted)

    def _admit_waiting(self, shares: PrefillBudget, now: float) -> None:
        num_free_seats = self.config.max_num_seqs - sum(1 + s.num_pending_forks for s in self._running)
        num_seats_taken = self.config.max_num_seqs - num_free_seats
        num_kept_blocks = 0  # for those that are passed over
        num_free_seats -= sum(1 for s in self._waiting if s.parked)  # theirs again as soon as they grow
        candidates = (s for s in self._waiting if not s.parked)
        for sequence in list(islice(candidates, self.config.admission_window)):
            num_seats = 1 + sequence.num_pending_forks
            if shares.rest == 0 or num_seats > num_free_seats:
                return
            num_free_seats -= num_seats  # also when it is passed over
            match = self.kv.lookup(sequence)
            num_found = len(match.block_ids)
            num_to_compute = len(sequence.token_ids) - num_found * self.kv.block_size
            if match.num_in_flight_blocks or not shares.is_worth(num_to_compute):
                num_needed = self.kv.num_blocks_for(len(sequence.token_ids))
                num_kept_blocks += num_needed - num_found - match.num_in_flight_blocks
                continue
            num_spare = num_kept_blocks + (num_seats_taken + num_seats - 1 if self._running else 0)
            if not self.kv.admit(sequence, match, num_spare):
                return
            num_seats_taken += num_seats
            self._remove(self._waiting, sequence)
            sequence.status = SequenceStatus.RUNNING
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = now
            insort(self._running, sequence, key=self._rank)
            shares.offer(sequence)

    def _fork_pending(self, sequence: Sequence) -> list[Sequence]:
        """The choices of a request whose prompt is computed in this step; none if they have forked off already."""
        pending = self._groups[sequence.request.request_id].pending
        children = [self.fork(sequence, index) for index in pending]
        pending.clear()
        sequence.num_pending_forks = 0
        return children

    # --- inside: update

    def _take_drafted(
        self, item: ScheduledSequence, tokens: Rows[SampledToken | None], now: float
    ) -> list[SequenceOutput]:
        sequence = item.sequence
        if sequence.status is not SequenceStatus.RUNNING:
            return []
        self._speculator.learn(sequence, len(item.drafted), len(tokens) - 1)
        outputs: list[SequenceOutput] = []
        for place, token in enumerate(tokens):
            assert token is not None
            sequence.num_computed_tokens = item.start + 1 + place
            self.kv.commit(sequence)
            outputs.append(self._take_token(sequence, token, now))
            if sequence.finish_reason is not None:
                break
        return outputs

    def _take_token(self, sequence: Sequence, token: SampledToken, now: float) -> SequenceOutput:
        if sequence.first_token_s is None:
            sequence.first_token_s = now
        sequence.append(token.token_id)
        if sequence.finish_reason is None and len(sequence.token_ids) >= self._max_len:
            sequence.finish_reason = "length"
        output = self._output(sequence, sequence.index, (token,))
        if sequence.finish_reason is not None:
            self.drop(sequence, sequence.finish_reason)
        return output

    def _finish_scoring(self, sequence: Sequence) -> list[SequenceOutput]:
        """The last word on a prompt of which no output was wanted: one for each choice."""
        group = self._groups[sequence.request.request_id]
        sequence.finish_reason = "length"
        outputs = [self._output(sequence, index, ()) for index in (sequence.index, *group.pending)]
        group.pending.clear()
        self.drop(sequence, "length")
        return outputs

    def _output(self, sequence: Sequence, index: int, tokens: tuple[SampledToken, ...]) -> SequenceOutput:
        return SequenceOutput(
            request_id=sequence.request.request_id,
            index=index,
            tokens=tokens,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            num_cached_tokens=max(sequence.num_cached_tokens, 0),
            first_scheduled_s=sequence.first_scheduled_s,
            first_token_s=sequence.first_token_s,
        )
