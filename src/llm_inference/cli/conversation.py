"""Whom the terminal talks to: an engine started here, or a running server. Both answer in `Delta`s.

Knows nothing of terminals, lines or history.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from llm_inference.engine.base import Engine
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, SamplingParams
from llm_inference.errors import AuthenticationError, EngineError, LLMInferenceError, ServiceError

Messages = list[dict[str, Any]]


class Talker(Protocol):
    def reply(self, prompt: str | Messages, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        """The answer to `prompt`: text is continued as it is, messages go through the chat template.

        Raises `RequestError` or `ServiceError`. Closing it aborts the answer.
        """
        ...


class EngineTalker:
    """Talks to an engine in reach."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = itertools.count(1)

    def reply(self, prompt: str | Messages, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        request = GenerateRequest(
            request_id=f"terminal-{next(self._numbers)}",
            model=self._engine.info.name,
            prompt=prompt if isinstance(prompt, str) else ChatPrompt(messages=tuple(prompt)),
            sampling=sampling,
        )
        return self._engine.generate(request)


class HTTPTalker:
    """Talks to the OpenAI API at `base_url` (with its prefix)."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, model: str) -> None:
        self._session = session
        self._base_url = base_url
        self._model = model

    async def reply(self, prompt: str | Messages, sampling: SamplingParams) -> AsyncGenerator[Delta, None]:
        chat = not isinstance(prompt, str)
        body: dict[str, Any] = {"model": self._model, "messages" if chat else "prompt": prompt, "stream": True}
        for name in ("max_tokens", "temperature", "top_p", "seed"):
            value = getattr(sampling, name)
            if value is not None:
                body[name] = value
        url = f"{self._base_url}/{'chat/completions' if chat else 'completions'}"
        try:
            async with self._session.post(url, json=body) as response:
                await _check(response)
                async for event in _events(response):
                    yield _delta(event)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServiceError(f"the connection to {self._base_url} failed: {error or type(error).__name__}") from error


@asynccontextmanager
async def connect(url: str, *, model: str | None = None, api_key: str | None = None) -> AsyncIterator[HTTPTalker]:
    """A talker to the server at `url`, whose only model is taken where `model` is None. Raises `ServiceError`."""
    base_url = normalise_url(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        yield HTTPTalker(session, base_url, model or await _only_model(session, base_url))


def normalise_url(url: str) -> str:
    """ "host:8000" → "http://host:8000/v1"; a path of its own is kept. Raises `ServiceError` when it is no URL."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ServiceError(f"{url} is no address of a server; write such as http://127.0.0.1:8000")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


async def _only_model(session: aiohttp.ClientSession, base_url: str) -> str:
    try:
        async with session.get(f"{base_url}/models") as response:
            await _check(response)
            names = [str(model["id"]) for model in (await response.json())["data"]]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServiceError(f"cannot reach {base_url}: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError(f"{base_url}/models does not answer like an OpenAI API") from error
    if len(names) != 1:
        raise ServiceError(f"{base_url} serves several models; say which: {', '.join(names) or '(none)'}")
    return names[0]


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text(errors="replace")
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = text.strip()[:200] or str(response.reason)
    kind: type[LLMInferenceError] = AuthenticationError if response.status == 401 else ServiceError
    advice = " (give the key with --api-key)" if response.status == 401 else ""
    raise kind(f"the server answered {response.status}: {message}{advice}")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each `data:` line until `[DONE]`. Raises `EngineError` at an error frame or an early end."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                return
            try:
                event = json.loads(payload)
            except (ValueError, RecursionError) as error:
                raise EngineError(f"the server sent what is no JSON: {payload[:80]!r}") from error
            if not isinstance(event, dict):
                raise EngineError(f"the server sent what is no chunk: {payload[:80]!r}")
            if event.get("error"):
                problem = event["error"]
                message = problem.get("message", problem) if isinstance(problem, dict) else problem
                raise EngineError(f"the server failed: {message}")
            yield event
    raise EngineError("the server closed the stream before its end")


def _delta(event: dict[str, Any]) -> Delta:
    try:
        choices = event.get("choices") or [{}]
        choice = choices[0]
        delta = choice.get("delta") or {}
        return Delta(
            text=str(delta.get("content") or choice.get("text") or ""),
            reasoning=str(delta.get("reasoning") or delta.get("reasoning_content") or ""),
            finish_reason=choice.get("finish_reason"),
        )
    except (AttributeError, LookupError, TypeError) as error:
        raise EngineError(f"the server sent what is no chunk: {repr(event)[:80]}") from error
