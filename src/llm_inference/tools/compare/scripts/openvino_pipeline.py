"""OpenVINO GenAI's continuous batching pipeline: all requests in, steps until they are out."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class OpenVINOPipeline:
    """A `Pipeline` of `loop.py`."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._genai = import_module("openvino_genai")
        self._openvino = import_module("openvino")
        self._numpy = import_module("numpy")
        scheduler = self._genai.SchedulerConfig()
        for name, value in setup["scheduler"].items():
            setattr(scheduler, name, value)
        self._pipeline = self._genai.ContinuousBatchingPipeline(setup["model"], scheduler, "CPU", setup["properties"])
        self._handles: dict[int, Any] = {}

    def versions(self) -> dict[str, str]:
        return {"openvino-genai": str(self._genai.__version__)}

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        prompt = self._openvino.Tensor(self._numpy.array([token_ids], dtype=self._numpy.int64))
        self._handles[key] = self._pipeline.add_request(key, prompt, config)

    def step(self) -> list[tuple[int, int, bool, float | None]]:
        self._pipeline.step()
        news: list[tuple[int, int, bool, float | None]] = []
        for key, handle in list(self._handles.items()):
            count = 0
            while handle.can_read():
                count += sum(len(output.generated_ids) for output in handle.read().values())
            status = handle.get_status()
            if status == self._genai.GenerationStatus.IGNORED:
                raise RuntimeError("the KV cache has no room for a request; set a larger kv_cache_memory")
            finished = status != self._genai.GenerationStatus.RUNNING
            if count or finished:
                news.append((key, count, finished, None))
            if finished:
                del self._handles[key]
        return news

    def abort(self, key: int) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()


def open_pipeline(setup: dict[str, Any]) -> OpenVINOPipeline:
    return OpenVINOPipeline(setup)
