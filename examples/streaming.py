"""Stream two answers at once, and stop a third one early.

    python examples/streaming.py [BASE_URL]

Closing a stream aborts its work on the server: nothing goes on computing for a reader who has left.
"""

from __future__ import annotations

import asyncio
import sys
import time

import openai

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"


async def answer(client: openai.AsyncOpenAI, model: str, question: str) -> str:
    """The whole answer; says on stderr when its first piece came, and what it cost."""
    begun = time.monotonic()
    text = ""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:  # the last chunk: no choices, only the counts
            print(f"{chunk.usage.completion_tokens} tokens for {question!r}", file=sys.stderr)
        for choice in chunk.choices:
            if choice.delta.content and not text:
                print(f"first piece after {time.monotonic() - begun:.2f} s", file=sys.stderr)
            text += choice.delta.content or ""
    return text


async def first_words(client: openai.AsyncOpenAI, model: str, prompt: str, num_pieces: int) -> str:
    """The first pieces of a long text; leaving the block closes the connection."""
    text = ""
    stream = await client.completions.create(model=model, prompt=prompt, max_tokens=1000, stream=True)
    async with stream:
        async for chunk in stream:
            text += chunk.choices[0].text
            num_pieces -= 1
            if num_pieces == 0:
                break
    return text


async def main() -> None:
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none") as client:
        model = (await client.models.list()).data[0].id
        questions = ["What is the capital of France?", "What is 2 + 2?"]
        for question, text in zip(
            questions, await asyncio.gather(*(answer(client, model, one) for one in questions)), strict=True
        ):
            print(f"{question} {text}")
        print("Once upon a time" + await first_words(client, model, "Once upon a time", num_pieces=8) + " …")


if __name__ == "__main__":
    asyncio.run(main())
