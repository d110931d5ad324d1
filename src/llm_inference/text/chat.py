"""Chat templates: messages to the one text that the model was trained on, and that text to token ids.

Rendering equals transformers' `apply_chat_template` (which the tests compare with), inside the limits of `sandbox`.
What a user writes is part of the text, as at the peers: `<|im_end|>` in a message becomes that special token. Who
cannot have that sets `allow_special_tokens=False` in `encode_chat`, which refuses such messages.

Knows nothing of HTTP and of what the model answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jinja2

from llm_inference.errors import InvalidRequestError, SourceError
from llm_inference.text.messages import normalize_messages as normalize_messages
from llm_inference.text.sandbox import SandboxedTemplates, TemplateLimitError

if TYPE_CHECKING:
    from llm_inference.text.tokenizer import Tokenizer

MAX_TEMPLATE_CPU_S = 2.0
MAX_TEMPLATE_CHARS = 32 * 1024 * 1024
MAX_SOURCE_CHARS = 1024 * 1024
_MAX_DEPTH = 100

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
#: Ends with a space, so that a template that trims the message is told from one that does not.
_CUT_MARK = "LLM_INFERENCE_CONTINUES_HERE "


class ChatPrompt(Protocol):
    """The fields of `engine.types.ChatPrompt`; rooms of one layer do not import each other."""

    @property
    def messages(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def tools(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def add_generation_prompt(self) -> bool: ...
    @property
    def continue_final_message(self) -> bool: ...
    @property
    def template_kwargs(self) -> dict[str, Any]: ...


class ChatTemplate:
    """One model's template, compiled once; `render` may run in many threads at a time.

    `special_tokens`: `bos_token`, `eos_token`, … as the template may name them. `tool_source`: the template to use
    instead when there are tools (a model may bring one called `tool_use`).
    Raises `SourceError` if a template does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        tool_source: str | None = None,
        max_cpu_s: float = MAX_TEMPLATE_CPU_S,
        max_chars: int = MAX_TEMPLATE_CHARS,
    ) -> None:
        self.source = source
        self.tool_source = tool_source
        self._special_tokens = dict(special_tokens)
        self._environment = SandboxedTemplates(max_cpu_s, max_chars)
        self._template = self._compile(source)
        self._tool_template = self._template if tool_source is None else self._compile(tool_source)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `messages` are as `normalize_messages` returns them (it is not called here).

        `continue_final_message` leaves the last message open, for the model to go on with it.
        Raises `InvalidRequestError` with the template's own words when it refuses the messages, or fails.
        """
        kwargs = dict(template_kwargs or {})
        for name in sorted(_RESERVED & kwargs.keys()):
            raise InvalidRequestError(
                f"chat_template_kwargs.{name} is not settable there: it is a field of the request.",
                param=f"chat_template_kwargs.{name}",
            )
        chat = [_with_reasoning_names(_plain(message)) for message in messages]
        if not chat:
            raise InvalidRequestError("messages must hold at least one message.", param="messages")
        variables: dict[str, Any] = {"documents": None, **self._special_tokens, **_plain(kwargs)}
        variables["tools"] = _plain(list(tools)) or None
        variables["add_generation_prompt"] = add_generation_prompt
        variables["messages"] = chat
        template = self._tool_template if tools else self._template
        if not continue_final_message:
            return self._run(template, variables)
        if add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other: set the latter to false.",
                param="continue_final_message",
            )
        final = _mark_end(chat[-1])
        return _cut_at_mark(self._run(template, variables), final)

    def _compile(self, source: str) -> jinja2.Template:
        if len(source) > MAX_SOURCE_CHARS:
            raise SourceError(f"The chat template has {len(source)} characters; {MAX_SOURCE_CHARS} is the most.")
        try:
            return self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise SourceError(f"The chat template does not compile, line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise SourceError(f"The chat template does not compile: {error}") from error

    def _run(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        try:
            return self._environment.render(template, variables)
        except TemplateLimitError as error:
            message = f"The model's chat template was stopped: {error}."
            raise InvalidRequestError(message, param="messages") from error
        except jinja2.UndefinedError as error:
            message = f"The model's chat template misses a value: {error.message}."
            raise InvalidRequestError(message, param="messages") from error
        except jinja2.TemplateError as error:  # raise_exception, and what the sandbox forbids
            message = f"The model's chat template refused the messages: {error.message}"
            raise InvalidRequestError(message, param="messages") from error
        except Exception as error:  # the template is foreign code: whatever it runs into is about these messages
            message = f"The model's chat template failed on these messages: {type(error).__name__}: {error}"
            raise InvalidRequestError(message, param="messages") from error


def render_chat(tokenizer: Tokenizer, prompt: ChatPrompt) -> str:
    """The text of a chat prompt. Raises `InvalidRequestError`, also if the model has no chat template."""
    template = tokenizer.chat_template
    if template is None:
        raise InvalidRequestError(
            "This model has no chat template. Use /v1/completions, or set `chat_template:` for it in the YAML.",
            param="messages",
        )

    def render(parse_arguments: bool) -> str:
        return template.render(
            normalize_messages(prompt.messages, parse_arguments=parse_arguments),
            tools=prompt.tools,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            template_kwargs=prompt.template_kwargs,
        )

    try:
        return render(parse_arguments=True)
    except InvalidRequestError as error:
        # Most templates want a call's arguments as an object; some join them to text, which only a string survives.
        if not isinstance(error.__cause__, TypeError) or not any(m.get("tool_calls") for m in prompt.messages):
            raise
        return render(parse_arguments=False)


def encode_chat(tokenizer: Tokenizer, prompt: ChatPrompt, *, allow_special_tokens: bool = True) -> list[int]:
    """Token ids of a chat prompt. The template alone says where BOS stands, so there is never a second one.

    `allow_special_tokens=False`: messages whose text contains a special token's name are refused, for services in
    which users must not be able to fake a turn.
    """
    if not allow_special_tokens:
        _refuse_special_tokens(tokenizer, prompt)
    return tokenizer.encode(render_chat(tokenizer, prompt), add_special_tokens=False)


def _refuse_special_tokens(tokenizer: Tokenizer, prompt: ChatPrompt) -> None:
    names = [name for name in map(tokenizer.token_text, sorted(tokenizer.special_token_ids)) if name]
    for i, message in enumerate(prompt.messages):
        for text in _strings(_plain(message)):
            for name in names:
                if name in text:
                    raise InvalidRequestError(
                        f"messages[{i}] contains {name!r}, a special token of this model, which is not allowed here.",
                        param=f"messages[{i}]",
                    )


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy made of plain JSON types alone: the sandbox guards those, it cannot guard every object's methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"A chat prompt may be nested {_MAX_DEPTH} levels deep, not more.", param="messages")
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    raise InvalidRequestError(
        f"A chat prompt holds only JSON values, but there is a {type(value).__name__} in it.", param="messages"
    )


def _with_reasoning_names(message: dict[str, Any]) -> dict[str, Any]:
    """Whatever the client calls its earlier reasoning, templates find it as `reasoning_content` and `thinking`."""
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), None)
    message = {key: value for key, value in message.items() if value is not None}
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _mark_end(message: dict[str, Any]) -> str:
    """Put the mark behind the message's text; returns that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CUT_MARK
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _CUT_MARK
            return text
    raise InvalidRequestError(
        "continue_final_message needs text in the last message to go on from.", param="continue_final_message"
    )


def _cut_at_mark(rendered: str, final: str) -> str:
    at = rendered.rfind(_CUT_MARK.strip())
    if at < 0 or final.strip() not in rendered:
        raise InvalidRequestError(
            "continue_final_message cannot be done: the model's chat template changes or leaves out the last message.",
            param="continue_final_message",
        )
    prompt = rendered[:at]
    # Without the mark's own space the template trims the message: then its last spaces go too.
    return prompt if rendered.startswith(_CUT_MARK, at) else prompt.rstrip()
