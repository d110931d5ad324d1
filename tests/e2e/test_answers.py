"""The real default model behind the real command: what a first user tries."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import openai
import pytest

from tests.e2e.server import RunningServer

pytestmark = pytest.mark.e2e

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def post(server: RunningServer, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


def test_paris(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=32)
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_paris_streamed_equals_not_streamed(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=32, temperature=0)
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=32,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, finish_reasons, usages = "", [], []
    for number, chunk in enumerate(stream):
        if number == 0:
            assert chunk.choices[0].delta.role == "assistant"
        if chunk.usage is not None:
            assert chunk.choices == []
            usages.append(chunk.usage)
            continue
        text += chunk.choices[0].delta.content or ""
        finish_reasons.append(chunk.choices[0].finish_reason)
    assert "Paris" in text
    assert text == whole.choices[0].message.content
    assert finish_reasons[-1] == "stop"
    assert set(finish_reasons[:-1]) == {None}
    assert whole.usage is not None
    assert [usage.completion_tokens for usage in usages] == [whole.usage.completion_tokens]


def test_completions(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    reply = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in reply.choices[0].text
    ids = post(server, "/tokenize", {"model": model, "prompt": "The capital of France is"})["tokens"]
    by_ids = client.completions.create(model=model, prompt=ids, max_tokens=8, temperature=0)
    assert by_ids.choices[0].text == reply.choices[0].text
    assert post(server, "/detokenize", {"model": model, "tokens": ids})["prompt"] == "The capital of France is"


def test_list_of_prompts_keeps_the_order(client: openai.OpenAI, model: str) -> None:
    prompts = ["The capital of France is", "The capital of Italy is", "2 + 2 ="]
    alone = [
        client.completions.create(model=model, prompt=p, max_tokens=6, temperature=0).choices[0].text for p in prompts
    ]
    together = client.completions.create(model=model, prompt=prompts, max_tokens=6, temperature=0)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.text for choice in together.choices] == alone


def test_batch_completions(server: RunningServer) -> None:
    body = {"prompts": ["The capital of France is", "Hello"], "max_tokens": 8, "temperature": 0}
    replies = post(server, "/v1/batch_completions", body)
    assert "Paris" in replies[0]["text"]
    for reply in replies:
        assert reply["finish_reason"] in ("stop", "length")
        assert 1 <= reply["tokens_used"] <= 8


def test_second_turn_reuses_the_first(client: openai.OpenAI, model: str) -> None:
    """Prompt and answer of a turn are in the cache when the next turn brings them back."""
    first: list[Any] = [{"role": "user", "content": "Tell me three facts about the planet Jupiter, please."}]
    answer = client.chat.completions.create(model=model, messages=first, max_tokens=64, temperature=0)
    second = [
        *first,
        {"role": "assistant", "content": answer.choices[0].message.content},
        {"role": "user", "content": "And one more."},
    ]
    again = client.chat.completions.create(model=model, messages=second, max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens or 0
    assert cached > answer.usage.prompt_tokens, "generated tokens are reused too"
    assert cached <= answer.usage.total_tokens


def test_models_and_version(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    assert [entry.id for entry in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-unknown", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    with urllib.request.urlopen(f"{server.url}/version") as reply:
        assert json.load(reply)["version"]


def test_the_log_line_of_a_request(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=4, extra_headers={"x-request-id": "find-me-in-the-log"}
    )
    fields = json.loads(server.line_with("find-me-in-the-log"))
    assert fields["prompt_tokens"] > 0
    assert fields["completion_tokens"] == 4
    assert fields["finish_reason"] == "length"
    assert 0 <= fields["queue_s"] <= fields["ttft_s"] <= fields["total_s"]
    assert "capital" not in server.log, "user text is not logged"
