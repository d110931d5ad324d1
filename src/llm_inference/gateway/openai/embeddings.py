"""`POST /embeddings`: texts or token ids in, one vector each out, in their order."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Literal

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llm_inference.engine.base import Embeds, Engine
from llm_inference.engine.types import EmbedRequest, ModelInfo
from llm_inference.errors import ContextLengthError, InvalidRequestError
from llm_inference.gateway.admission.turn import Turn
from llm_inference.gateway.openai import replies, values
from llm_inference.gateway.openai.intake import Envelope, log_prompt, take_in
from llm_inference.gateway.openai.protocol import EmbeddingsRequest
from llm_inference.gateway.record import RequestRecord, record_of
from llm_inference.gateway.state import Gateway

#: Above this many bytes of vectors, writing them goes to a thread: it would hold the loop for milliseconds.
THREAD_BYTES = 64 * 1024

Encoding = Literal["float", "base64"]


async def embeddings(request: Request) -> Response:
    intake = await take_in(request, EmbeddingsRequest)
    embedder = _embedder(intake.engine, intake.model)
    work = embed_request(intake.fields, Envelope.new("embd", intake), intake.engine.info)
    await log_prompt(intake, list(intake.fields.input))
    return EmbeddingsResponse(intake.gateway, intake.engine, embedder, work, intake.fields.encoding_format)


def embed_request(fields: EmbeddingsRequest, envelope: Envelope, info: ModelInfo) -> EmbedRequest:
    """The engine's form. Raises `InvalidRequestError` for token ids that are none, `ContextLengthError`."""
    for place, given in enumerate(fields.input):
        if not isinstance(given, tuple):
            continue
        field = "input" if len(fields.input) == 1 else f"input[{place}]"
        if len(given) > info.max_model_len:  # first: it bounds the work of looking at every id
            raise ContextLengthError(
                f"{field}: has {len(given)} tokens; the context of {info.name!r} is {info.max_model_len} tokens.",
                param=field,
            )
        values.check_range(given, field, info.vocab_size)
    return EmbedRequest(
        request_id=envelope.id,
        model=envelope.model,
        inputs=fields.input,
        pooling=fields.pooling,
        normalize=fields.normalize,
        dimensions=fields.dimensions,
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        add_special_tokens=fields.add_special_tokens,
    )


class EmbeddingsResponse(Response):
    """Runs `work` on `embedder`, a power of `engine`, when the framework sends it.

    The permit is held until the last byte is out.

    Whatever fails is raised before the first byte; the app's exception handlers make it a plain JSON error.
    """

    def __init__(
        self, gateway: Gateway, engine: Engine, embedder: Embeds, work: EmbedRequest, encoding: Encoding
    ) -> None:
        self.background = None
        self._gateway = gateway
        self._engine = engine
        self._embedder = embedder
        self._work = work
        self._encoding = encoding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        gateway = self._gateway
        turn = Turn(
            gateway.admission,
            scope,
            receive,
            record,
            (self._work,),
            self._engine,
            limit_s=gateway.settings.request_timeout_s,
        )
        async with turn as (work,):
            tenants = gateway.tenants
            grant = None if tenants is None else tenants.admitted(record, scope, self._engine, (work,))
            if grant is None:
                await self._run(work, record, turn, send)
                return
            async with grant as (granted,):
                await self._run(granted, record, turn, send)

    async def _run(self, work: EmbedRequest, record: RequestRecord, turn: Turn[EmbedRequest], send: Send) -> None:
        async with turn.interrupt():
            result = await self._embedder.embed(work)
        record.usage = result.usage
        record.queue_s = result.timing.queue_s if result.timing is not None else None
        usage = replies.EmbeddingUsage(result.usage.prompt_tokens, result.usage.prompt_tokens)
        arguments = (work.model, result.vectors, self._encoding, usage)
        if sum(map(len, result.vectors)) > THREAD_BYTES:
            body = await asyncio.to_thread(embeddings_body, *arguments)
        else:
            body = embeddings_body(*arguments)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        except OSError as error:  # how some ASGI servers say that the peer is gone
            raise ClientDisconnect from error


def embeddings_body(model: str, vectors: Sequence[bytes], encoding: Encoding, usage: replies.EmbeddingUsage) -> bytes:
    """The JSON. `vectors` are little-endian float32, which is what base64 carries; as numbers they are exact, too."""
    items = [
        replies.Embedding(index, base64.b64encode(vector).decode() if encoding == "base64" else _numbers(vector))
        for index, vector in enumerate(vectors)
    ]
    return replies.encoder.encode(replies.EmbeddingList(items, model, usage))


def _numbers(vector: bytes) -> list[float]:
    numbers = array("f")
    numbers.frombytes(vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _embedder(engine: Engine, model: str) -> Embeds:
    if engine.capabilities.embeddings and isinstance(engine, Embeds):
        return engine
    raise InvalidRequestError(
        f"The engine {engine.info.engine!r} of model {model!r} makes no embeddings; choose another model.",
        param="model",
        code="unsupported_operation",
    )
