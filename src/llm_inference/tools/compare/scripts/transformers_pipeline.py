"""transformers' `generate` on static batches, or its continuous batching, as `setup["batching"]` says."""

from __future__ import annotations

import time
from collections import deque
from importlib import import_module
from typing import Any

News = list[tuple[int, int, bool, "float | None"]]


class StaticPipeline:
    """A `Pipeline` of `loop.py`: what waits at a step is one padded batch, run until its longest answer is done."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._torch, self._transformers, self._model = _load(setup)
        self._waiting: deque[tuple[int, list[int], int]] = deque()

    def versions(self) -> dict[str, str]:
        return _versions(self._torch, self._transformers)

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        self._waiting.append((key, token_ids, max_tokens))

    def step(self) -> News:
        """The whole batch; each token with the time at which its step ended."""
        torch = self._torch
        batch = list(self._waiting)
        self._waiting.clear()
        longest = max(len(ids) for _, ids, _ in batch)
        padded = torch.tensor([[0] * (longest - len(ids)) + ids for _, ids, _ in batch])
        mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for _, ids, _ in batch])
        times: list[float] = []

        def note(input_ids: Any, scores: Any, **rest: Any) -> Any:
            times.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        with torch.inference_mode():
            self._model.generate(
                padded,
                attention_mask=mask,
                max_new_tokens=max(wanted for _, _, wanted in batch),
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[note],
            )
        return [
            (key, 1, place + 1 == wanted, at_s) for key, _, wanted in batch for place, at_s in enumerate(times[:wanted])
        ]

    def abort(self, key: int) -> None:
        self._waiting = deque(one for one in self._waiting if one[0] != key)


class ContinuousPipeline:
    """A `Pipeline` of `loop.py`: the library's own thread computes; a step waits for what it brings."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._torch, self._transformers, self._model = _load(setup)
        config = self._transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        batching = self._transformers.ContinuousBatchingConfig(**setup["continuous_batching"])
        self._manager = self._model.init_continuous_batching(config, continuous_batching_config=batching)
        self._manager.start()
        self._counts: dict[str, int] = {}

    def versions(self) -> dict[str, str]:
        return _versions(self._torch, self._transformers)

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        self._counts[str(key)] = 0
        self._manager.add_request(
            token_ids, request_id=str(key), max_new_tokens=max_tokens, streaming=True, eos_token_id=-1
        )

    def step(self) -> News:
        result = self._manager.get_result(timeout=0.5)
        if result is None:
            if not self._manager.is_running():
                raise RuntimeError("the thread of continuous batching has ended")
            return []
        if result.error is not None:
            raise RuntimeError(str(result.error))
        before = self._counts.get(result.request_id)
        if before is None:
            return []
        total = len(result.generated_tokens)
        self._counts[result.request_id] = total
        finished = bool(result.is_finished())
        if finished:
            del self._counts[result.request_id]
        return [(int(result.request_id), total - before, finished, None)]

    def abort(self, key: int) -> None:
        if self._counts.pop(str(key), None) is not None:
            self._manager.cancel_request(str(key))


def _load(setup: dict[str, Any]) -> tuple[Any, Any, Any]:
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.set_num_threads(setup["num_threads"])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(setup["model"], dtype=getattr(torch, setup["dtype"]))
    model = model.eval()
    model.generation_config.eos_token_id = None
    return torch, transformers, model


def _versions(torch: Any, transformers: Any) -> dict[str, str]:
    return {"transformers": str(transformers.__version__), "torch": str(torch.__version__)}


def open_pipeline(setup: dict[str, Any]) -> StaticPipeline | ContinuousPipeline:
    return StaticPipeline(setup) if setup["batching"] == "static" else ContinuousPipeline(setup)
