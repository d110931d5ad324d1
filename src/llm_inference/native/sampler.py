"""From logits to tokens, vectorized over the batch, each row by its own request's parameters.

    raw logits ─► logprobs (where asked)
        └─► penalties, logit_bias, min_tokens ─► logits processors ─► grammar ─┬─► greedy: the best
                                                                               └─► / temperature ─► top_k
                                                                                   ─► top_p ─► min_p ─► draw

A row's token depends on its logits, its request and its own randomness, never on its neighbours. Knows nothing of the
scheduler: it reads sequences and changes none.

On a GPU everything is queued and the tokens are read back once, at the end; only top_k, top_p, log-probabilities and
beams wait for the device once more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as Rows
from hashlib import blake2b
from typing import Final, Protocol

import torch

from llm_inference.errors import EngineError
from llm_inference.native.logits_processors import LogitsProcessors
from llm_inference.native.logprobs import RawLogprobs
from llm_inference.native.nucleus import draw
from llm_inference.native.penalties import Penalties
from llm_inference.native.request import SampledToken, Sequence
from llm_inference.native.transfer import to_device

#: At and below this temperature the best token is taken. Drawing there would differ from it only where two logits lie
#: closer than a few thousandths, which is within the noise of the arithmetic.
GREEDY_TEMPERATURE: Final = 1e-3
#: Above this all tokens are equally likely anyway, and an infinity (float32 ends at 3e38) would make NaN of bans.
_MAX_TEMPERATURE: Final = 1e30


class LogitsMask(Protocol):
    """Sets forbidden tokens of `[rows, vocab]` logits to -inf, in place. `GrammarMasks` is one."""

    def apply(self, logits: torch.Tensor) -> None: ...


class Sampler:
    """One per engine core. Holds the penalty counts of live sequences until `forget`."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        *,
        num_valid_tokens: int | None = None,
        seed: int | None = None,
        processors: LogitsProcessors | None = None,
        deferred: bool | None = None,
    ) -> None:
        """`num_valid_tokens`: ids from there on pad the vocabulary and are never sampled. `seed`: for unseeded rows.

        `processors`: None: those of the installed packages. `deferred`: nothing is read back from the device before the
        tokens; None: unless it is the CPU.
        """
        self.processors = LogitsProcessors() if processors is None else processors
        self._vocab_size = vocab_size
        self._device = device
        self._num_valid = min(num_valid_tokens or vocab_size, vocab_size)
        self._random = random.Random(seed)
        self._penalties = Penalties()
        self._deferred = device.type != "cpu" if deferred is None else deferred

    @torch.inference_mode()
    def sample(
        self,
        logits: torch.Tensor,
        sequences: Rows[Sequence],
        masks: LogitsMask | None = None,
        *,
        drafted: Rows[tuple[int, ...]] | None = None,
        failures: dict[int, EngineError] | None = None,
    ) -> list[SampledToken]:
        """One token per row of `logits [rows, vocab]` float32, which may be overwritten. Row i is `sequences[i]`'s.

        `drafted[i]`: tokens that the row takes to have been sampled since (speculation). Such rows have no processors.

        A row without a finite best logit cannot be sampled: the model is broken for that input. With `failures` given,
        such rows are entered there (row → error) and their token means nothing; without it the first one is raised.
        """
        finite = self._blank_broken(logits) if self._deferred else None
        best = None if finite is not None else self._refuse_broken(logits, sequences, failures)
        raw, with_logprobs = self._raw_logprobs(logits, sequences)
        if self._num_valid < self._vocab_size:
            logits[:, self._num_valid :] = float("-inf")
        num_drafted = [0] * len(sequences) if drafted is None else [len(tokens) for tokens in drafted]
        if any(map(Penalties.concern, sequences, num_drafted)):
            self._penalties.apply(logits, sequences, drafted)
            best = None
        if any(sequence.request.sampling.logits_processors for sequence in sequences):
            self._process(logits, sequences, failures)
            best = None
        if masks is not None:
            masks.apply(logits)
            best = None
        token_ids = self._choose(logits, sequences, num_drafted, finite, best)
        if finite is not None:
            broken = [row for row, is_finite in enumerate(token_ids[len(sequences) :]) if not is_finite]
            self._report_broken(broken, sequences, failures)
            del token_ids[len(sequences) :]
        tokens = [SampledToken(token_id) for token_id in token_ids]
        if raw is not None:
            counts = [sequences[row].request.sampling.logprobs or 0 for row in with_logprobs]
            detailed = raw.tokens([token_ids[row] for row in with_logprobs], counts)
            for row, token in zip(with_logprobs, detailed, strict=True):
                tokens[row] = token
        return tokens

    @torch.inference_mode()
    def prompt_logprobs(self, logits: torch.Tensor, next_token_ids: Rows[int], k: int) -> list[SampledToken]:
        """Row i of `logits [rows, vocab]` float32 predicts `next_token_ids[i]`; with the `k` best of each row."""
        if not next_token_ids:
            return []
        return RawLogprobs(logits, k, self._num_valid).tokens(next_token_ids, [k] * len(next_token_ids))

    @torch.inference_mode()
    def best_continuations(
        self,
        logits: torch.Tensor,
        sequences: Rows[Sequence],
        counts: Rows[int],
        *,
        failures: dict[int, EngineError],
    ) -> list[list[tuple[int, float]]]:
        """For beam search: the `counts[i]` best next tokens of row i, best first, with their log-probabilities.

        Penalties act on log-probabilities, not on logits, as in transformers' beam search. `failures` as in `sample`.
        """
        self._refuse_broken(logits, sequences, failures)
        logprobs = torch.log_softmax(logits, -1)
        if self._num_valid < self._vocab_size:
            logprobs[:, self._num_valid :] = float("-inf")
        if any(map(Penalties.concern, sequences)):
            self._penalties.apply(logprobs, sequences)
        values, token_ids = logprobs.topk(min(max(counts), self._num_valid))
        pairs = zip(token_ids.tolist(), values.tolist(), counts, strict=True)
        return [list(zip(ids[:count], best[:count], strict=True)) for ids, best, count in pairs]

    def forget(self, sequence: Sequence) -> None:
        """Drop what is held for a sequence. Unknown ones are ignored."""
        self._penalties.forget(sequence)
        self.processors.forget(sequence)

    def _process(
        self, logits: torch.Tensor, sequences: Rows[Sequence], failures: dict[int, EngineError] | None
    ) -> None:
        failed = self.processors.apply(logits, sequences)
        if failed and failures is None:
            raise next(iter(failed.values()))
        if failures is not None:
            failures |= failed

    def _choose(
        self,
        logits: torch.Tensor,
        sequences: Rows[Sequence],
        num_drafted: Rows[int],
        finite: torch.Tensor | None,
        best: list[int] | None,
    ) -> list[int]:
        """A token of each row. With `finite [rows]` its numbers behind them, read back together.

        `best`: each row's maximum, where it is known.
        """
        drawn = [row for row, sequence in enumerate(sequences) if not _is_greedy(sequence)]
        if not drawn:
            if finite is not None:
                return _read(logits.argmax(-1), finite)
            return _best(logits) if best is None else best
        params = [sequences[row].request.sampling for row in drawn]
        whole = len(drawn) == len(sequences)
        index = to_device(drawn, logits.device)
        rows = logits if whole else logits[index]
        bounded = [_bounded(p.temperature) for p in params]
        temperatures = to_device(bounded, logits.device, torch.float32)
        # The maximum goes to 0 before the division, so that no temperature can overflow. It is finite: see `sample`.
        scaled = (rows - rows.amax(-1, keepdim=True)).div_(temperatures[:, None])
        chosen = draw(
            scaled,
            [p.top_k or 0 for p in params],
            [1.0 if p.top_p is None else p.top_p for p in params],
            [p.min_p or 0.0 for p in params],
            [self._uniform(sequences[row], num_drafted[row]) for row in drawn],
        )
        if finite is not None:
            return _read(chosen if whole else logits.argmax(-1).index_put_((index,), chosen), finite)
        if whole:
            return list(chosen.tolist())
        token_ids = _best(logits) if best is None else best
        for row, token_id in zip(drawn, chosen.tolist(), strict=True):
            token_ids[row] = token_id
        return token_ids

    def _uniform(self, sequence: Sequence, num_drafted: int) -> float:
        """A number in [0, 1). Seeded: a hash of seed, choice and position, so it survives preemption and restarts."""
        seed = sequence.request.sampling.seed
        if seed is None:
            return self._random.random()
        key = f"{seed},{sequence.index},{sequence.num_output_tokens + num_drafted}".encode()
        return (int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 11) / (1 << 53)

    def _raw_logprobs(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> tuple[RawLogprobs | None, list[int]]:
        rows = [row for row, sequence in enumerate(sequences) if sequence.request.sampling.logprobs is not None]
        if not rows:
            return None, rows
        wanted = logits if len(rows) == len(sequences) else logits[to_device(rows, logits.device)]
        num_top = max(sequences[row].request.sampling.logprobs or 0 for row in rows)
        return RawLogprobs(wanted, num_top, self._num_valid), rows

    def _refuse_broken(
        self, logits: torch.Tensor, sequences: Rows[Sequence], failures: dict[int, EngineError] | None
    ) -> list[int]:
        """Zeros into rows without a finite best logit. The place of each row's maximum; of such a row any."""
        valid = logits[:, : self._num_valid]
        best = _best(valid)
        broken = [row for row, value in enumerate(_values(valid, best)) if not math.isfinite(value)]
        self._report_broken(broken, sequences, failures)
        for row in broken:
            logits[row] = 0.0
        return best

    def _blank_broken(self, logits: torch.Tensor) -> torch.Tensor:
        """Zeros into rows without a finite best logit. `[rows]` int64: 1 where there is one."""
        finite = logits[:, : self._num_valid].amax(-1).isfinite()
        logits.masked_fill_(~finite[:, None], 0.0)
        return finite.long()

    @staticmethod
    def _report_broken(rows: Rows[int], sequences: Rows[Sequence], failures: dict[int, EngineError] | None) -> None:
        """Into `failures`; without them the first one is raised."""
        for row in rows:
            error = EngineError(
                f"the model's output for request {sequences[row].request.request_id!r} is not a number; "
                "`precision: float32` avoids overflows of half precision"
            )
            if failures is None:
                raise error
            failures[row] = error


def _read(token_ids: torch.Tensor, finite: torch.Tensor) -> list[int]:
    """Both, one after the other: the step's one wait for the device."""
    numbers: list[int] = torch.cat((token_ids, finite)).tolist()
    return numbers


def _values(logits: torch.Tensor, places: Rows[int]) -> list[float]:
    """Of each row the logit at its place."""
    if logits.device.type != "cpu":
        return list(logits.gather(-1, to_device(places, logits.device)[:, None])[:, 0].tolist())
    item = logits.numpy().item
    return [item(row, place) for row, place in enumerate(places)]


def _best(logits: torch.Tensor) -> list[int]:
    """The index of each row's maximum, or of its first NaN; on a CPU the first of equal ones."""
    # On a CPU numpy takes an eighth of the time, and wakes no thread that would spin beside those of the next step.
    found: list[int] = (logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1)).tolist()
    return found


def _bounded(temperature: float | None) -> float:
    return 1.0 if temperature is None else min(temperature, _MAX_TEMPERATURE)


def _is_greedy(sequence: Sequence) -> bool:
    temperature = sequence.request.sampling.temperature
    return temperature is not None and temperature <= GREEDY_TEMPERATURE
