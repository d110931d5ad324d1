"""The step loop of an encoder: take inputs, compute them as one batch, pool. No cache, no tokens, no sockets.

    EncoderQueue ──inputs──► sorted by length ──► Encoder ──hidden states──► pool ──► outputs

It stands where `EngineCore` stands for a decoder, in the server and in the offline `LLM`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import torch

from llm_inference.engine.base import EngineStats
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError
from llm_inference.native.core import StepResult
from llm_inference.native.encoder_queue import EncoderQueue, Waiting
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.models.base import Encoder
from llm_inference.native.pooling import pool
from llm_inference.native.request import CoreRequest
from llm_inference.native.wire import Failure
from llm_inference.telemetry.stages import Stages, quiet

logger = logging.getLogger(__name__)


class EncoderCore:
    """See `Core`. Not thread-safe: one owner calls everything."""

    def __init__(self, encoder: Encoder, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        assert max_num_batched_tokens >= max_model_len, "an input is computed in one piece"
        self._encoder = encoder
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._queue = EncoderQueue()
        self._num_steps = 0
        self._prompt_tokens = 0
        self._stages: Stages = quiet

    @property
    def has_work(self) -> bool:
        return len(self._queue) > 0

    def stats(self) -> EngineStats:
        return EngineStats(num_waiting=len(self._queue), num_steps=self._num_steps, prompt_tokens=self._prompt_tokens)

    def observe(self, stages: Stages) -> None:
        """Tell the stages of the next steps: forward, and update for everything behind it."""
        self._stages = stages

    def is_live(self, request_id: str) -> bool:
        return request_id in self._queue

    def add(self, request: CoreRequest) -> None:
        """Accept an input. Raises `RequestError` when it can never run here."""
        num_tokens = len(request.prompt_token_ids)
        if request.pooling is None:
            raise InvalidRequestError("this model is an encoder: it makes vectors and no text", param="model")
        if request.request_id in self._queue:
            raise InvalidRequestError(f"Request id {request.request_id!r} is in use; choose another.")
        if not num_tokens:
            raise InvalidRequestError("The input has no tokens; send at least one.", param="input")
        if num_tokens > self._max_model_len:
            raise ContextLengthError(
                f"The model's context length is {self._max_model_len} tokens, but the input has {num_tokens}; "
                "shorten it.",
                param="input",
            )
        self._queue.add(request, time.monotonic())
        self._prompt_tokens += num_tokens

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget an input that waits. Unknown ids are ignored."""
        self._queue.abort(request_id)

    def step(self) -> StepResult:
        """Compute one batch. An error of the model fails the inputs of this batch and no other."""
        result = StepResult()
        now = time.monotonic()
        batch = self._queue.take(self._max_num_seqs, self._max_num_batched_tokens, now)
        if not batch:
            return result
        batch.sort(key=lambda waiting: waiting.num_tokens)
        try:
            self._compute(batch, now, result)
        except Exception as exc:
            logger.exception("a step failed; its %d inputs are ended", len(batch))
            message = f"the engine failed in this step: {type(exc).__name__}: {exc}"
            failures = [Failure(waiting.request.request_id, message) for waiting in batch]
            return StepResult(failures=failures, broken=True)
        self._num_steps += 1
        return result

    @torch.inference_mode()
    def _compute(self, batch: list[Waiting], now: float, result: StepResult) -> None:
        lengths = [waiting.num_tokens for waiting in batch]
        token_ids = torch.tensor([token for waiting in batch for token in waiting.request.prompt_token_ids])
        with self._stages("forward"):
            hidden = self._encoder.forward(token_ids.to(self._encoder.placement.device), lengths)
        done = time.monotonic()
        with self._stages("update"):
            self._finish(batch, torch.split(hidden, lengths), now, done, result)

    def _finish(
        self,
        batch: list[Waiting],
        hidden: Iterable[torch.Tensor],
        now: float,
        done: float,
        result: StepResult,
    ) -> None:
        """`hidden`: the states of each input. `now`, `done`: when the step began, and when they were there."""
        for waiting, states in zip(batch, hidden, strict=True):
            request = waiting.request
            assert request.pooling is not None
            vector = pool(states, request.pooling, request.request_id)
            if isinstance(vector, EngineError):
                result.failures.append(Failure(request.request_id, vector.message))
                continue
            result.outputs.append(
                SequenceOutput(
                    request_id=request.request_id,
                    index=0,
                    finish_reason="length",
                    first_scheduled_s=now,
                    first_token_s=done,
                    vector=vector,
                )
            )
