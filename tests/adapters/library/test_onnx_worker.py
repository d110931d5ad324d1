"""Who takes a turn, over generators that only count: no library."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llm_inference.adapters.library.wire import WorkerSampling
from llm_inference.adapters.library.workers import onnx_sampling
from llm_inference.adapters.library.workers.onnx_worker import ONNXWorker, open_worker

EOS = 3


class CountingGenerator:
    """After a prompt's last token `t` comes `t + 1`, and so on."""

    def __init__(self, model: Any, params: Any) -> None:
        self.model = model
        self.params = params
        self.last = 0
        model.generators.append(self)

    def append_tokens(self, tokens: Any) -> None:
        self.model.calls.append(list(map(int, tokens)))
        self.last = int(tokens[-1])
        if self.last == 13:
            raise RuntimeError("no memory\nfor this")

    def get_logits(self) -> Any:
        logits = np.zeros((1, 1, 100), dtype=np.float32)
        logits[0, 0, self.last + 1] = 9.0
        return logits

    def generate_next_token(self) -> None:
        self.last += 1

    def get_next_tokens(self) -> list[int]:
        return [self.last]

    def is_done(self) -> bool:
        return False


class Params:
    def __init__(self, model: Any) -> None:
        self.options: dict[str, Any] = {}
        self.guidance: tuple[str, str] | None = None

    def set_search_options(self, **options: Any) -> None:
        self.options = options

    def set_guidance(self, kind: str, source: str) -> None:
        if source == "((":
            raise RuntimeError("invalid regex")
        self.guidance = (kind, source)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> ONNXWorker:
    library = SimpleNamespace(
        __version__="0",
        Config=lambda path: SimpleNamespace(overlay=lambda text: None),
        Model=lambda config: SimpleNamespace(generators=[], calls=[]),
        GeneratorParams=Params,
        Generator=CountingGenerator,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", library)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "onnx_sampling", onnx_sampling)
    return open_worker(
        {
            "model": "m",
            "precision": "fp32",
            "num_threads": 1,
            "session_options": {},
            "max_num_seqs": 2,
            "max_num_batched_tokens": 4,
            "kv_cache_tokens": 40,
            "vocab_size": 100,
        }
    )


def add(worker: ONNXWorker, name: str, prompt: list[int], **more: Any) -> None:
    said = WorkerSampling(**{"max_tokens": 3, "temperature": 0.0, "eos_token_ids": (EOS,), **more})
    sampling = {field: getattr(said, field) for field in said.__struct_fields__}
    if said.grammar is not None:
        sampling["grammar"] = {"kind": said.grammar.kind, "source": said.grammar.source}
    worker.add(name, prompt, sampling)


def run(worker: ONNXWorker) -> list[tuple[str, list[int], str | None]]:
    news = []
    while worker.has_work():
        news += [(m["id"], m["ids"], m["finish_reason"]) for m in worker.step()]
    return news


def test_they_take_turns(worker: ONNXWorker) -> None:
    add(worker, "a", [10])
    add(worker, "b", [20])
    assert [name for name, _, _ in run(worker)] in (list("ababab"), list("bababa"))


def test_the_output(worker: ONNXWorker) -> None:
    add(worker, "a", [10])
    assert run(worker) == [("a", [11], None), ("a", [12], None), ("a", [13], "length")]
    add(worker, "b", [1])
    assert run(worker) == [("b", [2], None), ("b", [EOS], "stop")]
    assert worker.stats()["generation_tokens"] == 5


def test_a_long_prompt_takes_several_turns(worker: ONNXWorker) -> None:
    add(worker, "a", [30] * 9, max_tokens=1)
    add(worker, "b", [20], max_tokens=2)
    assert [name for name, _, _ in run(worker)] == ["b", "b", "a"]
    assert [len(call) for call in worker._model.calls if call[0] == 30] == [4, 4, 1]


def test_no_more_than_max_num_seqs_and_no_more_than_the_cache_holds(worker: ONNXWorker) -> None:
    for name in "abc":
        add(worker, name, [10])
    worker.step()
    assert (worker.stats()["num_running"], worker.stats()["num_waiting"]) == (2, 1)
    for name in "abc":
        worker.abort(name)
    assert not worker.has_work()
    add(worker, "large", [10], max_tokens=30)
    add(worker, "next", [10], max_tokens=20)
    worker.step()
    assert (worker.stats()["num_running"], worker.stats()["num_waiting"]) == (1, 1)
    assert worker.stats()["kv_cache_usage"] == 31 / 40


def test_a_cache_is_as_long_as_its_request(worker: ONNXWorker) -> None:
    add(worker, "a", [10, 11], max_tokens=5)
    worker.step()
    assert worker._model.generators[0].params.options == {"max_length": 7, "batch_size": 1}


def test_what_the_library_raises_is_one_request_s_error(worker: ONNXWorker) -> None:
    add(worker, "a", [13])
    add(worker, "b", [20])
    news = []
    while worker.has_work():
        news += worker.step()
    [error] = [message for message in news if message["type"] == "error"]
    assert (error["id"], error["message"], error["last"]) == ("a", "the engine failed: no memory for this", True)
    assert [message["id"] for message in news if message["type"] == "tokens"] == ["b"] * 3


def test_grammars_are_the_library_s(worker: ONNXWorker) -> None:
    from llm_inference.adapters.library.wire import Grammar

    add(worker, "a", [10], grammar=Grammar("regex", "a+"), temperature=1.0, seed=5, top_p=0.5)
    params = worker._model.generators[0].params
    assert params.guidance == ("regex", "a+")
    assert params.options["random_seed"] == 5
    assert params.options["top_k"] == 100, "none is said: all of them, not the library's 50"
    assert run(worker)[-1] == ("a", [13], "length")
    with pytest.raises(ValueError, match="invalid regex"):
        add(worker, "b", [10], grammar=Grammar("regex", "(("))
    assert not worker.has_work()
