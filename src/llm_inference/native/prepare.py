"""From a `GenerateRequest` to a `CoreRequest`: template, tokenize, check, resolve. Everything that is a 4xx ends here.

Runs in a thread pool, since a prompt may be megabytes. No sockets, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from llm_inference.engine.types import (
    ChatPrompt,
    GenerateRequest,
    GenerationDefaults,
    Grammar,
    Prompt,
    SamplingParams,
)
from llm_inference.errors import ContextLengthError, InvalidRequestError
from llm_inference.native.logits_processors import check_names
from llm_inference.native.request import CoreRequest
from llm_inference.text.chat import encode_chat
from llm_inference.text.parsing import PLAIN_TEXT, ModelFormats, OutputFormat, output_format, with_allowed_tools
from llm_inference.text.tokenizer import Tokenizer

#: An exponent of the output's length: beyond this, scores leave the range of numbers.
MAX_LENGTH_PENALTY: Final = 20.0
#: Continuations of one beam that are looked at in one step, in Python: more would hold up everybody's step.
MAX_BEAM_CANDIDATES: Final = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """What this model's core can hold."""

    max_model_len: int
    max_num_seqs: int
    num_valid_tokens: int
    #: Whether every character of a text is in some token. Encoders' tokenizers drop spaces and whole unknown words.
    tokens_cover_text: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the core takes it, and how its answer is to be read."""

    core_request: CoreRequest
    output: OutputFormat


class ChecksGrammars(Protocol):
    """A `GrammarCompiler`, or the `GrammarGuard` that keeps it in a process of its own."""

    def check(self, grammar: Grammar, param: str | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Preparer:
    """Everything needed to prepare a request for one model."""

    tokenizer: Tokenizer
    defaults: GenerationDefaults
    eos_token_ids: tuple[int, ...]
    limits: Limits
    formats: ModelFormats
    grammars: ChecksGrammars | None  # None: this model cannot be constrained
    processors: tuple[str, ...] = ()  # names of the logits processors that are installed

    def prepare(self, request: GenerateRequest, core_id: str) -> Prepared:
        """Raises `InvalidRequestError` naming the field, `ContextLengthError` when prompt and output do not fit."""
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            prompt = with_allowed_tools(request, self.formats)
        token_ids = self.encode(prompt, add_special_tokens=request.add_special_tokens)
        output = PLAIN_TEXT
        if isinstance(prompt, ChatPrompt):
            output = output_format(request, prompt, self.formats, self.tokenizer, token_ids)
        core_request = CoreRequest(
            request_id=core_id,
            prompt_token_ids=token_ids,
            sampling=self._sampling(request, len(token_ids), output),
            eos_token_ids=self.eos_token_ids,
            priority=request.priority,
            cache_salt=request.cache_salt or "",
        )
        return Prepared(core_request, output)

    def encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt, at least one. An empty text becomes BOS where the model has one."""
        if isinstance(prompt, ChatPrompt):
            self._refuse_hopeless(sum(map(_num_chars, prompt.messages)), "messages")
            token_ids = tuple(encode_chat(self.tokenizer, prompt))
        elif isinstance(prompt, str):
            self._refuse_hopeless(len(prompt), "prompt")
            token_ids = tuple(self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        else:
            token_ids = prompt
            self.check_ids(token_ids, "prompt")
        if not token_ids:
            bos = self.tokenizer.bos_token_id
            if bos is None or not add_special_tokens:
                raise InvalidRequestError("the prompt is empty; send at least one token", param="prompt")
            token_ids = (bos,)
        return token_ids

    def _refuse_hopeless(self, num_chars: int, param: str) -> None:
        """A text that cannot fit whatever the tokenizer makes of it is refused before it costs seconds.

        No token stands for more characters than the longest vocabulary entry has.
        """
        longest = self.tokenizer.max_token_chars
        if self.limits.tokens_cover_text and num_chars > longest * self.limits.max_model_len:
            raise ContextLengthError(
                f"This model's maximum context length is {self.limits.max_model_len} tokens; the prompt has "
                f"{num_chars} characters, which are more tokens than that. Shorten the prompt.",
                param=param,
            )

    def _sampling(self, request: GenerateRequest, num_prompt_tokens: int, output: OutputFormat) -> SamplingParams:
        sampling, limits = request.sampling, self.limits
        field = "messages" if isinstance(request.prompt, ChatPrompt) else "prompt"
        room = limits.max_model_len - num_prompt_tokens
        scoring_only = request.echo and sampling.max_tokens == 0
        if room < (0 if scoring_only else 1):
            raise ContextLengthError(
                f"This model's maximum context length is {limits.max_model_len} tokens; the prompt has "
                f"{num_prompt_tokens} tokens, which leaves no room for an answer. Shorten the prompt.",
                param=field,
            )
        if sampling.max_tokens is not None and sampling.max_tokens > room:
            raise ContextLengthError(
                f"This model's maximum context length is {limits.max_model_len} tokens; you asked for "
                f"{num_prompt_tokens + sampling.max_tokens}: {num_prompt_tokens} in the prompt and "
                f"{sampling.max_tokens} to generate. Shorten one of them; at most {room} can be generated here.",
                param="max_tokens",
            )
        self.check_ids(sampling.stop_token_ids, "stop_token_ids")
        if sampling.forced_eos_token_id is not None:
            self.check_ids((sampling.forced_eos_token_id,), "forced_eos_token_id")
        self.check_ids(tuple(sampling.logit_bias or ()), "logit_bias")
        check_names(sampling.logits_processors, self.processors)
        resolved = sampling.resolve(self.defaults)
        max_tokens = room if resolved.max_tokens is None else min(resolved.max_tokens, room)
        if resolved.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {resolved.min_tokens}, but at most {max_tokens} tokens can be generated",
                param="min_tokens",
            )
        num_choices = max(resolved.n, resolved.best_of or 1)
        if max(num_choices, resolved.num_beams) > limits.max_num_seqs:
            raise InvalidRequestError(
                f"{max(num_choices, resolved.num_beams)} sequences were asked for; this server runs at most "
                f"max_num_seqs={limits.max_num_seqs} at once",
                param="num_beams" if resolved.num_beams > num_choices else "best_of" if resolved.best_of else "n",
            )
        if resolved.num_beams > 1:
            _check_beams(sampling, 0 if resolved.ignore_eos else len(self.eos_token_ids))
        grammar = resolved.grammar
        if output.grammar is not None:
            if grammar is not None:
                raise InvalidRequestError(
                    "response_format cannot be combined with a tool_choice that forces a call", param="tool_choice"
                )
            grammar = output.grammar
        if grammar is not None:
            for field_name, is_set in (
                ("min_tokens", resolved.min_tokens > 0),
                ("ignore_eos", resolved.ignore_eos),
                ("forced_eos_token_id", resolved.forced_eos_token_id is not None),
                ("num_beams", resolved.num_beams > 1),
            ):
                if is_set:
                    raise InvalidRequestError(
                        f"{field_name} cannot be combined with a constrained output, which ends where its grammar ends",
                        param=field_name,
                    )
            if self.grammars is None:
                raise InvalidRequestError(
                    "this model declares no end-of-sequence token, so a constrained output could not end",
                    param="response_format",
                )
            self.grammars.check(grammar, "tools" if output.grammar is not None else None)
        return msgspec.structs.replace(
            resolved,
            max_tokens=max_tokens,
            n=num_choices,
            grammar=grammar,
            # The core tells a choice's log-probability only where asked; best_of ranks by it.
            logprobs=0 if resolved.logprobs is None and num_choices > resolved.n else resolved.logprobs,
        )

    def check_ids(self, token_ids: tuple[int, ...], field: str) -> None:
        limit = self.limits.num_valid_tokens
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < limit):
            bad = next(token_id for token_id in token_ids if not 0 <= token_id < limit)
            raise InvalidRequestError(
                f"{field} holds the token id {bad}; this model's ids are 0 to {limit - 1}", param=field
            )


def _num_chars(message: dict[str, Any]) -> int:
    """Characters of a message's content, text or parts."""
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else ()
    return sum(len(part["text"]) for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _check_beams(sampling: SamplingParams, num_eos: int) -> None:
    """Beam search looks for the most probable outputs; what draws at random or steers tokens does not go with it."""
    if sampling.n > sampling.num_beams:
        raise InvalidRequestError(
            f"n is {sampling.n}, but a search with num_beams={sampling.num_beams} has only that many outputs", param="n"
        )
    if not -MAX_LENGTH_PENALTY <= sampling.length_penalty <= MAX_LENGTH_PENALTY:
        raise InvalidRequestError(
            f"length_penalty is {sampling.length_penalty:g}; it must be from {-MAX_LENGTH_PENALTY:g} to "
            f"{MAX_LENGTH_PENALTY:g}",
            param="length_penalty",
        )
    if sampling.max_tokens == 0:
        raise InvalidRequestError("num_beams would have no effect with max_tokens 0", param="num_beams")
    num_ends = len(sampling.stop_token_ids) + num_eos
    if sampling.num_beams * (1 + num_ends) > MAX_BEAM_CANDIDATES:
        raise InvalidRequestError(
            f"num_beams={sampling.num_beams} with {num_ends} tokens that end an output makes more than "
            f"{MAX_BEAM_CANDIDATES} candidates for each beam; ask for fewer beams or stop_token_ids",
            param="num_beams",
        )
    for field_name, is_set in (
        ("temperature", bool(sampling.temperature)),
        ("best_of", sampling.best_of is not None),
        ("seed", sampling.seed is not None),
        ("logprobs", sampling.logprobs is not None),
        ("min_tokens", sampling.min_tokens > 0),
        ("logits_processors", bool(sampling.logits_processors)),
    ):
        if is_set:
            raise InvalidRequestError(f"{field_name} cannot be combined with num_beams", param=field_name)
