"""How many tokens a request may come to, before it runs: guessed from bytes, counted where the limit is near."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llm_inference.engine.base import Engine, Tokenizes
from llm_inference.engine.types import ChatPrompt, EmbedRequest, GenerateRequest, Prompt
from llm_inference.errors import LLMInferenceError

#: English text in usual vocabularies; what is wrong with it is put right when the request settles.
BYTES_PER_TOKEN = 4
#: A token is at least a byte; what a template may add for each message (roles, special tokens) beyond that.
MESSAGE_TOKENS = 16
#: What a chat template may say of its own: a default system message, instructions for tools.
TEMPLATE_TOKENS = 1024
#: Reserved for an answer whose length neither the request nor a limit bounds.
DEFAULT_OUTPUT_TOKENS = 512

Work = GenerateRequest | EmbedRequest


def estimate(prompts: Iterable[Prompt]) -> int:
    """Tokens of all prompts, at a guess; exact for token ids."""
    return sum([bounds(prompt)[0] for prompt in prompts])


def at_most(prompt: Prompt) -> int:
    """No byte-level tokenizer makes more of `prompt`, nor a template that adds no more than `TEMPLATE_TOKENS`."""
    return bounds(prompt)[1]


def bounds(prompt: Prompt) -> tuple[int, int]:
    """(`estimate`, `at_most`) of one prompt."""
    if isinstance(prompt, tuple):
        return len(prompt), len(prompt)
    num_bytes, num_messages, template = _num_bytes(prompt), 0, 0
    if isinstance(prompt, ChatPrompt):
        num_messages, template = len(prompt.messages), TEMPLATE_TOKENS
    guess = max(1, -(-num_bytes // BYTES_PER_TOKEN)) + num_messages * 4
    return guess, num_bytes + (num_messages + 1) * MESSAGE_TOKENS + template


async def count(engine: Engine, prompt: Prompt, *, add_special_tokens: bool = True) -> int:
    """The prompt's tokens by the engine's tokenizer, or at a guess where it shows none or refuses the prompt."""
    if isinstance(prompt, tuple):
        return len(prompt)
    if engine.capabilities.tokenize and isinstance(engine, Tokenizes):
        try:
            return len((await engine.tokenize(prompt, add_special_tokens=add_special_tokens)).token_ids)
        except LLMInferenceError:
            pass  # whatever is wrong with the prompt, the engine will say it when it runs
    return estimate((prompt,))


def prompts_of(work: Work) -> tuple[Prompt, ...]:
    return work.inputs if isinstance(work, EmbedRequest) else (work.prompt,)


def output_tokens(work: Work, max_output_tokens: int | None, max_model_len: int) -> int:
    """Tokens that all choices of `work` may come to."""
    if isinstance(work, EmbedRequest):
        return 0
    sampling = work.sampling
    each = sampling.max_tokens
    if each is None:
        each = min(max_output_tokens or DEFAULT_OUTPUT_TOKENS, max_model_len)
    return each * max(sampling.n, sampling.best_of or 1, sampling.num_beams)


def likely_tokens(work: Work, max_model_len: int) -> int:
    """A guess at what `work` costs an engine. No choice is longer than the context, whatever a client asks for."""
    if isinstance(work, EmbedRequest):
        return estimate(work.inputs)
    prompt, answer = estimate((work.prompt,)), output_tokens(work, None, max_model_len)
    if max_model_len <= 0:  # the engine does not know its own
        return prompt + answer
    sampling = work.sampling
    choices = max(sampling.n, sampling.best_of or 1, sampling.num_beams)
    return min(prompt, max_model_len) + min(answer, max_model_len * choices)


def _num_bytes(prompt: Prompt) -> int:
    if isinstance(prompt, ChatPrompt):
        return _text_bytes(prompt.messages) + _text_bytes(prompt.tools)
    return len(prompt.encode("utf-8", "surrogatepass")) if isinstance(prompt, str) else len(prompt)


def _text_bytes(value: Any) -> int:
    """Bytes of all texts in a JSON value; a template writes keys and numbers as well, which a few bytes each cover."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    total = 0
    if isinstance(value, dict):
        for key, item in value.items():
            if item is not None:
                total += len(key) + 4 + _text_bytes(item)
        return total
    if isinstance(value, (list, tuple)):
        for item in value:
            total += 4 + _text_bytes(item)
        return total
    return 8 if value is not None else 0
