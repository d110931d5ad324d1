"""The sequences of one request under beam search: joins the decisions of `beam.py` with the scheduler. No tensors.

A beam that has been computed waits, parked, for the others of its request; once the candidates of all are there, the
next beams are grown, forked off or dropped, and the scheduler goes on with them as with any other sequence.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from llm_inference.native.beam import BeamSearch, Candidate
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.request import CoreRequest, SampledToken, Sequence
from llm_inference.native.scheduler import Scheduler


class BeamGroup:
    """One request's beams. `offer` after each computed beam, `advance` once `is_complete`."""

    def __init__(self, request: CoreRequest) -> None:
        sampling = request.sampling
        assert sampling.max_tokens is not None  # resolved by the front
        self._request = request
        self._search = BeamSearch(
            num_beams=sampling.num_beams,
            end_token_ids=(*(() if sampling.ignore_eos else request.eos_token_ids), *sampling.stop_token_ids),
            max_tokens=sampling.max_tokens,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
        )
        self._members: list[tuple[Sequence, float]] = []
        self._held: dict[Sequence, Rows[Candidate]] = {}

    @property
    def num_candidates(self) -> int:
        return self._search.num_candidates

    @property
    def is_complete(self) -> bool:
        return bool(self._members) and all(sequence in self._held for sequence, _ in self._members)

    def offer(self, sequence: Sequence, candidates: Rows[Candidate]) -> None:
        """What may follow `sequence`. The first one ever is the prompt; its siblings hold nothing else yet."""
        if not self._members:
            self._members = [(sequence, 0.0)]
        if any(sequence is member for member, _ in self._members):
            self._held[sequence] = candidates

    def advance(self, scheduler: Scheduler) -> list[SequenceOutput]:
        """Decide. The outputs when the search is over (the request has left the scheduler then), else nothing."""
        beams = [(sequence.output_token_ids, score) for sequence, score in self._members]
        chosen = self._search.step(beams, [self._held[sequence] for sequence, _ in self._members])
        self._held = {}
        first = self._members[0][0]
        if not chosen:
            scheduler.abort(self._request.request_id)
            return self._outputs(first)
        parents = [self._members[continuation.parent][0] for continuation in chosen]
        for sequence in scheduler.sequences(self._request.request_id):
            if sequence not in parents:
                scheduler.drop(sequence, "abort")
        taken = {sequence.index for sequence in parents}
        free_indices = [index for index in range(self._request.sampling.num_beams) if index not in taken]
        heirs: list[Sequence] = []
        for place, parent in enumerate(parents):
            # All but the last child fork off while the parent is still as it was; the last one is the parent itself.
            is_last = parent not in parents[place + 1 :]
            heirs.append(parent if is_last else scheduler.fork(parent, free_indices.pop()))
        for heir, continuation in zip(heirs, chosen, strict=True):
            scheduler.grow(heir, continuation.token_id)
        self._members = [(heir, continuation.score) for heir, continuation in zip(heirs, chosen, strict=True)]
        return []

    def _outputs(self, sequence: Sequence) -> list[SequenceOutput]:
        return [
            SequenceOutput(
                request_id=self._request.request_id,
                index=rank,
                tokens=tuple(SampledToken(token_id) for token_id in hypothesis.token_ids),
                finish_reason="stop" if hypothesis.ended else "length",
                num_cached_tokens=max(sequence.num_cached_tokens, 0),
                first_scheduled_s=sequence.first_scheduled_s,
                first_token_s=sequence.first_token_s,
            )
            for rank, hypothesis in enumerate(self._search.finished[: self._request.sampling.n])
        ]
