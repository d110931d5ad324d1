"""Fifty chat prompts of mixed length: short questions, code, other scripts, and slices of a long real text."""

from __future__ import annotations

from pathlib import Path

SHORT = (
    "What is the capital of France?",
    "Explain photosynthesis to a child.",
    "Write a haiku about autumn.",
    "List five uses of copper.",
    "def fibonacci(n):",
    "Why is the sky blue?",
    "Translate 'good morning' into Spanish and German.",
    "What is 17 times 23?",
    "Tell me a story about a fox and a lighthouse.",
    "Give me three ideas for a birthday present.",
    "How does a refrigerator work?",
    "Summarize the plot of Romeo and Juliet in two sentences.",
    "What is the difference between a list and a tuple in Python?",
    "Who wrote 'The Origin of Species', and when?",
    "Write an SQL query that counts users by country.",
    "¿Cuál es la capital de Argentina?",
    "Nenne drei Flüsse in Deutschland.",
    "你好,请介绍一下你自己。",
    "Repeat after me: 🦕🎉✨",
    "What are the planets of the solar system, in order?",
    "Describe the taste of a lemon.",
    "Give a recipe for pancakes.",
    "What does HTTP status 404 mean?",
    "Hi",
    "Continue: once upon a time, in a village by the sea,",
)
#: How many characters of the long text stand before the question; up to about 1,500 tokens.
SLICES = tuple(120 + 240 * i for i in range(25))


def parity_prompts(repository: Path) -> list[str]:
    text = " ".join((repository / "LICENSE").read_text().split())
    long = [
        f"{text[137 * i : 137 * i + length]}\n\nIn your own words, what does this say? (question {i})"
        for i, length in enumerate(SLICES)
    ]
    return [prompt for pair in zip(SHORT, long, strict=True) for prompt in pair]
