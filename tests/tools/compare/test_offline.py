"""The native engine without HTTP, on the default model: the same tokens as through `LLM`."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.config.load import Override, load_config
from llm_inference.tools.compare.offline import NativePipeline
from llm_inference.tools.compare.scripts.loop import run_workload


@pytest.fixture(scope="module")
def pipeline(default_model_dir: Path) -> NativePipeline:
    overrides = [Override(("model", "model"), str(default_model_dir), "model")]
    overrides += [
        Override(("model", "kv_cache_memory"), "256MiB", "cache"),
        Override(("model", "max_model_len"), 512, "len"),
    ]
    return NativePipeline(load_config(overrides=overrides).config.models[0])


def test_every_request_is_as_long_as_asked(pipeline: NativePipeline) -> None:
    requests = [{"token_ids": [2000 + place, 3000, 4000], "max_tokens": place + 2} for place in range(4)]
    rows, key = run_workload(pipeline, {"requests": requests, "late": [], "concurrency": 3, "limit_s": 60}, 5)
    assert [sum(count for _, count in row["arrivals"]) for row in rows["streams"]] == [2, 3, 4, 5]
    assert key == 9
    assert pipeline.versions()["runner"]


def test_streams_are_aborted(pipeline: NativePipeline) -> None:
    work = {
        "requests": [{"token_ids": [2000, 3000], "max_tokens": 200}],
        "late": [{"token_ids": [7000] * 64, "max_tokens": 1}],
        "concurrency": 1,
        "limit_s": 60,
    }
    rows, _ = run_workload(pipeline, work, 100)
    assert rows["late"][0]["finished"]
    assert not rows["streams"][0]["finished"]
    assert not pipeline._core.has_work
