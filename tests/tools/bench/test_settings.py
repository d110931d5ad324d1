from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.settings import BenchSettings


@pytest.mark.parametrize(
    ("url", "api_url", "root_url"),
    [
        ("http://h:1", "http://h:1/v1", "http://h:1"),
        ("http://h:1/", "http://h:1/v1", "http://h:1"),
        ("http://h:1/v1", "http://h:1/v1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1/v1", "http://h:1"),
        ("https://h/openai/v3", "https://h/openai/v3", "https://h/openai"),
        ("https://h/llm", "https://h/llm/v1", "https://h/llm"),
    ],
)
def test_a_url_is_given_with_or_without_its_version(url: str, api_url: str, root_url: str) -> None:
    settings = BenchSettings(url=url)
    assert (settings.api_url, settings.root_url) == (api_url, root_url)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "127.0.0.1:8000"}, "--url"),
        ({"url": "ftp://h"}, "--url"),
        ({"url": "http://h?x=1"}, "--url"),
        ({"num_prompts": 0}, "--num-prompts"),
        ({"concurrency": 0}, "--concurrency"),
        ({"warmup": -1}, "--warmup"),
        ({"seed": -1}, "--seed"),
        ({"prefix_len": -1}, "--prefix-len"),
        ({"request_rate": 0.0}, "--request-rate"),
        ({"request_rate": float("inf")}, "--request-rate"),
        ({"duration_s": -1.0}, "--duration"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"burstiness": 2.0}, "--burstiness would have no effect"),
        ({"dataset": Path("x"), "prefix_len": 3}, "--prefix-len would have no effect"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BenchSettings(**{"url": "http://h", **fields})


def test_load_defaults() -> None:
    assert BenchSettings(url="http://h").max_in_flight == 8
    assert BenchSettings(url="http://h", concurrency=3).max_in_flight == 3
    assert BenchSettings(url="http://h", request_rate=3).max_in_flight is None
    assert BenchSettings(url="http://h", request_rate=3, concurrency=5).max_in_flight == 5


def test_what_is_shown_is_json_and_has_every_setting_but_the_key() -> None:
    shown = BenchSettings(url="http://h", api_key="secret", dataset=Path("d.jsonl")).shown()
    text = msgspec.json.encode(shown).decode()
    assert "secret" not in text
    assert set(BenchSettings.__dataclass_fields__) - {"api_key"} <= set(shown)
    assert shown["dataset"] == "d.jsonl"
    assert shown["input_len"] == "256"
