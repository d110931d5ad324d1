"""ONNX Runtime GenAI's generators as a `Worker` of `serving.py`. Runs under the engine's interpreter.

A generator is one sequence with a cache of its own, as long as its request may become. Up to `max_num_seqs` of them
take turns, one token each; a long prompt takes several turns. (The library's own batching, its `Engine`, tells no
log-probabilities, knows few sampling parameters and joins no running batch without computing it anew.)

Tokens are chosen here (`onnx_sampling.py`), except under a grammar: the library applies that in its own sampler.
"""

from __future__ import annotations

import json
import time
from collections import deque
from importlib import import_module
from typing import Any


class Sequence:
    """One request. Its generator exists while it runs."""

    def __init__(self, request_id: str, prompt: list[int], sampling: dict[str, Any], sampler: Any) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.sampler = sampler
        self.generator: Any = None
        self.num_computed = 0
        self.num_tokens = 0
        self.started_s = 0.0


class ONNXWorker:
    """The `Worker`."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._genai = genai = import_module("onnxruntime_genai")
        self._numpy = import_module("numpy")
        self._sampling = import_module("onnx_sampling")
        config = genai.Config(setup["model"])
        options = {"intra_op_num_threads": setup["num_threads"], **setup["session_options"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = genai.Model(config)
        self._setup = setup
        self._waiting: deque[Sequence] = deque()
        self._running: deque[Sequence] = deque()
        self._counts = {"num_steps": 0, "prompt_tokens": 0, "generation_tokens": 0}

    def report(self) -> dict[str, Any]:
        return {"precision": self._setup["precision"], "version": self._genai.__version__}

    def add(self, request_id: str, token_ids: list[int], sampling: dict[str, Any]) -> None:
        sampler = self._sampling.TokenSampler(sampling, token_ids)
        sequence = Sequence(request_id, token_ids, sampling, sampler)
        if sampling["grammar"] is not None:
            # Compiled now, so that a grammar that is none is this request's error.
            try:
                sequence.generator = self._generator(sequence)
            except RuntimeError as error:
                why = " ".join(str(error).split())[:300]
                raise ValueError(f"the grammar is refused by the engine 'onnx': {why}", "response_format") from error
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> None:
        for queue in (self._running, self._waiting):
            for sequence in queue:
                if sequence.request_id == request_id:
                    queue.remove(sequence)
                    return

    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def step(self) -> list[dict[str, Any]]:
        """One turn of one sequence."""
        self._admit()
        if not self._running:
            return []
        sequence = self._running[0]
        self._running.rotate(-1)
        self._counts["num_steps"] += 1
        try:
            return self._turn(sequence)
        except RuntimeError as error:
            self._running.remove(sequence)
            message = f"the engine failed: {' '.join(str(error).split())[:300]}"
            error_message = {"type": "error", "id": sequence.request_id, "error": "EngineError", "message": message}
            return [{**error_message, "param": None, "last": True}]

    def stats(self) -> dict[str, Any]:
        room = self._setup["kv_cache_tokens"]
        usage = min(self._num_reserved() / room, 1.0)
        return {
            **self._counts,
            "num_running": len(self._running),
            "num_waiting": len(self._waiting),
            "kv_cache_usage": usage,
        }

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._setup["max_num_seqs"]:
            first = self._waiting[0]
            if self._running and self._num_reserved() + _length(first) > self._setup["kv_cache_tokens"]:
                return
            self._waiting.popleft()
            self._counts["prompt_tokens"] += len(first.prompt)
            # Before those that already run: its prompt is what its reader waits for.
            self._running.appendleft(first)

    def _num_reserved(self) -> int:
        """Tokens that the running generators have room for."""
        return sum(_length(sequence) for sequence in self._running)

    def _turn(self, sequence: Sequence) -> list[dict[str, Any]]:
        if sequence.generator is None:
            sequence.generator = self._generator(sequence)
        generator = sequence.generator
        if sequence.num_computed < len(sequence.prompt):
            part = sequence.prompt[sequence.num_computed :][: self._setup["max_num_batched_tokens"]]
            generator.append_tokens(self._numpy.array(part, dtype=self._numpy.int32))
            sequence.num_computed += len(part)
            if sequence.num_computed < len(sequence.prompt):
                return []
        if sequence.sampling["grammar"] is not None:
            generator.generate_next_token()
            return self._emit(sequence, int(generator.get_next_tokens()[0]), None, done=generator.is_done())
        logits = generator.get_logits().reshape(-1)
        token = sequence.sampler.choose(logits)
        num_best = sequence.sampling["logprobs"]
        entry = None if num_best is None else self._sampling.log_probabilities(logits, token, num_best)
        messages = self._emit(sequence, token, entry)
        if not messages[-1]["last"]:
            generator.append_tokens(self._numpy.array([token], dtype=self._numpy.int32))
        return messages

    def _emit(self, sequence: Sequence, token: int, entry: Any, *, done: bool = False) -> list[dict[str, Any]]:
        sequence.sampler.add(token)
        sequence.num_tokens += 1
        self._counts["generation_tokens"] += 1
        reason = None
        if token in sequence.sampler.ends:
            reason = "stop"
        elif done or sequence.num_tokens >= sequence.sampling["max_tokens"]:
            reason = "length"
        if reason is not None:
            self._running.remove(sequence)
            sequence.generator = None
        message = {"type": "tokens", "id": sequence.request_id, "index": 0, "ids": [token]}
        entries = None if entry is None else [entry]
        return [{**message, "logprobs": entries, "finish_reason": reason, "last": reason is not None}]

    def _generator(self, sequence: Sequence) -> Any:
        sampling = sequence.sampling
        params = self._genai.GeneratorParams(self._model)
        options: dict[str, Any] = {"max_length": _length(sequence), "batch_size": 1}
        grammar = sampling["grammar"]
        if grammar is not None:
            draws = sampling["temperature"] >= self._sampling.GREEDY_BELOW
            options["do_sample"] = draws
            options["repetition_penalty"] = sampling["repetition_penalty"]
            if draws:
                seed = sampling["seed"]
                options["random_seed"] = time.time_ns() % 2**31 if seed is None else seed % 2**31
                options["temperature"] = sampling["temperature"]
                options["top_p"] = sampling["top_p"]
                options["top_k"] = sampling["top_k"] or self._setup["vocab_size"]
            params.set_guidance(grammar["kind"], grammar["source"])
        params.set_search_options(**options)
        return self._genai.Generator(self._model, params)


def _length(sequence: Sequence) -> int:
    return len(sequence.prompt) + int(sequence.sampling["max_tokens"])


def open_worker(setup: dict[str, Any]) -> ONNXWorker:
    """Loads the model. Raises `ValueError` with what is wrong with the configuration."""
    return ONNXWorker(setup)
