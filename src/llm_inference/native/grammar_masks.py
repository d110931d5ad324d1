"""The masks of one step: which tokens each constrained row of the logits may take.

Filled from the states of `native/grammar`, applied by whoever samples. torch is imported only when masks are applied,
so that a process that only checks grammars never loads it. Knows nothing of how a state comes to its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llm_inference.errors import EngineError, InvalidRequestError

if TYPE_CHECKING:
    import torch

    from llm_inference.native.grammar import GrammarState

Bits = npt.NDArray[np.int32]

#: For each byte of a mask, what to add to eight logits: 0 where the bit is set, else -inf.
_BIASES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1, 0.0, -np.inf
).astype(np.float32)


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """The masks of the constrained rows of one step.

    bits: `[len(rows), ceil(vocab_size / 32)]`, one bit a token. `failures` maps a row to why its request must end;
    such a row is left unmasked, so that no NaN arises, and its token is to be thrown away.
    """

    rows: list[int]
    bits: Bits
    vocab_size: int
    failures: dict[int, InvalidRequestError] = field(default_factory=dict)

    @classmethod
    def fill(cls, states: Sequence[GrammarState | None], vocab_size: int) -> GrammarMasks:
        """One state, or None, for each row of the logits; `vocab_size` is the logits' width."""
        rows = [row for row, state in enumerate(states) if state is not None]
        bits = np.zeros((len(rows), -(-vocab_size // 32)), dtype=np.int32)
        failures: dict[int, InvalidRequestError] = {}
        for place, row in enumerate(rows):
            state = states[row]
            assert state is not None
            state.fill_mask(bits[place])
            if state.failure is not None:
                failures[row] = InvalidRequestError(state.failure, param=state.param)
                bits[place] = -1
        return cls(rows, bits, vocab_size, failures)

    def allowed(self) -> npt.NDArray[np.bool_]:
        """`[len(rows), vocab_size]`."""
        return unpack(self.bits, self.vocab_size)

    def apply(self, logits: torch.Tensor) -> None:
        """Set forbidden tokens to -inf in place; `logits` is `[rows of the step, vocab_size]`, any float type.

        Where no allowed token is left above -inf, the allowed ones become 0: the grammar outranks other bans.
        """
        import torch

        from llm_inference.native.transfer import to_device

        if not self.rows:
            return
        if logits.shape[-1] != self.vocab_size:
            raise EngineError(f"masks for {self.vocab_size} tokens do not fit logits of {logits.shape[-1]}")
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            self._apply_here(logits.numpy())
            return
        words = to_device(self.bits, logits.device)  # packed: a thirty-second of the bytes to transfer
        allowed = expand(words, self.vocab_size)
        rows = to_device(self.rows, logits.device)
        masked = logits[rows].masked_fill_(~allowed, float("-inf"))
        banned = masked.amax(dim=-1, keepdim=True) == float("-inf")
        logits[rows] = masked.masked_fill_(banned & allowed, 0.0)

    def _apply_here(self, logits: npt.NDArray[np.float32]) -> None:
        """One thread and a table of eight biases for each byte: ten times as fast as fill operations of torch."""
        packed = self.bits.view(np.uint8)
        for place, row in enumerate(self.rows):
            bias = _BIASES.take(packed[place], axis=0).reshape(-1)[: self.vocab_size]
            masked = logits[row]
            masked += bias
            if masked.max() == -np.inf:
                masked[bias == 0] = 0.0


def apply(logits: torch.Tensor, masks: GrammarMasks) -> None:
    """`masks.apply(logits)`, for callers that hold functions."""
    masks.apply(logits)


def expand(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Packed int32 `[rows, words]` to bool `[rows, vocab_size]`, on whatever device they are."""
    import torch

    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size].bool()


def unpack(bits: Bits, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Packed `[rows, words]` to bool `[rows, vocab_size]`."""
    unpacked = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    return unpacked.view(np.bool_)
