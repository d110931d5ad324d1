"""Scheduler and KV cache against a simple model, driven by random rules over tiny pools.

The model keeps what a GPU would keep: for each slot, which content was written there. A content is the salt and all
tokens up to and including the slot's own, so a sequence that reads another's slot, a stale one or one that was not
copied is caught in the step in which it would read it. Drafted tokens are written, too, and some are rejected: what
they left must never be read, or be found by another. Around it: blocks are conserved, reference counts equal the
tables, nothing shared is written, every choice ends exactly once, and everything ends.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llm_inference.native.batch import Batch, ModelInput
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.request import CoreRequest, SampledToken, Sequence, SequenceStatus
from llm_inference.native.scheduler import Scheduler
from llm_inference.native.scheduler_config import SchedulerConfig
from llm_inference.native.speculation import SpeculationSetup, Speculator, num_kept
from tests.native.scheduling import request

Content = tuple[str, tuple[int, ...]]

#: Prompts start alike, so that prefixes are shared, diverge and meet again.
STEMS = ([0] * 24, [0] * 8 + [1] * 16, [0, 1] * 12)
EOS = 3


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 6),
        extra_budget=st.integers(0, 12),
        beside_decodes=st.none() | st.integers(1, 8),
        caching=st.sampled_from([True, True, True, False]),
        ageing_s=st.sampled_from([1.0, 30.0, float("inf")]),
        window=st.sampled_from([1, 3, 32]),
        num_drafted=st.sampled_from([0, 1, 3, 8]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        extra_budget: int,
        beside_decodes: int | None,
        caching: bool,
        ageing_s: float,
        window: int,
        num_drafted: int,
    ) -> None:
        self.kv = KVCacheManager(num_blocks, block_size, caching)
        self.config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget,
            max_model_len=40,
            block_size=block_size,
            max_prefill_tokens_with_decodes=beside_decodes,
            priority_ageing_s=ageing_s,
            admission_window=window,
        )
        speculation = SpeculationSetup(num_tokens=num_drafted, max_ngram=3, min_ngram=1) if num_drafted else None
        self.scheduler = Scheduler(self.config, self.kv, Speculator(speculation))
        self.slots: dict[int, Content] = {}
        self.now = 0.0
        self.num_added = 0
        self.requests: dict[str, CoreRequest] = {}
        self.open: set[tuple[str, int]] = set()  # choices that owe a terminal output
        self.said: dict[tuple[str, int], list[int]] = {}
        self.in_flight: Batch | None = None

    # --- rules

    @rule(
        stem=st.sampled_from(STEMS),
        stem_length=st.integers(0, 24),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=4),
        max_tokens=st.integers(0, 12),
        n=st.integers(1, 3),
        priority=st.integers(-1, 2),
        salt=st.sampled_from(["", "", "", "x"]),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
    )
    def add(
        self,
        stem: list[int],
        stem_length: int,
        tail: list[int],
        max_tokens: int,
        n: int,
        priority: int,
        salt: str,
        prompt_logprobs: int | None,
    ) -> None:
        prompt = [*stem[:stem_length], *tail]
        if len(prompt) + (max_tokens > 0) > self.kv.num_slots:
            prompt = prompt[-1:]
        self.num_added += 1
        name = f"r{self.num_added}"
        added = request(
            name, prompt, max_tokens=max_tokens, n=min(n, self.config.max_num_seqs), priority=priority,
            cache_salt=salt, prompt_logprobs=prompt_logprobs, eos_token_ids=(EOS,),
        )  # fmt: skip
        self.scheduler.add(added, self.now)
        self.requests[name] = added
        self.open.update((name, index) for index in range(added.sampling.n))

    @rule(stem=st.sampled_from(STEMS), max_tokens=st.integers(1, 6), salt=st.sampled_from(["", "x"]))
    def add_twins(self, stem: list[int], max_tokens: int, salt: str) -> None:
        """Alike but for the last token: all but one should wait for the prefix."""
        for tail in range(3):
            self.add(stem, len(stem), [tail], max_tokens, 1, 0, salt, None)

    @precondition(lambda self: self.in_flight is None and self.scheduler.has_work)
    @rule()
    def schedule(self) -> None:
        self.now += 0.5
        decoding = {id(s) for s in self.scheduler._running if s.num_uncomputed_tokens == 1}
        self.in_flight = self.scheduler.schedule(self.now)
        beside = [item.num_tokens for item in self.in_flight.scheduled if id(item.sequence) not in decoding]
        if len(beside) < len(self.in_flight.scheduled):
            assert sum(beside) <= self.config.prefill_tokens_with_decodes(0)
        self._check_and_write(self.in_flight)

    @precondition(lambda self: self.in_flight is not None)
    @rule(tokens=st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, EOS]), min_size=1, max_size=4), right=st.integers(0, 8))
    def update(self, tokens: list[int], right: int) -> None:
        """`right`: so many tokens of each draft are right, if not more by chance."""
        assert self.in_flight is not None
        batch, self.in_flight = self.in_flight, None
        count = 0
        sampled = []
        for item in batch.scheduled:
            row = [*item.drafted[:right]]
            for _ in range(len(item.samplers) + len(item.drafted) - len(row)):
                row.append(tokens[count % len(tokens)])
                count += 1
            if item.drafted:
                row = row[: num_kept(item.drafted, row)]
            sampled.append([SampledToken(token) for token in row])
        for output in self.scheduler.update(batch, sampled, self.now):
            choice = (output.request_id, output.index)
            assert choice in self.open, f"{choice} had ended or was aborted, and still spoke"
            self.said.setdefault(choice, []).extend(token.token_id for token in output.tokens)
            if output.finish_reason is not None:
                self._check_ended(choice, output.finish_reason)
                self.open.remove(choice)

    @rule(
        tokens=st.lists(st.sampled_from([0, 1, 2, EOS]), min_size=1, max_size=4),
        steps=st.integers(1, 6),
        right=st.integers(0, 8),
    )
    def run(self, tokens: list[int], steps: int, right: int) -> None:
        """Several whole steps, so that queues move as fast as they grow."""
        for _ in range(steps):
            if self.in_flight is None and self.scheduler.has_work:
                self.schedule()
            if self.in_flight is not None:
                self.update(tokens, right)
            self.blocks_are_conserved()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({name for name, _ in self.open})))
        assert self.scheduler.abort(name)
        self.open = {choice for choice in self.open if choice[0] != name}
        assert not self.scheduler.abort(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort_choice(self, data: st.DataObject) -> None:
        choice = data.draw(st.sampled_from(sorted(self.open)))
        assert self.scheduler.abort(*choice)
        self.open.remove(choice)
        assert not self.scheduler.abort(*choice)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def step_fails(self) -> None:
        """The model failed: what the core does then is to abort every request of the batch."""
        assert self.in_flight is not None
        batch, self.in_flight = self.in_flight, None
        for name in {item.sequence.request.request_id for item in batch.scheduled}:
            self.scheduler.abort(name)
            self.open = {choice for choice in self.open if choice[0] != name}

    # --- the model

    def _check_and_write(self, batch: Batch) -> None:
        """What a runner would do, checked on the way."""
        assert batch, "there is work, but the step is empty"
        size = self.kv.block_size
        running = self.scheduler._running
        assert 0 < batch.num_tokens <= self.config.max_num_batched_tokens
        ordered = [item.num_tokens > 1 for item in batch.scheduled]
        assert ordered == sorted(ordered), "one-token items come first"
        self._check_seats()

        sources, destinations = [s for s, _ in batch.block_copies], [d for _, d in batch.block_copies]
        assert len(set(destinations)) == len(destinations)
        assert not set(sources) & set(destinations)
        for source, destination in batch.block_copies:
            for offset in range(size):
                self.slots.pop(destination * size + offset, None)
                if source * size + offset in self.slots:
                    self.slots[destination * size + offset] = self.slots[source * size + offset]

        written: set[int] = set()
        for item in batch.scheduled:
            sequence = item.sequence
            assert sequence.status is SequenceStatus.RUNNING
            assert sequence in running
            assert item.start == sequence.num_computed_tokens
            assert item.num_tokens > 0
            scores_only = sequence.request.sampling.max_tokens == 0
            assert bool(item.samplers) == (item.known_end == len(sequence.token_ids) and not scores_only)
            if item.drafted:
                assert item.samplers == [sequence]
                assert item.num_known_tokens == 1
                assert sequence.num_output_tokens > 0
                assert item.end < min(self.config.max_model_len, self.kv.num_slots)
            holders = set(map(id, item.samplers)) | {id(sequence)}
            for block in {sequence.block_table[position // size] for position in range(item.start, item.end)}:
                assert not self.kv.is_shareable(block), "a findable block is written"
                assert all(id(other) in holders for other in running if block in other.block_table)
            for position in range(item.start, item.end):
                slot = sequence.block_table[position // size] * size + position % size
                assert slot not in written, "two sequences write one slot"
                written.add(slot)
                self.slots[slot] = self._content(sequence, position, item.drafted)
        for item in batch.scheduled:
            for reader in [item.sequence, *item.samplers]:
                for position in range(item.end):
                    slot = reader.block_table[position // size] * size + position % size
                    assert self.slots.get(slot) == self._content(reader, position, item.drafted), "a wrong slot is read"
        assert set(ModelInput.build(batch, size).slot_mapping) == written

    def _content(self, sequence: Sequence, position: int, drafted: tuple[int, ...]) -> Content:
        return sequence.request.cache_salt, (*sequence.token_ids, *drafted)[: position + 1]

    def _check_seats(self) -> None:
        assert sum(1 + s.num_pending_forks for s in self.scheduler._running) <= self.config.max_num_seqs

    def _check_ended(self, choice: tuple[str, int], reason: str) -> None:
        ended = self.requests[choice[0]]
        said = self.said[choice]
        assert EOS not in said[:-1]
        if reason == "stop":
            assert said[-1] == EOS
        else:
            assert reason == "length"
            limit = min(self.config.max_model_len, self.kv.num_slots) - len(ended.prompt_token_ids)
            assert len(said) == min(ended.sampling.max_tokens or 0, limit)

    # --- always true

    @invariant()
    def blocks_are_conserved(self) -> None:
        kv, scheduler = self.kv, self.scheduler
        held = Counter(block for sequence in scheduler._running for block in sequence.block_table)
        assert [kv.ref_count(block) for block in range(kv.num_blocks)] == [held[b] for b in range(kv.num_blocks)]
        assert all(len(set(s.block_table)) == len(s.block_table) for s in scheduler._running)
        assert all(not s.block_table and not s.num_computed_tokens for s in scheduler._waiting)
        free = [*kv._blank, *kv._reusable]
        assert sorted([*free, *held]) == list(range(kv.num_blocks)), "a block is lost or twice there"
        assert kv.num_free_blocks == len(free)
        assert {kv._block_hashes[block] for block in kv._reusable} <= set(kv._block_of_hash)
        assert all(kv._block_hashes[block] == block_hash for block_hash, block in kv._block_of_hash.items())
        assert all(owner in scheduler._running for owner in kv._computing.values())

    @invariant()
    def what_is_kept_can_be_reached(self) -> None:
        """A findable block's parent is findable: checked on contents, not on the hashes."""
        size = self.kv.block_size
        known = {self.slots[block * size + size - 1] for block in self.kv._block_of_hash.values()}
        assert len(known) == len(self.kv._block_of_hash), "one content is kept twice"
        assert all((salt, tokens[:-size]) in known for salt, tokens in known if len(tokens) > size)
        for sequence in self.scheduler._running:
            findable = [self.kv.is_shareable(block) for block in sequence.block_table]
            assert findable == sorted(findable, reverse=True)
            assert sum(findable) == sequence.num_committed_blocks

    @invariant()
    def queues_are_in_order_and_nobody_is_lost(self) -> None:
        scheduler = self.scheduler
        for queue in (scheduler._waiting, scheduler._running):
            ranks = [scheduler._rank(sequence) for sequence in queue]
            assert ranks == sorted(set(ranks))
        live = {
            (s.request.request_id, index)
            for s in [*scheduler._waiting, *scheduler._running]
            for index in [s.index, *(scheduler._groups[s.request.request_id].pending if s.num_pending_forks else [])]
        }
        assert live == self.open
        self._check_seats()

    def teardown(self) -> None:
        """Everything that was accepted ends in a bounded number of steps, and the pool is whole again."""
        if not hasattr(self, "scheduler"):
            return
        # Each step computes at least one token of the first-ranked; a preempted one computes its own again.
        limit = 50 + 60 * len(self.open)
        while self.scheduler.has_work:
            limit -= 1
            assert limit > 0, f"not finished: {sorted(self.open)}"
            if self.in_flight is None:
                self.schedule()
            self.update([0, 1], 2)
            self.blocks_are_conserved()
        assert not self.open
        assert self.kv.num_free_blocks == self.kv.num_blocks
        assert not self.kv._computing


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


#: A run of 50 rules makes 30 to 60 steps of the scheduler: 5,000 and more here, over 100,000 in the slow test.
#: A failure is made small before it is shown, which may take five minutes: hence the timeouts.
@pytest.mark.timeout(900)
class TestSchedulerMachine(SchedulerMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=150, stateful_step_count=50, **QUIET)


@pytest.mark.slow
@pytest.mark.timeout(3600)
class TestSchedulerMachineAtLength(SchedulerMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=3000, stateful_step_count=50, **QUIET)
