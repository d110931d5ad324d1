"""`POST /tokenize` and `/detokenize`: the engine's own tokenizer, where it has one to show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import Engine, Tokenizes
from llm_inference.engine.types import ChatPrompt, GenerateRequest, Prompt
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai import values
from llm_inference.gateway.openai.intake import Intake, take_in
from llm_inference.gateway.openai.protocol import DetokenizeRequest, TokenizeRequest
from llm_inference.gateway.openai.replies import DetokenizeReply, TokenizeReply, encoder
from llm_inference.gateway.openai.values import fail

#: Token ids that may be turned into text at once, by models whose context is shorter than that.
MIN_DETOKENIZE_LIMIT = 128 * 1024


async def tokenize(request: Request) -> Response:
    """A prompt's tokens, or those of a chat as the model's template writes it."""
    intake = await take_in(request, TokenizeRequest)
    fields = intake.fields
    prompt = _prompt(fields)
    async with _counted(request, intake):
        result = await _tokenizer(intake.engine, intake.model).tokenize(
            # A chat template writes its own special tokens.
            prompt,
            add_special_tokens=fields.add_special_tokens is not False,
        )
    reply = TokenizeReply(
        len(result.token_ids),
        result.max_model_len,
        list(result.token_ids),
        list(result.tokens) if fields.return_token_strs else UNSET,
    )
    return Response(encoder.encode(reply), media_type="application/json")


async def detokenize(request: Request) -> Response:
    intake = await take_in(request, DetokenizeRequest)
    tokens = intake.fields.tokens
    # Ids are two bytes in a body and may be a hundred each in the answer.
    limit = max(intake.engine.info.max_model_len, MIN_DETOKENIZE_LIMIT)
    if len(tokens) > limit:
        raise fail("tokens", f"holds {len(tokens)} ids; at most {limit} are taken at once.")
    values.check_range(tokens, "tokens", intake.engine.info.vocab_size)
    async with _counted(request, intake):
        text = await _tokenizer(intake.engine, intake.model).detokenize(tokens)
    return Response(encoder.encode(DetokenizeReply(text)), media_type="application/json")


@asynccontextmanager
async def _counted(request: Request, intake: Intake[Any]) -> AsyncIterator[None]:
    """A permit, and one request of no tokens among the caller's limits."""
    tenants = intake.gateway.tenants
    nothing: tuple[GenerateRequest, ...] = ()
    with intake.gateway.admission.permit():
        grant = None if tenants is None else tenants.admitted(intake.record, request.scope, intake.engine, nothing)
        async with grant or nullcontext():
            yield


def _prompt(fields: TokenizeRequest) -> Prompt:
    if (fields.prompt is None) == (fields.messages is None):
        raise fail("prompt", "send exactly one of prompt and messages.")
    if fields.prompt is not None:
        for field in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
            if field in fields.model_fields_set:
                raise fail(field, "would have no effect without messages.")
        return fields.prompt
    assert fields.messages is not None
    if fields.add_special_tokens:
        raise fail("add_special_tokens", "would have no effect on messages: the chat template writes special tokens.")
    return ChatPrompt(
        messages=fields.messages,
        tools=fields.tools,
        add_generation_prompt=fields.add_generation_prompt is not False and not fields.continue_final_message,
        continue_final_message=fields.continue_final_message,
        template_kwargs=fields.chat_template_kwargs,
    )


def _tokenizer(engine: Engine, model: str) -> Tokenizes:
    if engine.capabilities.tokenize and isinstance(engine, Tokenizes):
        return engine
    raise InvalidRequestError(
        f"The engine {engine.info.engine!r} of model {model!r} shows no tokenizer; this route needs one.",
        param="model",
        code="unsupported_operation",
    )
