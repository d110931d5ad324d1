"""What engines lack, added around them: small pieces that take deltas and give deltas.

    fan_out(generate, request)          n choices as n requests
    until_stop(deltas, …)               stop strings with hold-back
    with_usage(deltas, count)           token counts where the engine sends none
    with_calls(deltas, output)          tool calls out of text

Each closes what it reads from when it is closed itself, so that `aclose()` reaches the engine through all of them.
They know no engine and no protocol but that of `Delta`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from llm_inference.engine.types import Delta, GenerateRequest, Usage
from llm_inference.text.parsing import OutputFormat
from llm_inference.text.stop import StopChecker

Generate = Callable[[GenerateRequest], AsyncGenerator[Delta, None]]
#: The texts of all choices, reasoning included → the request's token counts, or None where they cannot be known.
CountUsage = Callable[[Sequence[str]], Awaitable[Usage | None]]

_QUEUE_SIZE = 64


async def fan_out(generate: Generate, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """`request.sampling.n` requests of one choice each, run at once. Seeds are consecutive, so that choices differ.

    One failure ends all. The last delta's usage counts the prompt once and all outputs.
    """
    queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(_QUEUE_SIZE)
    count = request.sampling.n
    usages: list[Usage | None] = [None] * count

    async def pump(index: int) -> None:
        end: Exception | None = None
        try:
            async with aclosing(generate(_single(request, index))) as deltas:
                async for delta in deltas:
                    await queue.put((index, delta))
        except Exception as error:
            end = error
        await queue.put((index, end))

    pumps = [asyncio.create_task(pump(index)) for index in range(count)]
    running = count
    try:
        while running:
            index, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                usages[index] = item.usage or usages[index]
                yield msgspec.structs.replace(item, index=index, usage=_total(usages))
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def until_stop(
    deltas: AsyncGenerator[Delta, None], stops: Sequence[str], num_choices: int, *, include: bool = False
) -> AsyncGenerator[Delta, None]:
    """Ends a choice at its first stop string; once all have ended, `deltas` is closed and its work with it."""
    checkers = [StopChecker(stops, include) for _ in range(num_choices)]
    open_choices = set(range(num_choices))
    usage: Usage | None = None
    async with aclosing(deltas):
        async for delta in deltas:
            usage = delta.usage or usage
            if delta.index not in open_choices:
                continue
            text, matched = checkers[delta.index].add(delta.text)
            if matched is None and delta.finish_reason is not None:
                text += checkers[delta.index].flush()
            if matched is not None:
                delta = msgspec.structs.replace(delta, finish_reason="stop", stop_reason=matched)
            if delta.finish_reason is not None:
                open_choices.discard(delta.index)
            yield msgspec.structs.replace(delta, text=text, usage=delta.usage or (None if open_choices else usage))
            if not open_choices:
                return


async def with_usage(
    deltas: AsyncGenerator[Delta, None], num_choices: int, count: CountUsage
) -> AsyncGenerator[Delta, None]:
    """Gives the very last delta a usage, counted, where the engine sent none after its output."""
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    unfinished = num_choices
    async with aclosing(deltas):
        async for delta in deltas:
            texts[delta.index] += (delta.reasoning, delta.text)
            unfinished -= delta.finish_reason is not None
            if not unfinished and delta.usage is None:
                delta = msgspec.structs.replace(delta, usage=await count(["".join(pieces) for pieces in texts]))
            yield delta


async def with_calls(
    deltas: AsyncGenerator[Delta, None], num_choices: int, output: OutputFormat
) -> AsyncGenerator[Delta, None]:
    """The text of each choice read as tool calls. What the engine says after a whole call is waited for: its usage."""
    parsers = [output.make_parser() for _ in range(num_choices)]
    async with aclosing(deltas):
        async for delta in deltas:
            parser = parsers[delta.index]
            if parser is not None:
                new = parser.add(delta.text)
                reason = delta.finish_reason
                if reason is not None:
                    new += parser.finish()
                    if parser.saw_tool_call and (reason == "stop" or parser.is_complete):
                        reason = "tool_calls"
                calls = (*delta.tool_calls, *new.tool_calls)
                reasoning = delta.reasoning + new.reasoning
                delta = msgspec.structs.replace(
                    delta, text=new.text, reasoning=reasoning, tool_calls=calls, finish_reason=reason
                )
            yield delta


def _single(request: GenerateRequest, index: int) -> GenerateRequest:
    seed = request.sampling.seed
    sampling = msgspec.structs.replace(request.sampling, n=1, seed=None if seed is None else seed_of(seed, index))
    return msgspec.structs.replace(request, request_id=f"{request.request_id}-{index}", sampling=sampling)


def seed_of(seed: int, index: int) -> int:
    """Of choice `index`: they count up, and stay within the 64 bits that servers take."""
    return (seed + index + 2**63) % 2**64 - 2**63


def _total(usages: Sequence[Usage | None]) -> Usage | None:
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    return Usage(
        prompt_tokens=max(usage.prompt_tokens for usage in known),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        cached_tokens=max(usage.cached_tokens for usage in known),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in known),
    )
