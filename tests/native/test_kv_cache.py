"""Block tables, prefix sharing, eviction order and copy-on-write, without a scheduler."""

from __future__ import annotations

import hashlib
import struct

import pytest

from llm_inference.native.kv_cache import KVCacheManager, PrefixMatch
from llm_inference.native.request import Sequence
from tests.native.scheduling import sequence


def enter(kv: KVCacheManager, entering: Sequence) -> Sequence:
    assert kv.admit(entering, kv.lookup(entering))
    return entering


def compute(kv: KVCacheManager, running: Sequence, num_tokens: int | None = None) -> None:
    """Pretend that the next `num_tokens` (all known ones by default) are computed."""
    count = running.num_uncomputed_tokens if num_tokens is None else num_tokens
    assert kv.allocate(running, count)
    running.num_computed_tokens += count
    kv.commit(running)


def computed(kv: KVCacheManager, prompt: range | list[int], **options: object) -> Sequence:
    entering = enter(kv, sequence(prompt, **options))
    compute(kv, entering)
    return entering


def test_admission_takes_blocks_for_all_tokens_and_free_gives_them_back() -> None:
    kv = KVCacheManager(8, 4)
    running = enter(kv, sequence(range(9)))
    assert len(running.block_table) == 3
    assert len(set(running.block_table)) == 3
    assert [kv.ref_count(block) for block in running.block_table] == [1, 1, 1]
    assert kv.num_free_blocks == 5
    assert kv.usage == pytest.approx(3 / 8)
    kv.free(running)
    assert running.block_table == []
    assert running.num_computed_tokens == 0
    assert (kv.num_free_blocks, kv.usage) == (8, 0.0)


def test_admission_refused_changes_nothing() -> None:
    kv = KVCacheManager(4, 4)
    first = computed(kv, range(9))
    late = sequence(range(20, 28))
    assert not kv.admit(late, kv.lookup(late))
    assert late.block_table == []
    assert late.num_cached_tokens == -1
    assert kv.num_free_blocks == 1
    kv.free(first)
    assert not kv.admit(late, kv.lookup(late), num_spare_blocks=3)
    assert kv.admit(late, kv.lookup(late), num_spare_blocks=2)


def test_blocks_found_but_unused_count_as_taken_when_revived() -> None:
    kv = KVCacheManager(3, 4)
    kv.free(computed(kv, range(12)))
    again = sequence(range(13))  # 4 blocks, 3 of them cached: one more than there is
    assert len(kv.lookup(again).block_ids) == 3
    assert not kv.admit(again, kv.lookup(again))
    assert kv.num_free_blocks == 3


def test_a_prefix_is_found_in_whole_blocks_and_one_token_is_left() -> None:
    kv = KVCacheManager(16, 4)
    first = computed(kv, range(12))
    same = enter(kv, sequence(range(12)))
    assert same.block_table[:2] == first.block_table[:2]
    assert same.block_table[2] != first.block_table[2]
    assert same.num_computed_tokens == same.num_cached_tokens == 8
    longer = enter(kv, sequence([*range(12), 99]))
    assert longer.block_table[:3] == first.block_table
    assert longer.num_cached_tokens == 12
    other = enter(kv, sequence([0, 1, 2, 3, 4, 5, 6, 77, 8, 9, 10, 11, 12]))
    assert other.num_cached_tokens == 4
    assert kv.ref_count(first.block_table[0]) == 4
    assert kv.num_prefix_queries == 12 + 12 + 13 + 13
    assert kv.num_prefix_hits == 0 + 8 + 12 + 4


def test_equal_blocks_at_other_positions_are_not_shared() -> None:
    kv = KVCacheManager(16, 4)
    kv.free(computed(kv, [1, 1, 1, 1, 2, 2, 2, 2]))
    assert kv.lookup(sequence([2, 2, 2, 2, 5])).block_ids == ()
    assert kv.lookup(sequence([3, 3, 3, 3, 2, 2, 2, 2, 5])).block_ids == ()


def test_salts_separate_prefixes() -> None:
    kv = KVCacheManager(16, 4)
    computed(kv, range(8), cache_salt="a")
    assert len(kv.lookup(sequence(range(9), cache_salt="a")).block_ids) == 2
    assert kv.lookup(sequence(range(9), cache_salt="b")).block_ids == ()
    assert kv.lookup(sequence(range(9))).block_ids == ()


def test_the_hash_chain_is_blake2b_over_parent_and_tokens() -> None:
    kv = KVCacheManager(4, 2)
    running = computed(kv, [7, 8, 9, 10], cache_salt="s")
    root = hashlib.blake2b(b"s", digest_size=16).digest()
    first = hashlib.blake2b(root + struct.pack("<qq", 7, 8), digest_size=16).digest()
    second = hashlib.blake2b(first + struct.pack("<qq", 9, 10), digest_size=16).digest()
    assert running.block_hashes == [first, second]


def test_prompt_logprobs_owed_take_no_prefix_until_an_output_exists() -> None:
    kv = KVCacheManager(16, 4)
    computed(kv, range(8))
    scoring = sequence(range(9), prompt_logprobs=1)
    assert kv.lookup(scoring) == PrefixMatch()
    scoring.token_ids.append(50)
    assert len(kv.lookup(scoring).block_ids) == 2


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    kv = KVCacheManager(4, 4, enable_prefix_caching=False)
    kv.free(computed(kv, range(8)))
    again = enter(kv, sequence(range(8)))
    assert again.num_cached_tokens == 0
    assert (kv.num_prefix_queries, kv.num_prefix_hits, kv.num_evictions) == (0, 0, 0)
    assert not any(kv.is_shareable(block) for block in range(4))


def test_a_block_is_found_only_after_its_tokens_are_computed() -> None:
    kv = KVCacheManager(16, 4)
    running = enter(kv, sequence(range(12)))
    assert kv.lookup(sequence(range(12))) == PrefixMatch((), 2)
    compute(kv, running, 5)
    assert kv.lookup(sequence(range(12))) == PrefixMatch((running.block_table[0],), 1)
    compute(kv, running, 7)
    assert kv.lookup(sequence(range(12))) == PrefixMatch(tuple(running.block_table[:2]), 0)


def test_blocks_in_flight_are_forgotten_when_their_sequence_goes() -> None:
    kv = KVCacheManager(16, 4)
    running = enter(kv, sequence(range(12)))
    compute(kv, running, 4)
    kv.free(running)
    assert kv.lookup(sequence(range(12))).num_in_flight_blocks == 0


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    kv = KVCacheManager(16, 4)
    running = computed(kv, range(6))
    for token in (60, 61, 62):
        running.token_ids.append(token)
        compute(kv, running)
    kv.free(running)
    next_turn = sequence([*range(6), 60, 61, 62, 70, 71])
    assert len(kv.lookup(next_turn).block_ids) == 2


def test_eviction_takes_the_longest_unused_first_and_leaves_before_parents() -> None:
    kv = KVCacheManager(6, 4)
    old = computed(kv, range(12))
    new = computed(kv, range(100, 112))
    old_blocks, new_blocks = list(old.block_table), list(new.block_table)
    kv.free(old)
    kv.free(new)
    assert kv.num_evictions == 0
    filler = sequence(range(200, 216))
    assert kv.admit(filler, PrefixMatch())
    assert filler.block_table == [*reversed(old_blocks), new_blocks[2]]
    assert kv.num_evictions == 4
    assert kv.lookup(sequence(range(13))).block_ids == ()
    assert kv.lookup(sequence(range(100, 113))).block_ids == tuple(new_blocks[:2])


def test_blank_blocks_go_before_cached_ones() -> None:
    kv = KVCacheManager(4, 4)
    kv.free(computed(kv, range(8)))
    enter(kv, sequence(range(100, 108)))
    assert kv.num_evictions == 0
    assert len(kv.lookup(sequence(range(9))).block_ids) == 2


def test_use_renews_a_prefix() -> None:
    kv = KVCacheManager(4, 4)
    first, second = computed(kv, range(8)), computed(kv, range(100, 108))
    kv.free(first)
    kv.free(second)
    kv.free(enter(kv, sequence(range(8))))  # renews block 0 of the first; its own second block was never computed
    enter(kv, sequence(range(200, 208)))
    assert len(kv.lookup(sequence(range(9))).block_ids) == 1
    assert len(kv.lookup(sequence(range(100, 109))).block_ids) == 1


def test_a_fork_shares_everything_and_the_first_writer_copies_the_partial_block() -> None:
    kv = KVCacheManager(16, 4)
    parent = computed(kv, range(6))
    child = sequence(range(6))
    kv.fork(parent, child)
    assert child.block_table == parent.block_table
    assert child.num_computed_tokens == 6
    shared = list(parent.block_table)
    assert [kv.ref_count(block) for block in shared] == [2, 2]
    assert kv.allocate(parent, 1)
    assert kv.take_block_copies() == [(shared[1], parent.block_table[1])]
    assert parent.block_table[0] == child.block_table[0]
    assert parent.block_table[1] != child.block_table[1]
    assert kv.allocate(child, 1)  # the last holder writes in place
    assert kv.take_block_copies() == []
    assert child.block_table == shared


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    kv = KVCacheManager(16, 4)
    parent, child = computed(kv, range(8)), sequence(range(8))
    kv.fork(parent, child)
    assert kv.allocate(parent, 1)
    assert kv.allocate(child, 1)
    assert kv.take_block_copies() == []
    assert parent.block_table[:2] == child.block_table[:2]
    assert parent.block_table[2] != child.block_table[2]


def test_copy_on_write_without_a_free_block_is_refused_whole() -> None:
    kv = KVCacheManager(2, 4)
    parent, child = computed(kv, range(6)), sequence(range(6))
    kv.fork(parent, child)
    before = list(parent.block_table)
    assert not kv.allocate(parent, 1)
    assert parent.block_table == before
    assert kv.take_block_copies() == []
    kv.free(child)
    assert kv.allocate(parent, 1)
    assert parent.block_table == before


def test_a_findable_block_is_never_written_even_by_its_only_holder() -> None:
    kv = KVCacheManager(4, 4)
    running = computed(kv, range(4))
    original = running.block_table[0]
    running.num_computed_tokens = 3
    assert kv.allocate(running, 1)
    assert kv.take_block_copies() == [(original, running.block_table[0])]
    assert running.block_table[0] != original


def test_commit_puts_the_known_block_in_the_place_of_a_second_copy() -> None:
    kv = KVCacheManager(8, 4)
    first = enter(kv, sequence(range(8)))
    second = sequence(range(8))
    assert kv.admit(second, PrefixMatch())  # as if both had started at once
    compute(kv, first)
    assert kv.num_free_blocks == 4
    compute(kv, second)
    assert second.block_table == first.block_table
    assert kv.num_free_blocks == 6
    assert [kv.ref_count(block) for block in first.block_table] == [2, 2]


def test_a_fork_in_the_step_of_a_second_copy_holds_the_known_blocks_too() -> None:
    kv = KVCacheManager(8, 4)
    known = computed(kv, range(4))
    parent, child = sequence(range(8)), sequence(range(8))
    assert kv.admit(parent, PrefixMatch())
    kv.fork(parent, child)
    for forked in (parent, child):
        forked.num_computed_tokens = 8
        kv.commit(forked)
    assert parent.block_table == child.block_table
    assert child.block_table[0] == known.block_table[0]
    assert [kv.ref_count(block) for block in child.block_table] == [3, 2]
    assert kv.num_free_blocks == 6


def test_only_the_first_admission_counts_as_a_cache_query() -> None:
    kv = KVCacheManager(8, 4)
    running = computed(kv, range(9))
    kv.free(running)
    assert kv.admit(running, kv.lookup(running))
    assert running.num_computed_tokens == 8
    assert running.num_cached_tokens == 0
    assert (kv.num_prefix_queries, kv.num_prefix_hits) == (9, 0)


def test_freeing_twice_is_caught() -> None:
    kv = KVCacheManager(4, 4)
    running = computed(kv, range(4))
    table = list(running.block_table)
    kv.free(running)
    running.block_table = table
    with pytest.raises(AssertionError, match="freed twice"):
        kv.free(running)
