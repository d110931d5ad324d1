"""Ollama's own routes, `/api/chat` and `/api/generate`: JSON lines, the last of them with `done` and the counts.

Chats are templated by Ollama; texts go `raw`, past its template, and token ids decoded (which needs `tokenizer:`). Its
context is as long as a request says (`num_ctx`): `max_model_len`, 4096 where that is not set. Nothing may be truncated
or shifted out of it in silence, which newer servers honour.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from llm_inference.adapters.backend import Backend
from llm_inference.adapters.dialect import (
    Call,
    Dialect,
    Reader,
    Route,
    ServerFacts,
    capability_table,
    refuse,
)
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.remote import create_remote
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import ChatPrompt, GenerateRequest, ToolCallDelta
from llm_inference.errors import ConfigError
from llm_inference.text.chat import normalize_messages


class OllamaDialect(Dialect):
    name = "ollama-native"
    health_path = "/api/version"
    own_defaults = True
    needs_tokenizer = False
    default_max_model_len = 4096
    capabilities = capability_table(
        enforced=(
            "top_k",
            "min_p",
            "seed",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "tools",
            "response_format",
            "structured_outputs",
        ),
        refused={
            "tool_choice": "it lets the model choose; leave it out, or send none or auto",
            "parallel_tool_calls": "it lets the model choose",
            "chat_template_kwargs": "the chat template is the server's own",
            "continue_final_message": "the chat template is the server's own",
            "add_generation_prompt": "the chat template is the server's own",
            "reasoning_effort": "the model's own default holds",
            "logprobs": "it tells no token ids",
            "top_logprobs": "it tells no token ids",
            "return_token_ids": "it tells no token ids",
            "best_of": "its protocol has no best_of",
            "logit_bias": "its protocol has no logit_bias",
            "min_tokens": "its protocol has no shortest output",
            "ignore_eos": "its protocol cannot ignore EOS",
            "stop_token_ids": "its protocol has no stop tokens, and it tells no token ids",
            "skip_special_tokens": "it leaves special tokens out always",
            "add_special_tokens": "its tokenizer adds them as the model's file says",
        },
    )

    @classmethod
    def command(cls, model: ModelConfig) -> str:
        return f"ollama serve, ollama pull {model.model}, then `url: http://127.0.0.1:11434`"

    async def probe(self, backend: Backend, model: str) -> ServerFacts:
        status, body = await backend.get("/api/tags")
        if status == 200:
            names = {str(entry.get("name")) for entry in msgspec.json.decode(body).get("models") or ()}
            if not names & {model, f"{model}:latest"}:
                there = ", ".join(sorted(names)) or "none"
                raise ConfigError(f"model: the server at {backend.url} has no {model!r}; it has {there}. Pull it there")
        return ServerFacts()

    def check(self, request: GenerateRequest) -> None:
        grammar = request.sampling.grammar
        if grammar is not None and grammar.kind not in ("json_object", "json_schema"):
            raise refuse(self.name, "structured_outputs", "it takes JSON schemas only")

    def route(self, call: Call) -> Route:
        sampling, request = call.sampling, call.request
        options: dict[str, Any] = {
            "num_ctx": call.max_model_len,
            "num_predict": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            # Over all of the context, not the last 64 tokens.
            "repeat_last_n": None if sampling.repetition_penalty is None else -1,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            "stop": list(call.stop) or None,
        }
        body: dict[str, Any] = {
            "model": call.model,
            "stream": call.stream,
            "truncate": False,
            "shift": False,
            "options": {name: value for name, value in options.items() if value is not None},
        }
        if sampling.grammar is not None:
            grammar = sampling.grammar
            body["format"] = "json" if grammar.kind == "json_object" else json.loads(grammar.source)
        if isinstance(request.prompt, ChatPrompt):
            path = "/api/chat"
            body["messages"] = [_message(message) for message in normalize_messages(request.prompt.messages)]
            if request.prompt.tools and request.tool_choice != "none":
                body["tools"] = list(request.prompt.tools)
        else:
            path = "/api/generate"
            body |= {"prompt": call.text, "raw": True}
        return Route(path, body, "ndjson" if call.stream else "json")

    def reader(self, call: Call) -> Reader:
        return _LineReader()


class _LineReader:
    """Numbers the tool calls of one choice."""

    def __init__(self) -> None:
        self._num_calls = 0

    def __call__(self, line: dict[str, Any]) -> list[Piece]:
        message = line.get("message") or {}
        done = line["done"]
        return [
            Piece(
                text=message.get("content") or line.get("response") or "",
                reasoning=message.get("thinking") or line.get("thinking") or "",
                tool_calls=self._calls(message.get("tool_calls") or ()),
                final=done,
                finish_reason=line.get("done_reason"),
                # Left out where the whole prompt came from the cache: then 0 would be wrong.
                prompt_tokens=line.get("prompt_eval_count"),
                completion_tokens=line.get("eval_count") if done else None,
            )
        ]

    def _calls(self, calls: Sequence[dict[str, Any]]) -> tuple[ToolCallDelta, ...]:
        first = self._num_calls
        self._num_calls += len(calls)
        return tuple(
            ToolCallDelta(
                index=first + place,
                id=f"call_{uuid.uuid4().hex[:24]}",
                name=str(call["function"]["name"]),
                arguments=_arguments(call["function"].get("arguments")),
            )
            for place, call in enumerate(calls)
        )


def _arguments(value: Any) -> str:
    """An object, or what a model wrote that is none."""
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As Ollama spells it: content is text, a call's arguments are an object, a result names its tool."""
    said = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("tool_calls"):
        said["tool_calls"] = [{"function": call["function"]} for call in message["tool_calls"]]
    if message.get("name"):
        said["tool_name"] = message["name"]
    return said


def create(model: ModelConfig, context: EngineContext) -> GenerateAPIEngine:
    """Raises `ConfigError`."""
    return create_remote(lambda _: OllamaDialect(), OllamaDialect, model, context)
