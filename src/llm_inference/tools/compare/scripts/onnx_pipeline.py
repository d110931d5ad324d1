"""ONNX Runtime GenAI's generator: one request after the other, as it does not batch those of different lengths."""

from __future__ import annotations

import json
from collections import deque
from importlib import import_module
from typing import Any


class ONNXPipeline:
    """A `Pipeline` of `loop.py`. What waits has been sent as far as its timeline says."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._genai = import_module("onnxruntime_genai")
        self._numpy = import_module("numpy")
        config = self._genai.Config(setup["model"])
        config.overlay(json.dumps({"model": {"decoder": {"session_options": setup["session_options"]}}}))
        self._model = self._genai.Model(config)
        self._waiting: deque[tuple[int, list[int], int]] = deque()
        self._current: tuple[int, int, int] | None = None  # key, tokens so far, tokens wanted
        self._generator: Any = None

    def versions(self) -> dict[str, str]:
        return {"onnxruntime-genai": str(self._genai.__version__)}

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        self._waiting.append((key, token_ids, max_tokens))

    def step(self) -> list[tuple[int, int, bool, float | None]]:
        """One token of the request whose turn it is."""
        if self._current is None:
            key, token_ids, max_tokens = self._waiting.popleft()
            length = len(token_ids) + max_tokens
            params = self._genai.GeneratorParams(self._model)
            # A least length as long as the longest one keeps the end token out.
            params.set_search_options(do_sample=False, batch_size=1, max_length=length, min_length=length)
            self._generator = self._genai.Generator(self._model, params)
            self._generator.append_tokens(self._numpy.array(token_ids, dtype=self._numpy.int32))
            self._current = (key, 0, max_tokens)
        key, count, wanted = self._current
        self._generator.generate_next_token()
        count += 1
        finished = count >= wanted or self._generator.is_done()
        self._current = None if finished else (key, count, wanted)
        return [(key, 1, finished, None)]

    def abort(self, key: int) -> None:
        self._waiting = deque(one for one in self._waiting if one[0] != key)
        if self._current is not None and self._current[0] == key:
            self._current = self._generator = None


def open_pipeline(setup: dict[str, Any]) -> ONNXPipeline:
    return ONNXPipeline(setup)
