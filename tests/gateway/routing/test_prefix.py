from __future__ import annotations

from typing import Any

from llm_inference.engine.types import ChatPrompt, EmbedRequest, GenerateRequest, Prompt
from llm_inference.gateway.routing.prefix import prefix_of


def of(prompt: Prompt, num_bytes: int = 64, **keys: Any) -> bytes:
    return prefix_of(GenerateRequest(request_id="r", model="m", prompt=prompt, **keys), num_bytes)


def chat(*said: str, system: str = "be brief") -> ChatPrompt:
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    return ChatPrompt(messages=({"role": "system", "content": system}, *turns))


def test_only_the_beginning_counts() -> None:
    assert of("x" * 64 + "a") == of("x" * 64 + "b")
    assert of("x" * 63 + "a") != of("x" * 63 + "b")
    assert of(tuple(range(100))) == of(tuple(range(50)))
    assert of((1, 2)) != of((1, 3))
    assert len(of("ü" * 100)) == len(of("u" * 100))


def test_all_turns_of_a_conversation_begin_alike() -> None:
    first = of(chat("Hello"), 4096)
    assert first == of(chat("Hello", "Hi!", "And now?"), 4096) == of(chat("Hello", "Hi!", "And?", "What?"), 4096)
    assert first != of(chat("Goodbye"), 4096)
    assert first != of(chat("Hello", system="be long"), 4096)


def test_a_long_system_prompt_is_all_there_is() -> None:
    system = "rules " * 100
    assert of(chat("one", system=system)) == of(chat("two", system=system))


def test_parts_and_tools_count() -> None:
    def parts(text: str) -> ChatPrompt:
        return ChatPrompt(messages=({"role": "user", "content": [{"type": "text", "text": text}]},))

    assert of(parts("one")) != of(parts("two"))
    tooled = ChatPrompt(messages=({"role": "user", "content": "x"},), tools=({"function": {"name": "f"}},))
    assert of(tooled) != of(ChatPrompt(messages=({"role": "user", "content": "x"},)))


def test_salts_share_nothing() -> None:
    assert of("same", cache_salt="a") != of("same", cache_salt="b")


def test_embeddings_go_by_their_first_input() -> None:
    request = EmbedRequest(request_id="r", model="m", inputs=("one", "two"))
    assert prefix_of(request, 64) == of("one")


def test_lone_surrogates_are_no_error() -> None:
    assert of("\ud800")
    assert of(chat("\ud800"))
