"""The step loop: schedule, execute, sample, update. One thread, no sockets, no text.

    Scheduler ──Batch──► ModelInput ──► Runner ──logits──► Sampler ──tokens──► Scheduler.update ──► outputs
        ▲                                   grammar masks ──┘                        │
        └────────────────────────────────────────────────────────────────────────────┘

`EngineCore` is used in a process of its own by the server (see `server.py`), and in-process by the offline `LLM`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from llm_inference.engine.base import EngineStats
from llm_inference.errors import EngineError, InvalidRequestError, LLMInferenceError
from llm_inference.native.batch import Batch, ModelInput, ScheduledSequence
from llm_inference.native.beam_group import BeamGroup
from llm_inference.native.grammar import GrammarCompiler, GrammarMasks, GrammarState
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.pooling import Pooler
from llm_inference.native.request import CoreRequest, SampledToken, Sequence, SequenceStatus
from llm_inference.native.runner.base import ObservedRunner, Runner
from llm_inference.native.sampler import Sampler
from llm_inference.native.scheduler import Scheduler
from llm_inference.native.speculation import num_kept
from llm_inference.native.step_sizes import StepCounter
from llm_inference.native.wire import Failure, PromptLogprobs
from llm_inference.telemetry.stages import Stages, quiet

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepResult:
    outputs: list[SequenceOutput] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: The step as a whole failed, not single requests of it by their own fault.
    broken: bool = False


class Core(Protocol):
    """What the server and the offline `LLM` drive: a decoder's core, or an encoder's (`encoder_core.py`)."""

    @property
    def has_work(self) -> bool: ...

    def stats(self) -> EngineStats: ...

    def is_live(self, request_id: str) -> bool: ...

    def add(self, request: CoreRequest) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> None: ...

    def step(self) -> StepResult: ...


class EngineCore:
    """Joins scheduler, runner, sampler and grammar. Not thread-safe: one owner calls everything."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        sampler: Sampler,
        grammars: GrammarCompiler | None,
        *,
        block_size: int,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._sampler = sampler
        self._grammars = grammars
        self._block_size = block_size
        #: Per live request: the sequences that the sampler may hold state for.
        self._sampled: dict[str, set[Sequence]] = {}
        self._grammar_states: dict[Sequence, GrammarState] = {}
        #: How many prompt tokens' log-probabilities were sent; a recompute after preemption sends none twice.
        self._num_prompt_logprobs: dict[str, int] = {}
        self._beams: dict[str, BeamGroup] = {}
        self._pooler = Pooler()
        self._num_steps = 0
        self._step_sizes = StepCounter()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._stages: Stages = quiet
        self._forward_stage = "forward" if isinstance(runner, ObservedRunner) else "library"

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(
            self._step_sizes.added_to(self._scheduler.stats()),
            num_steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
        )

    def observe(self, stages: Stages) -> None:
        """Tell the stages of the next steps: schedule, forward, sampling, update, and the runner's own."""
        self._stages = stages
        if isinstance(self._runner, ObservedRunner):
            self._runner.observe(stages)

    def node_seconds(self) -> Mapping[str, float]:
        """See `ObservedRunner`."""
        return self._runner.node_seconds() if isinstance(self._runner, ObservedRunner) else {}

    def is_live(self, request_id: str) -> bool:
        """Whether any choice of the request is still to finish."""
        return request_id in self._sampled

    def add(self, request: CoreRequest) -> None:
        """Accept a request. Raises `RequestError` when it can never run here."""
        if request.sampling.grammar is not None:
            if self._grammars is None:
                raise InvalidRequestError("this model cannot be constrained by a grammar", param="response_format")
            self._grammars.start(request.sampling.grammar)  # compiled now, by way of checking
        self._sampler.processors.check(request.sampling.logits_processors)
        self._scheduler.add(request, time.monotonic())
        self._sampled[request.request_id] = set()
        if request.sampling.num_beams > 1:
            self._beams[request.request_id] = BeamGroup(request)
        self._prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request or one choice of it; its blocks are free at once. Unknown ids are ignored."""
        self._scheduler.abort(request_id, index)
        sequences = self._sampled.get(request_id, set())
        for sequence in list(sequences):
            if index is None or sequence.index == index:
                self._forget(sequence)
        if not self._scheduler.is_live(request_id):
            self._drop_request(request_id)

    def step(self) -> StepResult:
        """Run one step. An error of the model fails the requests of this step, no other, and never the loop."""
        result = StepResult()
        with self._stages("schedule"):
            batch = self._scheduler.schedule(time.monotonic())
        if not batch:
            return result
        try:
            with self._stages(self._forward_stage):
                logits, vectors = self._execute(batch, result)
            with self._stages("sampling"):
                sampled = self._sample(batch, logits, result)
        except Exception as exc:
            logger.exception("a step failed; its %d requests are ended", len(batch.scheduled))
            error = EngineError(f"the engine failed in this step: {type(exc).__name__}: {exc}")
            for request_id in {item.sequence.request.request_id for item in batch.scheduled}:
                self._fail(request_id, error, result)
            result.broken = True
            return result
        self._num_steps += 1
        self._step_sizes.saw(batch)
        with self._stages("update"):
            self._update(batch, sampled, vectors, result)
        return result

    def _update(
        self,
        batch: Batch,
        sampled: list[list[SampledToken | None]],
        vectors: Mapping[str, bytes],
        result: StepResult,
    ) -> None:
        """What the step brought becomes outputs; who has finished is forgotten."""
        result.outputs = self._scheduler.update(batch, sampled, time.monotonic())
        if vectors:
            result.outputs = [
                msgspec.structs.replace(output, vector=vectors.get(output.request_id)) for output in result.outputs
            ]
        self._advance_beams(result)
        self._generation_tokens += sum(len(output.tokens) for output in result.outputs)
        self._clean_up(batch)

    def _execute(self, batch: Batch, result: StepResult) -> tuple[torch.Tensor, dict[str, bytes]]:
        """The step's logits, and the vectors (by request id) that it completed."""
        model_input = ModelInput.build(batch, self._block_size)
        if all(item.sequence.request.pooling is None for item in batch.scheduled):
            return self._runner.execute(model_input), {}
        logits, hidden = self._runner.execute_with_hidden(model_input)
        vectors: dict[str, bytes] = {}
        for request_id, vector in self._pooler.take(batch, hidden).items():
            if isinstance(vector, EngineError):
                self._fail(request_id, vector, result)
            else:
                vectors[request_id] = vector
        return logits, vectors

    def _sample(self, batch: Batch, logits: torch.Tensor, result: StepResult) -> list[list[SampledToken | None]]:
        """Tokens for every sampler of every item, None for beams; of a draft, those that stand.

        Prompt log-probabilities go to `result`.
        """
        drawn, beams = _Rows(), _Rows()
        next_row = 0
        for item in batch.scheduled:
            sequence = item.sequence
            num_rows = 1 + len(item.drafted) if item.samplers else 0
            if sequence.request.sampling.prompt_logprobs is not None and item.start < sequence.num_prompt_tokens:
                num_rows = item.num_tokens
                self._collect_prompt_logprobs(sequence, item.start, logits[next_row : next_row + num_rows], result)
            next_row += num_rows
            if sequence.request.sampling.num_beams > 1:
                for sampler in item.samplers[:1]:  # the others have just forked off and are the same
                    beams.add(next_row - 1, sampler)
            else:
                for sampler in item.samplers:
                    for num_drafted in range(1 + len(item.drafted)):
                        place = next_row - 1 - len(item.drafted) + num_drafted
                        drawn.add(place, sampler, item.drafted[:num_drafted])
        failures: dict[str, LLMInferenceError] = {}
        tokens = self._draw(drawn, logits, failures)
        self._offer(beams, logits, failures)
        for request_id, error in failures.items():
            self._fail(request_id, error, result)
        return [self._standing(item, tokens) for item in batch.scheduled]

    @staticmethod
    def _standing(item: ScheduledSequence, tokens: dict[Sequence, list[SampledToken]]) -> list[SampledToken | None]:
        if not item.drafted:
            return [tokens[sampler][0] if sampler in tokens else None for sampler in item.samplers]
        sampled = tokens[item.sequence]
        return [*sampled[: num_kept(item.drafted, [token.token_id for token in sampled])]]

    def _draw(
        self, rows: _Rows, logits: torch.Tensor, failures: dict[str, LLMInferenceError]
    ) -> dict[Sequence, list[SampledToken]]:
        """A token for each row, by sequence; the grammars of constrained sequences move on."""
        if not rows.sequences:
            return {}
        states = [self._grammar_state(sequence) for sequence in rows.sequences]
        masks = GrammarMasks.fill(states, self._runner.vocab_size) if any(states) else None
        failed: dict[int, EngineError] = {}
        drafted = rows.drafted if any(rows.drafted) else None
        tokens = self._sampler.sample(rows.of(logits), rows.sequences, masks, drafted=drafted, failures=failed)
        refused = masks.failures if masks is not None else {}
        drawn: dict[Sequence, list[SampledToken]] = {}
        for sequence, state, token in zip(rows.sequences, states, tokens, strict=True):
            drawn.setdefault(sequence, []).append(token)
            self._sampled[sequence.request.request_id].add(sequence)
            if state is not None:
                state.accept(token.token_id)
        for row, error in (*failed.items(), *refused.items()):
            sequence, before = rows.sequences[row], rows.drafted[row]
            # A row behind a token that was not taken is of no text that anybody asked for.
            if all(token.token_id == known for token, known in zip(drawn[sequence], before, strict=False)):
                failures[sequence.request.request_id] = error
        return drawn

    def _offer(self, rows: _Rows, logits: torch.Tensor, failures: dict[str, LLMInferenceError]) -> None:
        """Tell each beam's group how the beam may go on."""
        if not rows.sequences:
            return
        groups = [self._beams[sequence.request.request_id] for sequence in rows.sequences]
        failed: dict[int, EngineError] = {}
        counts = [group.num_candidates for group in groups]
        found = self._sampler.best_continuations(rows.of(logits), rows.sequences, counts, failures=failed)
        for sequence, group, candidates in zip(rows.sequences, groups, found, strict=True):
            self._sampled[sequence.request.request_id].add(sequence)
            group.offer(sequence, candidates)
        for row, error in failed.items():
            failures[rows.sequences[row].request.request_id] = error

    def _advance_beams(self, result: StepResult) -> None:
        for request_id, group in list(self._beams.items()):
            if group.is_complete:
                try:
                    outputs = group.advance(self._scheduler)
                except ArithmeticError as exc:
                    logger.exception("the beam search of request %s failed", request_id)
                    self._fail(request_id, EngineError(f"the beam search failed: {exc}"), result)
                    continue
                result.outputs += outputs
                if outputs:
                    self._drop_request(request_id)

    def _grammar_state(self, sequence: Sequence) -> GrammarState | None:
        grammar = sequence.request.sampling.grammar
        if grammar is None or self._grammars is None:
            return None
        state = self._grammar_states.get(sequence)
        if state is None:
            state = self._grammar_states[sequence] = self._grammars.start(grammar)
        return state

    def _collect_prompt_logprobs(
        self, sequence: Sequence, start: int, logits: torch.Tensor, result: StepResult
    ) -> None:
        """Row i of `logits` predicts token `start + i + 1` of the prompt."""
        request = sequence.request
        top_k = request.sampling.prompt_logprobs
        assert top_k is not None
        sent = self._num_prompt_logprobs.get(request.request_id, 0)
        first = max(start + 1, sent + 1)
        last = min(start + logits.shape[0], sequence.num_prompt_tokens - 1)
        if first > last:
            return
        targets = sequence.token_ids[first : last + 1]
        tokens = self._sampler.prompt_logprobs(logits[first - start - 1 : last - start], targets, top_k)
        self._num_prompt_logprobs[request.request_id] = last
        result.prompt_logprobs.append(PromptLogprobs(request.request_id, tuple(tokens)))

    def _fail(self, request_id: str, error: LLMInferenceError, result: StepResult) -> None:
        self.abort(request_id)
        result.failures.append(Failure(request_id, error.message, type(error).__name__, error.param))

    def _clean_up(self, batch: Batch) -> None:
        for item in batch.scheduled:
            for sequence in item.samplers or (item.sequence,):
                if sequence.status is SequenceStatus.FINISHED:
                    request_id = sequence.request.request_id
                    self._forget(sequence)
                    if not self._scheduler.is_live(request_id):
                        self._drop_request(request_id)

    def _forget(self, sequence: Sequence) -> None:
        self._sampler.forget(sequence)
        self._grammar_states.pop(sequence, None)
        held = self._sampled.get(sequence.request.request_id)
        if held is not None:
            held.discard(sequence)

    def _drop_request(self, request_id: str) -> None:
        self._sampled.pop(request_id, None)
        self._num_prompt_logprobs.pop(request_id, None)
        self._beams.pop(request_id, None)
        self._pooler.forget(request_id)


@dataclass(slots=True)
class _Rows:
    """Rows of the step's logits, and whose next token each predicts: the one after those that are drafted."""

    indices: list[int] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    drafted: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, index: int, sequence: Sequence, drafted: tuple[int, ...] = ()) -> None:
        self.indices.append(index)
        self.sequences.append(sequence)
        self.drafted.append(drafted)

    def of(self, logits: torch.Tensor) -> torch.Tensor:
        """`[len(sequences), vocab]`; the logits themselves where that is all of them."""
        return logits if self.indices == list(range(logits.shape[0])) else logits[self.indices]


def check_healthy(result: StepResult, consecutive_failures: int, limit: int = 3) -> int:
    """Count steps that failed in a row. Raises `EngineError` at `limit`: the state is then not to be trusted.

    Requests that failed by themselves in a step that went well do not count: else one client could end everybody's.
    """
    if not result.broken:
        return 0
    if consecutive_failures + 1 >= limit:
        raise EngineError(f"{limit} steps failed in a row; the last: {result.failures[-1].message}")
    return consecutive_failures + 1
