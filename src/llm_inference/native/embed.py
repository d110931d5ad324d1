"""Vectors, on the front's side: from an `EmbedRequest` to the core's requests, and their outcomes to one result.

    EmbedRequest ─► prepare: tokenize, check all ─► a few at a time ─► [core] ─► vectors in the order of the inputs

Every input is a request of its own to the core. Only two steps' worth of tokens are under way at a time: what comes
after a request of two thousand inputs waits for those, not for all. No torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from llm_inference.engine.types import EmbedRequest, EmbedResult, SamplingParams, Timing, Usage
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError, LLMInferenceError
from llm_inference.native.client import CoreClient, Item
from llm_inference.native.embedding_defaults import EmbeddingDefaults
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.prepare import Preparer
from llm_inference.native.request import CoreRequest, PoolingParams

_NO_OUTPUT = SamplingParams(max_tokens=0, temperature=0.0)


def prepare(request: EmbedRequest, preparer: Preparer, defaults: EmbeddingDefaults, core_id: str) -> list[CoreRequest]:
    """One core request for each input. Raises `InvalidRequestError` or `ContextLengthError` naming the input."""
    if request.dimensions is not None and not 1 <= request.dimensions <= defaults.size:
        raise InvalidRequestError(
            f"dimensions is {request.dimensions}; the vectors of {request.model!r} have {defaults.size} numbers, of "
            f"which the first 1 to {defaults.size} can be asked for",
            param="dimensions",
        )
    pooling = PoolingParams(
        mode=request.pooling or defaults.pooling,
        normalize=defaults.normalize if request.normalize is None else request.normalize,
        dimensions=request.dimensions,
        group=core_id,
    )
    return [
        CoreRequest(
            request_id=f"{core_id}/{index}",
            prompt_token_ids=_encode(request, index, preparer),
            sampling=_NO_OUTPUT,
            priority=request.priority,
            cache_salt=request.cache_salt or "",
            pooling=pooling,
        )
        for index in range(len(request.inputs))
    ]


def _encode(request: EmbedRequest, index: int, preparer: Preparer) -> tuple[int, ...]:
    field = "input" if len(request.inputs) == 1 else f"input[{index}]"
    given, limit = request.inputs[index], preparer.limits.max_model_len
    if isinstance(given, tuple) and len(given) > limit:
        raise _too_long(field, f"{len(given)} tokens", limit)
    try:
        token_ids = preparer.encode(given, add_special_tokens=request.add_special_tokens)
    except ContextLengthError:
        raise _too_long(field, f"{len(given)} characters, which are more tokens than that", limit) from None
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{field}: {error.message}", param=field) from error
    if len(token_ids) > limit:
        raise _too_long(field, f"{len(token_ids)} tokens", limit)
    return token_ids


def _too_long(field: str, length: str, limit: int) -> ContextLengthError:
    return ContextLengthError(
        f"{field}: this model's maximum context length is {limit} tokens; the input has {length}. Nothing is cut off "
        "in silence: shorten it, or split it.",
        param=field,
    )


async def run(client: CoreClient, requests: Sequence[CoreRequest], max_tokens_in_flight: int) -> EmbedResult:
    """Let the core compute `requests`. Cancelled or failing, it aborts what is under way."""
    started_s = time.monotonic()
    queue: asyncio.Queue[Item] = asyncio.Queue()
    in_flight: dict[str, int] = {}
    outputs: dict[str, SequenceOutput] = {}
    waiting = iter(requests)
    upcoming = next(waiting, None)
    try:
        while upcoming is not None or in_flight:
            room = max_tokens_in_flight - sum(in_flight.values())
            while upcoming is not None and (len(upcoming.prompt_token_ids) <= room or not in_flight):
                in_flight[upcoming.request_id] = len(upcoming.prompt_token_ids)
                room -= len(upcoming.prompt_token_ids)
                client.submit(upcoming, queue)
                upcoming = next(waiting, None)
            items = [await queue.get()]
            while not queue.empty():
                items.append(queue.get_nowait())
            for item in items:
                output = _outcome(item)
                del in_flight[output.request_id]
                client.release(output.request_id)
                outputs[output.request_id] = output
    finally:
        for request_id in in_flight:
            client.abort(request_id)
    return result(requests, outputs.values(), started_s)


def result(requests: Sequence[CoreRequest], outputs: Iterable[SequenceOutput], started_s: float) -> EmbedResult:
    """The vectors in the order of `requests`; `started_s` is on the clock of `time.monotonic`."""
    by_id = {output.request_id: output for output in outputs}
    ordered = [by_id[request.request_id] for request in requests]
    now = time.monotonic()
    first_s = min((output.first_scheduled_s or now for output in ordered), default=now)
    return EmbedResult(
        vectors=tuple(output.vector or b"" for output in ordered),
        usage=Usage(
            prompt_tokens=sum(len(request.prompt_token_ids) for request in requests),
            cached_tokens=sum(output.num_cached_tokens for output in ordered),
        ),
        timing=Timing(queue_s=max(first_s - started_s, 0.0), total_s=now - started_s),
    )


def _outcome(item: Item) -> SequenceOutput:
    if isinstance(item, LLMInferenceError):
        raise item
    if not isinstance(item, SequenceOutput) or item.vector is None:
        raise EngineError("the engine answered something else than a vector")
    return item
