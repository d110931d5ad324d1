"""What one workload came to on one contender: figures from timelines, whoever sent the requests. No input or output."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llm_inference.tools.bench.statistics import failure_counts, summary
from llm_inference.tools.bench.timeline import Timeline

#: The failure of a request that was still running when its time was over: no fault of anybody's.
CUT = "cut"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of one run of a workload. `late` are the prompts that came beside running streams.

    `text_tokens`: tokens of the finished answers' texts, counted with the model's tokenizer; None where there was no
    text or no tokenizer. `limit_s`: when whatever still ran was cut off.
    """

    timelines: tuple[Timeline, ...]
    late: tuple[Timeline, ...] = ()
    text_tokens: int | None = None
    limit_s: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `output_tokens_per_s` is over the whole run; `decode_tokens_per_s` is of one stream after its
    first token (the median over requests of tokens - 1 by the time between first and last token).

    Of a workload with late prompts, the rate and the inter-token latencies are of the streams while the late prompts
    were computed, and the times to first token are those of the late prompts.

    `num_short`: answers with fewer tokens than were asked for. `num_cut`: those that ran when the time was over; their
    tokens count, and so does all the time. `doubts` says what makes the figures uncertain.
    """

    num_requests: int
    num_failed: int
    num_short: int
    num_cut: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    decode_tokens_per_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    cached_tokens: int = 0
    text_tokens: int | None = None
    doubts: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every request was answered in full."""
        return not (self.num_failed or self.num_short or self.num_cut)


#: Answers whose text has fewer of the model's tokens than this share of what was counted are doubted.
_LEAST_TEXT = 0.8


def measure(outcome: Outcome) -> Measured:
    if outcome.late:
        return _beside(outcome)
    timelines = outcome.timelines
    done, cut, failed = _sorted(timelines)
    counted = [*done, *cut]
    duration_s = max((one.ended_s for one in timelines), default=0.0)
    output_tokens = sum(_tokens(one) for one in counted)
    rates = [1 / one.tpot_s for one in done if one.tpot_s]
    ttft = summary(one.ttft_s for one in counted if one.ttft_s is not None)
    itl = summary(value for one in counted for value in one.inter_token_s())
    decode = summary(rates)
    return Measured(
        num_requests=len(timelines),
        num_failed=len(failed),
        num_short=_num_short(done),
        num_cut=len(cut),
        duration_s=duration_s,
        input_tokens=sum(one.planned_input_tokens or 0 for one in counted),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s if duration_s > 0 else 0.0,
        decode_tokens_per_s=None if decode is None else decode.p50,
        ttft_p50_s=None if ttft is None else ttft.p50,
        ttft_p99_s=None if ttft is None else ttft.p99,
        itl_p50_s=None if itl is None else itl.p50,
        itl_p99_s=None if itl is None else itl.p99,
        cached_tokens=sum(one.cached_tokens for one in done),
        text_tokens=outcome.text_tokens,
        doubts=tuple(_doubts(outcome, done, failed)),
    )


def _beside(outcome: Outcome) -> Measured:
    """Of the streams, from the sending of the first late prompt to the answer of the last one."""
    done, cut, failed = _sorted(outcome.late)
    begin = min(one.sent_s for one in outcome.late)
    end = max(one.ended_s for one in outcome.late)
    gaps: list[float] = []
    tokens = 0
    for stream in outcome.timelines:
        for before, arrival in zip(stream.arrivals, stream.arrivals[1:], strict=False):
            if begin <= arrival.time_s <= end:
                gaps += [(arrival.time_s - before.time_s) / arrival.num_tokens] * arrival.num_tokens
                tokens += arrival.num_tokens
    broken = [one for one in outcome.timelines if one.failure is not None and one.failure.kind != CUT]
    doubts = _doubts(outcome, done, [*failed, *broken])
    ended = sum(bool(one.arrivals) and one.ended_s < end for one in outcome.timelines)
    if ended:
        doubts.append(f"{ended} of {len(outcome.timelines)} streams ended before the last long prompt was answered")
    ttft = summary(one.ttft_s for one in done if one.ttft_s is not None)
    itl = summary(gaps)
    return Measured(
        num_requests=len(outcome.late) + len(outcome.timelines),
        num_failed=len(failed) + len(broken),
        num_short=0,
        num_cut=len(cut),
        duration_s=end - begin,
        input_tokens=sum(one.planned_input_tokens or 0 for one in outcome.late),
        output_tokens=tokens,
        output_tokens_per_s=tokens / (end - begin) if end > begin else 0.0,
        decode_tokens_per_s=None,
        ttft_p50_s=None if ttft is None else ttft.p50,
        ttft_p99_s=None if ttft is None else ttft.p99,
        itl_p50_s=None if itl is None else itl.p50,
        itl_p99_s=None if itl is None else itl.p99,
        text_tokens=outcome.text_tokens,
        doubts=tuple(doubts),
    )


def _sorted(timelines: Sequence[Timeline]) -> tuple[list[Timeline], list[Timeline], list[Timeline]]:
    """(done, cut, failed)."""
    done = [one for one in timelines if one.ok]
    cut = [one for one in timelines if one.failure is not None and one.failure.kind == CUT]
    return done, cut, [one for one in timelines if one.failure is not None and one.failure.kind != CUT]


def _tokens(one: Timeline) -> int:
    return one.output_tokens if one.ok else sum(arrival.num_tokens for arrival in one.arrivals)


def _num_short(done: Sequence[Timeline]) -> int:
    return sum(one.max_tokens is not None and one.output_tokens < one.max_tokens for one in done)


def _doubts(outcome: Outcome, done: Sequence[Timeline], failed: Sequence[Timeline]) -> list[str]:
    doubts = [f"{one.count} × {kind}: {one.example}" for kind, one in failure_counts(failed).items()]
    short = _num_short(done)
    if short:
        doubts.append(f"{short} of {len(done)} answers are shorter than was asked for")
    tokens = sum(one.output_tokens for one in done)
    if outcome.text_tokens is not None and not outcome.late and outcome.text_tokens < _LEAST_TEXT * tokens:
        doubts.append(
            f"the answers' text has {outcome.text_tokens:,} tokens by the model's tokenizer, {tokens:,} were counted"
        )
    return doubts
