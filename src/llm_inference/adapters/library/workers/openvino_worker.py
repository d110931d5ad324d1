"""OpenVINO GenAI's continuous batching pipeline as a `Worker` of `serving.py`. Runs under the engine's interpreter.

Its quirks, which are met here (2026.4):

- an unset seed is seed 0, the same for every request: one is drawn;
- `ignore_eos` ends nothing, not even at the request's own stop tokens: those are looked for here;
- a step that fails leaves every request half scheduled: all must go, and then it works again;
- a sequence that outgrows the cache is given up with the status IGNORED and no word in its output.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

#: Tokens in one block of the CPU's KV cache.
BLOCK_SIZE = 32
_MAX_SEED = 2**31 - 1
_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
#: It wants less than 1. So near to it only the best token is left, as with 1.
_MAX_MIN_P = 0.999999
#: What its checks put before the reason: an expression and a place in its source.
_CHECK = re.compile(r"Check '.*?' failed at \S+:\d+:\s*", re.DOTALL)


@dataclass(slots=True)
class Running:
    """One request and what it has come to."""

    handle: Any
    sampling: dict[str, Any]
    num_tokens: int = 0


class OpenVINOWorker:
    """The `Worker`."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._genai = import_module("openvino_genai")
        self._openvino = import_module("openvino")
        self._numpy = import_module("numpy")
        properties = {"INFERENCE_NUM_THREADS": setup["num_threads"], **self._precision(setup), **setup["properties"]}
        hint, cache = properties["INFERENCE_PRECISION_HINT"], properties.get("KV_CACHE_PRECISION", "u8")
        self._said = f"{setup['weights']} weights, computed in {_NAMES.get(hint, hint)}, cache {cache}"
        scheduler = self._scheduler(setup)
        self._pipeline = self._genai.ContinuousBatchingPipeline(setup["model"], scheduler, "CPU", properties)
        self._setup = setup
        self._requests: dict[str, Running] = {}
        self._next = 0
        self._counts = {"num_steps": 0, "prompt_tokens": 0, "generation_tokens": 0}

    def report(self) -> dict[str, Any]:
        return {
            "precision": self._said,
            "version": self._genai.__version__,
            "num_kv_blocks": self._setup["num_kv_blocks"],
        }

    def add(self, request_id: str, token_ids: list[int], sampling: dict[str, Any]) -> None:
        config = self._config(sampling)
        try:
            config.validate()
        except RuntimeError as error:
            raise ValueError(f"the engine 'openvino' refuses it: {_reason(error)}") from error
        prompt = self._openvino.Tensor(self._numpy.array([token_ids], dtype=self._numpy.int64))
        handle = self._pipeline.add_request(self._next, prompt, config)
        self._next += 1
        self._requests[request_id] = Running(handle, sampling)
        self._counts["prompt_tokens"] += len(token_ids)

    def abort(self, request_id: str) -> None:
        running = self._requests.pop(request_id, None)
        if running is not None:
            running.handle.cancel()

    def has_work(self) -> bool:
        return bool(self._requests) or self._pipeline.has_non_finished_requests()

    def step(self) -> list[dict[str, Any]]:
        self._pipeline.step()
        self._counts["num_steps"] += 1
        news: list[dict[str, Any]] = []
        for request_id, running in list(self._requests.items()):
            messages = self._read(request_id, running)
            news += messages
            if messages and messages[-1].get("last"):
                self._requests.pop(request_id)
        return news

    def stats(self) -> dict[str, Any]:
        metrics = self._pipeline.get_metrics()
        running = min(metrics.scheduled_requests, len(self._requests))
        return {
            **self._counts,
            "num_running": running,
            "num_waiting": len(self._requests) - running,
            "kv_cache_usage": min(max(metrics.cache_usage / 100, 0.0), 1.0),
            "num_kv_blocks": self._setup["num_kv_blocks"],
        }

    def _read(self, request_id: str, running: Running) -> list[dict[str, Any]]:
        handle = running.handle
        if running.sampling["num_beams"] > 1:
            return self._read_beams(request_id, running)
        messages: list[dict[str, Any]] = []
        while handle.can_read():
            for output in handle.read().values():
                messages += self._tokens(request_id, running, output)
                if messages and messages[-1]["last"]:
                    return messages
        if handle.get_status() == self._genai.GenerationStatus.IGNORED:
            message = "the KV cache has no room for this request; set a larger kv_cache_memory"
            messages.append({"type": "error", "id": request_id, "error": "EngineError", "message": message})
            messages[-1].update(param=None, last=True)
        return messages

    def _tokens(self, request_id: str, running: Running, output: Any) -> list[dict[str, Any]]:
        ids = list(output.generated_ids)
        logprobs = list(output.generated_log_probs)
        reason = {"STOP": "stop", "LENGTH": "length"}.get(output.finish_reason.name)
        if running.sampling["ignore_eos"]:
            own = set(running.sampling["stop_token_ids"])
            end = next((place for place, token in enumerate(ids) if token in own), None)
            if end is not None:
                running.handle.cancel()
                ids, reason = ids[: end + 1], "stop"
        if not ids and reason is None:
            return []
        running.num_tokens += len(ids)
        self._counts["generation_tokens"] += len(ids)
        entries = None
        if running.sampling["logprobs"] is not None:
            # Asked for one alternative only where the chosen token is the best.
            pairs = [(token, _finite(value)) for token, value in zip(ids, logprobs, strict=False)]
            with_best = bool(running.sampling["logprobs"])
            entries = [[value, [[token, value]] if with_best else []] for token, value in pairs]
        message = {"type": "tokens", "id": request_id, "index": 0, "ids": ids, "logprobs": entries}
        return [{**message, "finish_reason": reason, "last": reason is not None}]

    def _read_beams(self, request_id: str, running: Running) -> list[dict[str, Any]]:
        """Beams come when all are done; the best `n`, best first."""
        if not running.handle.can_read():
            return []
        found = sorted(running.handle.read().values(), key=lambda output: -output.score)[: running.sampling["n"]]
        messages = []
        for index, output in enumerate(found):
            ids = list(output.generated_ids)
            self._counts["generation_tokens"] += len(ids)
            reason = "length" if output.finish_reason.name == "LENGTH" else "stop"
            message = {"type": "tokens", "id": request_id, "index": index, "ids": ids, "logprobs": None}
            messages.append({**message, "finish_reason": reason, "last": index == len(found) - 1})
        return messages

    def _config(self, sampling: dict[str, Any]) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = sampling["max_tokens"]
        config.min_new_tokens = sampling["min_tokens"]
        config.ignore_eos = sampling["ignore_eos"]
        if not sampling["ignore_eos"]:
            config.stop_token_ids = {*sampling["stop_token_ids"], *sampling["eos_token_ids"]}
        config.repetition_penalty = sampling["repetition_penalty"]
        config.presence_penalty = sampling["presence_penalty"]
        config.frequency_penalty = sampling["frequency_penalty"]
        # With 0 it would tell them after temperature and top_p; with 1 they are the model's own.
        config.logprobs = 0 if sampling["logprobs"] is None else 1
        config.apply_chat_template = False
        if sampling["num_beams"] > 1:
            config.num_beams = sampling["num_beams"]
            config.num_return_sequences = sampling["n"]
            config.length_penalty = sampling["length_penalty"]
            criteria = self._genai.StopCriteria
            config.stop_criteria = criteria.EARLY if sampling["early_stopping"] else criteria.HEURISTIC
        elif sampling["temperature"] > 0:
            config.do_sample = True
            config.temperature = sampling["temperature"]
            config.top_p = sampling["top_p"]
            config.min_p = min(sampling["min_p"], _MAX_MIN_P)
            if sampling["top_k"]:
                config.top_k = sampling["top_k"]
            seed = sampling["seed"]
            config.rng_seed = random.SystemRandom().randrange(_MAX_SEED) if seed is None else seed
        grammar = sampling["grammar"]
        if grammar is not None:
            config.structured_output_config = self._genai.StructuredOutputConfig(**{grammar["kind"]: grammar["source"]})
        return config

    def _scheduler(self, setup: dict[str, Any]) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.num_kv_blocks = setup["num_kv_blocks"]
        scheduler.max_num_seqs = setup["max_num_seqs"]
        scheduler.max_num_batched_tokens = setup["max_num_batched_tokens"]
        scheduler.enable_prefix_caching = setup["enable_prefix_caching"]
        for name, value in setup["scheduler"].items():
            if not hasattr(scheduler, name):
                raise ValueError(f"engine_args.{name}: OpenVINO GenAI's SchedulerConfig has no such field")
            try:
                setattr(scheduler, name, value)
            except TypeError as error:
                raise ValueError(f"engine_args.{name}: SchedulerConfig does not take {value!r}") from error
        return scheduler

    def _precision(self, setup: dict[str, Any]) -> dict[str, Any]:
        """Properties for the dtype that was asked for. "auto" is float32, as the native engine has it on a CPU.

        What OpenVINO would choose by itself, bfloat16 where the CPU has it, has turned near ties of small models.
        """
        dtype = setup["dtype"]
        short = {"auto": "FP32", "float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}[dtype]
        able = self._openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if short not in able:
            raise ValueError(f"dtype: OpenVINO does not compute in {dtype} on this CPU; it can: {', '.join(able)}")
        exact = {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if dtype == "float32" else {}
        return {"INFERENCE_PRECISION_HINT": {"FP32": "f32", "BF16": "bf16", "FP16": "f16"}[short], **exact}


def _finite(value: float) -> float:
    """JSON has no infinity."""
    return max(value, -1e9)


def _reason(error: Exception) -> str:
    """The library's own words, on one line."""
    return " ".join(_CHECK.sub("", str(error)).split())[:300]


def open_worker(setup: dict[str, Any]) -> OpenVINOWorker:
    """Loads the model. Raises `ValueError` with what is wrong with the configuration."""
    return OpenVINOWorker(setup)
