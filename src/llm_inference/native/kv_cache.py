"""KV blocks: which physical block holds which tokens of which sequences. No tensors, no policy, no clock.

A block of `block_size` slots is in exactly one of three states:

    blank      ── nothing of worth inside; the first to be handed out
    referenced ── in `ref_count` block tables
    reusable   ── in no table, but full, hashed and findable: handed out last, the longest unused first (an eviction)

              admit, allocate                     free (not hashed)
    blank ───────────────────────► referenced ───────────────────────► blank
                                     ▲      │
                   admit (found)     │      ▼    free (hashed)
                                   reusable ───── evicted by admit, allocate ─► referenced by another

A full block whose tokens are computed gets a chain hash over its parent's hash and its own token ids (BLAKE2b, 128
bits, with the request's cache salt at the root): equal hashes mean equal tokens at equal positions after equal
prefixes. Two invariants that everything leans on:

- a block is written only while one table holds it and it has no hash (else it is copied first: copy-on-write);
- a hashed block's parent is hashed too: `free` gives leaves back before parents, and `commit` puts the known block in
  the place of a second copy. So what is kept can be reached from the root.

This module does not know who should run, wait or be preempted: `scheduler.py` does.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from dataclasses import dataclass

from llm_inference.native.request import Sequence


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the cache holds of a waiting sequence. Good until the next call that changes the cache."""

    #: Blocks whose tokens are computed, in order from the first.
    block_ids: tuple[int, ...] = ()
    #: How many blocks right after those are being computed by running sequences.
    num_in_flight_blocks: int = 0


class KVCacheManager:
    """Block tables, reference counts and the prefix cache of one pool of `num_blocks` blocks.

    `num_prefix_queries` and `num_prefix_hits` count prompt tokens looked up and found when a sequence first enters.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_evictions = 0
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0
        self._ref_counts = [0] * num_blocks
        self._block_hashes: list[bytes | None] = [None] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._block_of_hash: dict[bytes, int] = {}
        self._computing: dict[bytes, Sequence] = {}  # hash of a block to come → the running sequence that computes it
        self._block_copies: list[tuple[int, int]] = []

    @property
    def num_free_blocks(self) -> int:
        """Blocks in no table: blank and reusable ones."""
        return len(self._blank) + len(self._reusable)

    @property
    def usage(self) -> float:
        """Share of the pool that tables hold, 0..1. What is only kept for reuse does not count."""
        return 1.0 - self.num_free_blocks / self.num_blocks

    @property
    def num_slots(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_blocks * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def ref_count(self, block_id: int) -> int:
        """Number of block tables that hold the block."""
        return self._ref_counts[block_id]

    def is_shareable(self, block_id: int) -> bool:
        """Whether the block can be found by its hash, and therefore is never written again."""
        return self._block_hashes[block_id] is not None

    # --- a waiting sequence enters

    def lookup(self, sequence: Sequence) -> PrefixMatch:
        """The longest cached prefix of a sequence without blocks, in whole blocks; changes nothing but its hashes.

        At least one token stays to be computed, so that there are logits to sample from. A sequence that owes
        something of every position (prompt logprobs, a mean) finds nothing: it can only come from computing them.
        """
        if not self.enable_prefix_caching:
            return PrefixMatch()
        if sequence.request.needs_every_position and sequence.num_output_tokens == 0:
            return PrefixMatch()
        limit = (len(sequence.token_ids) - 1) // self.block_size
        self._extend_hashes(sequence, limit)
        found: list[int] = []
        for position in range(limit):
            block_id = self._block_of_hash.get(sequence.block_hashes[position])
            if block_id is None:
                break
            found.append(block_id)
        end = len(found)
        while end < limit and sequence.block_hashes[end] in self._computing:
            end += 1
        return PrefixMatch(tuple(found), end - len(found))

    def admit(self, sequence: Sequence, match: PrefixMatch, num_spare_blocks: int = 0) -> bool:
        """Give `sequence` the blocks of `match` and fresh ones for all the rest of its tokens.

        False, with nothing changed, unless `num_spare_blocks` would still be free afterwards. Sets
        `num_computed_tokens` and, the first time, `num_cached_tokens`. `match` must be fresh from `lookup`.
        """
        assert not sequence.block_table
        num_fresh = self.num_blocks_for(len(sequence.token_ids)) - len(match.block_ids)
        num_revived = sum(1 for block_id in match.block_ids if self._ref_counts[block_id] == 0)
        if num_fresh + num_revived + num_spare_blocks > self.num_free_blocks:
            return False
        for block_id in match.block_ids:
            self._reference(block_id)
        sequence.block_table = list(match.block_ids)
        sequence.block_table.extend(self._take() for _ in range(num_fresh))
        sequence.num_committed_blocks = len(match.block_ids)
        sequence.num_computed_tokens = len(match.block_ids) * self.block_size
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.num_prefix_queries += sequence.num_prompt_tokens if self.enable_prefix_caching else 0
            self.num_prefix_hits += sequence.num_cached_tokens
        if self.enable_prefix_caching:
            num_full = len(sequence.token_ids) // self.block_size
            self._extend_hashes(sequence, num_full)
            for block_hash in sequence.block_hashes[len(match.block_ids) : num_full]:
                if block_hash not in self._block_of_hash:
                    self._computing.setdefault(block_hash, sequence)
        return True

    # --- a running sequence writes

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the slots of the next `num_tokens` tokens after `num_computed_tokens` exist and writable.

        False, with nothing changed, if the pool cannot give the blocks. A block that others hold too is replaced by
        a fresh one; where it has computed tokens, the copy is noted for `take_block_copies`.
        """
        table = sequence.block_table
        start = sequence.num_computed_tokens
        first, end = start // self.block_size, self.num_blocks_for(start + num_tokens)
        shared = [i for i in range(first, min(end, len(table))) if not self._is_writable(table[i])]
        num_fresh = max(end - len(table), 0)
        if len(shared) + num_fresh > self.num_free_blocks:
            return False
        for i in shared:
            source, table[i] = table[i], self._take()
            self._release(source)
            if i * self.block_size < start:
                self._block_copies.append((source, table[i]))
        table.extend(self._take() for _ in range(num_fresh))
        return True

    def take_block_copies(self) -> list[tuple[int, int]]:
        """The (source, destination) copies noted since the last call, to be made before the step's first write."""
        copies, self._block_copies = self._block_copies, []
        return copies

    def commit(self, sequence: Sequence) -> None:
        """Make full blocks below `num_computed_tokens` findable. Call it after each step that computed tokens.

        Where the cache already knows the same content, the table gets the known block and gives its own back.
        """
        if not self.enable_prefix_caching:
            return
        table = sequence.block_table
        end = sequence.num_computed_tokens // self.block_size
        self._extend_hashes(sequence, end)
        for i in range(sequence.num_committed_blocks, end):
            block_hash, own = sequence.block_hashes[i], table[i]
            known = self._block_of_hash.get(block_hash, own)
            if known == own:  # or a sequence that forked off in this step has already made it known
                self._block_of_hash[block_hash] = own
                self._block_hashes[own] = block_hash
            else:
                self._reference(known)
                table[i] = known
                self._release(own)
            if self._computing.get(block_hash) is sequence:
                del self._computing[block_hash]
        sequence.num_committed_blocks = end

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` share every block of `parent`, a partly filled last one included, and its progress.

        `child` has no blocks and the parent's tokens as far as they are computed or scheduled.
        """
        assert not child.block_table
        for block_id in parent.block_table:
            self._reference(block_id)
        child.block_table = list(parent.block_table)
        child.block_hashes = list(parent.block_hashes)
        child.num_committed_blocks = parent.num_committed_blocks
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_cached_tokens = parent.num_cached_tokens

    def free(self, sequence: Sequence) -> None:
        """Take all blocks from `sequence`; those with a hash stay findable until they are needed. Leaves go first."""
        for block_hash in sequence.block_hashes[sequence.num_committed_blocks :]:
            if self._computing.get(block_hash) is sequence:
                del self._computing[block_hash]
        for block_id in reversed(sequence.block_table):
            self._release(block_id)
        sequence.block_table = []
        sequence.num_committed_blocks = 0
        sequence.num_computed_tokens = 0

    # --- inside

    def _is_writable(self, block_id: int) -> bool:
        return self._ref_counts[block_id] == 1 and self._block_hashes[block_id] is None

    def _take(self) -> int:
        """A block for one table, out of the free ones (there must be one)."""
        if self._blank:
            block_id = self._blank.pop()
        else:
            block_id, _ = self._reusable.popitem(last=False)
            block_hash = self._block_hashes[block_id]
            assert block_hash is not None
            del self._block_of_hash[block_hash]
            self._block_hashes[block_id] = None
            self.num_evictions += 1
        self._ref_counts[block_id] = 1
        return block_id

    def _reference(self, block_id: int) -> None:
        if self._ref_counts[block_id] == 0:
            del self._reusable[block_id]
        self._ref_counts[block_id] += 1

    def _release(self, block_id: int) -> None:
        count = self._ref_counts[block_id] - 1
        assert count >= 0, f"block {block_id} freed twice"
        self._ref_counts[block_id] = count
        if count == 0:
            if self._block_hashes[block_id] is None:
                self._blank.append(block_id)
            else:
                self._reusable[block_id] = None

    def _extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        """Bring `sequence.block_hashes` to at least `num_blocks` entries."""
        hashes, size = sequence.block_hashes, self.block_size
        if len(hashes) >= num_blocks:
            return
        if hashes:
            parent = hashes[-1]
        else:
            parent = hashlib.blake2b(sequence.request.cache_salt.encode(), digest_size=16).digest()
        pack = struct.Struct(f"<{size}q").pack
        for i in range(len(hashes), num_blocks):
            tokens = pack(*sequence.token_ids[i * size : (i + 1) * size])
            parent = hashlib.blake2b(parent + tokens, digest_size=16).digest()
            hashes.append(parent)
