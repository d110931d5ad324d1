"""Which output parser reads a request's answer: the model's own formats joined with what the request asks for."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from llm_inference.engine.types import ChatPrompt, GenerateRequest, Grammar
from llm_inference.errors import InvalidRequestError
from llm_inference.text.parsers.base import OutputParser
from llm_inference.text.parsers.registry import check_names, detect, detect_reasoning, make_parser, markers
from llm_inference.text.parsers.tool_grammar import (
    allowed_tools,
    forced_parser,
    forces_call,
    tool_grammar,
    tool_schema,
)
from llm_inference.text.tokenizer import Tokenizer

_REASONING_OPENER = "<think>"


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """How this model writes tool calls and reasoning; None: it has no such format."""

    tool: str | None
    reasoning: str | None
    #: Whether the chat template shows tools to the model at all.
    template_has_tools: bool
    #: Texts of the tokenizer's special tokens.
    special_texts: frozenset[str] = frozenset()

    @classmethod
    def choose(cls, tool_parser: str, reasoning_parser: str, tokenizer: Tokenizer) -> ModelFormats:
        """From the config's words ("auto", "none" or a name) and the template. Raises `ConfigError` if unknown."""
        template = tokenizer.chat_template.source if tokenizer.chat_template is not None else None

        def pick(said: str, detected: str | None) -> str | None:
            return {"auto": detected, "none": None}.get(said, said)

        tool = pick(tool_parser, detect(template))
        reasoning = pick(reasoning_parser, detect_reasoning(template))
        check_names(tool, reasoning)
        special_texts = frozenset(tokenizer.token_text(token_id) for token_id in tokenizer.special_token_ids)
        return cls(tool, reasoning, template is not None and shows_tools(template), special_texts)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How one request's answer is to be read, and what forces it to be so."""

    tool: str | None = None
    reasoning: str | None = None
    prompt: ChatPrompt | None = None
    parallel: bool = True
    starts_in_reasoning: bool = False
    grammar: Grammar | None = None
    #: Special tokens must reach the parser although they are not shown.
    keeps_special_tokens: bool = False

    def make_parser(self) -> OutputParser | None:
        """A fresh parser for one choice; None: plain text."""
        if self.prompt is None or (self.reasoning is None and (self.tool is None or not self.prompt.tools)):
            return None
        return make_parser(
            self.tool,
            self.reasoning,
            tools=self.prompt.tools,
            parallel=self.parallel,
            starts_in_reasoning=self.starts_in_reasoning,
        )


PLAIN_TEXT = OutputFormat()
NO_FORMATS = ModelFormats(tool=None, reasoning=None, template_has_tools=False)


def shows_tools(template: str) -> bool:
    """Whether a chat template shows tools to the model at all."""
    return "tools" in template


def require_tools(template: str) -> None:
    """Raises `InvalidRequestError` where tools would not reach the model."""
    if not shows_tools(template):
        raise _not_shown()


def _not_shown() -> InvalidRequestError:
    return InvalidRequestError(
        "this model's chat template does not show tools to the model, so they would have no effect; set "
        "tool_choice to 'required' or to a function, which forces the call, or configure another `chat_template`",
        param="tools",
    )


def with_allowed_tools(request: GenerateRequest, formats: ModelFormats) -> ChatPrompt:
    """The chat prompt with the tools that the template is to show. Raises `InvalidRequestError`."""
    prompt = request.prompt
    assert isinstance(prompt, ChatPrompt)
    if not prompt.tools:
        return prompt
    tools = allowed_tools(prompt.tools, request.tool_choice)
    if tools and not formats.template_has_tools and not forces_call(request.tool_choice):
        raise _not_shown()
    return msgspec.structs.replace(prompt, tools=tuple(dict(tool) for tool in tools))


def output_format(
    request: GenerateRequest,
    prompt: ChatPrompt,
    formats: ModelFormats,
    tokenizer: Tokenizer,
    prompt_token_ids: tuple[int, ...],
    *,
    by_schema: bool = False,
) -> OutputFormat:
    """`prompt` is what `with_allowed_tools` gave. `by_schema`: calls are forced by a JSON Schema, not by a grammar.

    Raises `InvalidRequestError`.
    """
    if by_schema and (output := forced_output(request, prompt)) is not None:
        return output
    forced = bool(prompt.tools) and forces_call(request.tool_choice)
    tool = forced_parser(formats.tool) if forced else formats.tool
    ending = tokenizer.decode(prompt_token_ids[-8:], skip_special_tokens=False).rstrip()
    in_reasoning = formats.reasoning is not None and ending.endswith(_REASONING_OPENER)
    grammar = None
    if forced:
        grammar = tool_grammar(
            prompt.tools, request.tool_choice, formats.tool, request.parallel_tool_calls, in_reasoning=in_reasoning
        )
    return OutputFormat(
        tool=tool if prompt.tools else None,
        reasoning=formats.reasoning,
        prompt=prompt,
        parallel=request.parallel_tool_calls,
        starts_in_reasoning=in_reasoning,
        grammar=grammar,
        keeps_special_tokens=any(
            marker in formats.special_texts for marker in markers(tool if prompt.tools else None, formats.reasoning)
        ),
    )


def forced_output(request: GenerateRequest, prompt: ChatPrompt) -> OutputFormat | None:
    """One call and nothing else, forced by a JSON Schema, which leaves no place for reasoning; None: nothing is forced.

    Raises `InvalidRequestError`, also beside a `response_format` of the request's own.
    """
    if not prompt.tools or not forces_call(request.tool_choice):
        return None
    if request.sampling.grammar is not None:
        raise InvalidRequestError(
            "response_format cannot be combined with a tool_choice that forces a call", param="tool_choice"
        )
    return OutputFormat(
        tool="json", prompt=prompt, parallel=False, grammar=tool_schema(prompt.tools, request.tool_choice)
    )
