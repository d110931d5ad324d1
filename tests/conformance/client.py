"""Requests to a gateway over HTTP, and the promises that hold for every answer, checked on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import aiohttp

from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Prompt, SamplingParams
from tests.conformance.engines import Case
from tests.gateway.serving import Reply

TEXT = "The capital of France is"
QUESTION = "What is the capital of France?"
#: With an instruction of our own: in 8 bits of activations the model gets lost after the long one of its template.
CHAT = ChatPrompt(
    messages=(
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": QUESTION},
    )
)
MESSAGES = [{"role": "user", "content": QUESTION}]
COMPLETION_PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"
_ids: Iterator[int] = itertools.count()


def work(prompt: Prompt = TEXT, **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **sampling})
    return GenerateRequest(request_id=f"conformance-{next(_ids)}", model="m", prompt=prompt, sampling=params)


async def answer(case: Case, request: GenerateRequest) -> list[Delta]:
    """All deltas of the engine itself; what `engine/base.py` promises of them."""
    deltas = [delta async for delta in case.engine.generate(request)]
    ended: set[int] = set()
    for delta in deltas:
        assert delta.index not in ended, "nothing comes after a choice's end"
        if delta.finish_reason is not None:
            ended.add(delta.index)
    assert ended == set(range(request.sampling.n))
    assert deltas[-1].usage is not None
    if request.sampling.temperature == 0:  # a hot model may well say half a character
        assert "�" not in "".join(delta.text for delta in deltas)
    return deltas


def body_of(path: str, case: Case, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"prompt": TEXT} if path == COMPLETION_PATH else {"messages": MESSAGES}
    return {"model": case.model, "max_tokens": 8, "temperature": 0, **given, **fields}


async def post(case: Case, path: str, *, url: str | None = None, **fields: Any) -> Reply:
    """One request as a client sends it; the reply read to its end."""
    async with (
        aiohttp.ClientSession() as session,
        session.post((url or case.url) + path, json=body_of(path, case, **fields)) as response,
    ):
        return Reply(response.status, response.headers, await response.text())


async def complete(case: Case, **fields: Any) -> Reply:
    return await post(case, COMPLETION_PATH, **fields)


async def chat(case: Case, **fields: Any) -> Reply:
    return await post(case, CHAT_PATH, **fields)


async def get(url: str) -> Reply:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return Reply(response.status, response.headers, await response.text())


def content(reply: Reply, index: int = 0) -> str:
    """The text of a choice of a whole reply of either route."""
    assert reply.status == 200, reply.text
    [choice] = [one for one in reply.json["choices"] if one["index"] == index]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return str(text or "")


def streamed(reply: Reply) -> tuple[str, str, dict[str, Any]]:
    """(text, finish reason, usage) of a stream of one choice, `[DONE]` once and last."""
    events = reply.events
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert not [chunk for chunk in chunks if "error" in chunk]
    assert len({chunk["id"] for chunk in chunks}) == 1, "one id for all chunks"
    assert chunks[0]["id"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    assert len(reasons) == 1
    text = "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)
    assert chunks[-1]["usage"] is not None, "stream_options.include_usage: the last chunk carries it"
    return text, reasons[0], chunks[-1]["usage"]


async def frames(response: aiohttp.ClientResponse) -> AsyncGenerator[Any, None]:
    """Events as they come."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)
