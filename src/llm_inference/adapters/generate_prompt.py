"""Prompts for engines that know no chat: our template and tokenizer, and the limits that the prompt must keep.

Token ids are the truth here: they are counted, and sent where an engine takes ids. Where it takes only text:

    chat        the template's text; a BOS that the engine's tokenizer would add again is left out of it
    token ids   decoded, special tokens written out. What the engine makes of that text may be other ids
    text        as it is

Knows nothing of HTTP and of what engines answer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import ChatPrompt, GenerateRequest, GenerationDefaults, Prompt
from llm_inference.errors import ConfigError, ContextLengthError, InvalidRequestError, SourceError
from llm_inference.model_spec.fields import JsonFields
from llm_inference.model_spec.generation import read_generation_config
from llm_inference.sources.resolve import resolve
from llm_inference.text.chat import render_chat
from llm_inference.text.parsing import (
    NO_FORMATS,
    PLAIN_TEXT,
    ModelFormats,
    OutputFormat,
    output_format,
    with_allowed_tools,
)
from llm_inference.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """`text` is what an engine is given that adds special tokens itself, unless `add_special_tokens` can be said to it
    (then `raw_text`, with that flag). `shown` is the prompt as `echo` shows it and as an output may begin with it.
    `output` is how the answer is to be read, and what forces it to be so."""

    token_ids: tuple[int, ...]
    text: str
    raw_text: str
    add_special_tokens: bool
    shown: str
    output: OutputFormat = PLAIN_TEXT

    def forced(self, request: GenerateRequest) -> GenerateRequest:
        """The request with the constraint that forces its tool call, where there is one."""
        if self.output.grammar is None:
            return request
        sampling = msgspec.structs.replace(request.sampling, grammar=self.output.grammar)
        return msgspec.structs.replace(request, sampling=sampling)


@dataclass(frozen=True, slots=True)
class PromptSide:
    """A model's tokenizer, with what its files say of lengths and defaults. Thread-safe."""

    tokenizer: Tokenizer
    max_model_len: int | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    formats: ModelFormats = NO_FORMATS

    @classmethod
    def load(cls, model: ModelConfig, *, progress: bool = True) -> PromptSide:
        """From `tokenizer:`, else from the files that `model:` names. Raises `ConfigError` when neither has one."""
        place = _place(model, progress=progress)
        own = Path(model.model).expanduser()
        home = own if own.is_dir() else place  # the model's own template and limits, beside another tokenizer
        try:
            tokenizer = Tokenizer.load(home, tokenizer=place, chat_template=model.chat_template)
        except SourceError as error:
            raise ConfigError(f"tokenizer: {error.message}. {_NEEDED}") from error
        formats = ModelFormats.choose(model.tool_parser, model.reasoning_parser, tokenizer)
        if not (home / "config.json").is_file():
            return cls(tokenizer, None, _defaults(model, None), formats)
        length = JsonFields.read(home / "config.json").optional_integer("max_position_embeddings")
        return cls(tokenizer, length, _defaults(model, home), formats)

    def prepare(self, request: GenerateRequest, max_model_len: int) -> PreparedPrompt:
        """Raises `InvalidRequestError` naming the field, `ContextLengthError` where prompt and output do not fit."""
        prompt = request.prompt
        if isinstance(prompt, str):
            self._refuse_hopeless(prompt, max_model_len)
        elif isinstance(prompt, ChatPrompt):
            prompt = with_allowed_tools(request, self.formats)
        prepared = self._prepare(prompt, request.add_special_tokens)
        name = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
        if not prepared.token_ids or not prepared.text:
            raise InvalidRequestError("The prompt is empty; send at least one token.", param=name)
        room = max_model_len - len(prepared.token_ids)
        wanted = request.sampling.max_tokens
        if room < 1:
            raise ContextLengthError(
                f"This model's maximum context length is {max_model_len} tokens; the prompt has "
                f"{len(prepared.token_ids)} tokens, which leaves no room for an answer. Shorten the prompt.",
                param=name,
            )
        if wanted is not None and wanted > room:
            raise ContextLengthError(
                f"This model's maximum context length is {max_model_len} tokens; you asked for "
                f"{len(prepared.token_ids) + wanted}: {len(prepared.token_ids)} in the prompt and {wanted} to "
                f"generate. Shorten one of them; at most {room} can be generated here.",
                param="max_tokens",
            )
        if not isinstance(prompt, ChatPrompt):
            return prepared
        output = output_format(request, prompt, self.formats, self.tokenizer, prepared.token_ids, by_schema=True)
        return dataclasses.replace(prepared, output=output)

    def encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        return self._prepare(prompt, add_special_tokens).token_ids

    def check_ids(self, ids: tuple[int, ...], name: str) -> None:
        """Raises `InvalidRequestError` for the first id that is outside the vocabulary."""
        bad = next((token_id for token_id in ids if not 0 <= token_id < self.tokenizer.vocab_size), None)
        if bad is not None:
            limit = self.tokenizer.vocab_size - 1
            raise InvalidRequestError(
                f"{name} holds the token id {bad}; this model's ids are 0 to {limit}.", param=name
            )

    def _refuse_hopeless(self, text: str, max_model_len: int) -> None:
        """A text that cannot fit whatever the tokenizer makes of it is refused before it costs seconds."""
        if len(text) > self.tokenizer.max_token_chars * max_model_len:
            raise ContextLengthError(
                f"This model's maximum context length is {max_model_len} tokens; the prompt has {len(text)} "
                "characters, which are more tokens than that. Shorten the prompt.",
                param="prompt",
            )

    def _prepare(self, prompt: Prompt, add_special_tokens: bool) -> PreparedPrompt:
        tokenizer = self.tokenizer
        if isinstance(prompt, str):
            ids = tuple(tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
            return PreparedPrompt(ids, prompt, prompt, add_special_tokens, prompt)
        if isinstance(prompt, ChatPrompt):
            text = render_chat(tokenizer, prompt)
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        else:
            ids = prompt
            self.check_ids(ids, "prompt")
            text = tokenizer.decode(ids, skip_special_tokens=False)
        return PreparedPrompt(ids, self._without_bos(text), text, False, tokenizer.decode(ids))

    def _without_bos(self, text: str) -> str:
        """The text from which a tokenizer that adds BOS makes `text`'s own tokens."""
        bos = self.tokenizer.special_tokens.get("bos_token")
        if not bos or not text.startswith(bos) or len(text) == len(bos):
            return text
        adds_bos = self.tokenizer.encode("", add_special_tokens=True)[:1] == [self.tokenizer.bos_token_id]
        return text[len(bos) :] if adds_bos else text

    def count(self, text: str) -> int:
        """How many tokens an output's text is, for engines that do not say."""
        return len(self.tokenizer.encode(text, add_special_tokens=False)) if text else 0


_NEEDED = (
    "This engine takes prompts as text, so chat templates, token ids and counts are ours to do: set `tokenizer:` to a "
    "directory with tokenizer.json (and the chat template), or `model:` to the model's directory"
)


def _place(model: ModelConfig, *, progress: bool) -> Path:
    """Where the tokenizer is. A local directory needs no weights; other sources are resolved as a whole."""
    source = model.tokenizer if model.tokenizer is not None else model.model
    path = Path(source).expanduser()
    if path.is_file() and path.suffix != ".gguf":
        return path
    if any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return path
    try:
        return resolve(source, progress=progress).directory
    except SourceError as error:
        key = "model" if model.tokenizer is None else "tokenizer"
        raise ConfigError(f"{key}: no tokenizer is known for {model.name!r}: {error.message}. {_NEEDED}") from error


def _defaults(model: ModelConfig, directory: Path | None) -> GenerationDefaults:
    """The YAML's `generation:` above generation_config.json."""
    said = {key: value for key, value in model.generation.model_dump().items() if value is not None}
    if directory is None:
        return GenerationDefaults(**said)
    own = read_generation_config(directory)
    below = {
        "temperature": own.temperature,
        "top_p": own.top_p,
        "top_k": own.top_k,
        "min_p": own.min_p,
        "repetition_penalty": own.repetition_penalty,
        "max_tokens": own.max_new_tokens,
    }
    return GenerationDefaults(**{**below, **said})
