"""The request bodies of the routes that generate. Answers are in `replies.py`; handlers in a file per route."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from llm_inference.engine.types import Prompt
from llm_inference.gateway.openai import messages, tools, values
from llm_inference.gateway.openai.fields import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    RequestFields,
    SamplingFields,
    StreamOptions,
)

_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXT = {"type": "string", "minLength": 1}
_TEXTS_SCHEMA: dict[str, Any] = {"type": "array", "minItems": 1, "items": _TEXT}


def _prompt_schema(limit: int) -> dict[str, Any]:
    return {
        "anyOf": [
            _TEXT,
            {"type": "array", "minItems": 1, "maxItems": limit, "items": _TEXT},
            _IDS,
            {"type": "array", "minItems": 1, "maxItems": limit, "items": _IDS},
        ]
    }


Prompts = Annotated[
    tuple[Prompt, ...],
    PlainValidator(lambda value: values.prompts(value, "prompt", values.MAX_PROMPTS)),
    WithJsonSchema(_prompt_schema(values.MAX_PROMPTS)),
]
Messages = Annotated[
    tuple[dict[str, Any], ...], PlainValidator(messages.messages), WithJsonSchema(messages.MESSAGES_SCHEMA)
]
Tools = Annotated[tuple[dict[str, Any], ...], PlainValidator(tools.tools), WithJsonSchema(tools.TOOLS_SCHEMA)]
ToolChoice = Annotated[tools.ToolChoice, PlainValidator(tools.tool_choice), WithJsonSchema(tools.TOOL_CHOICE_SCHEMA)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]


class ChatCompletionRequest(SamplingFields):
    """`POST /chat/completions`."""

    messages: Messages
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Choices = 1
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Tools = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_ids: bool = False

    refused: ClassVar[dict[str, str]] = {
        **SamplingFields.refused,
        "prompt": "belongs to /completions; here the conversation is in messages.",
        "functions": "the legacy form is not spoken here; use tools.",
        "function_call": "the legacy form is not spoken here; use tool_choice.",
        "audio": "no engine here speaks.",
        "web_search_options": "no engine here searches the web.",
        "verbosity": "no engine here has such a setting; say it in a message.",
        "best_of": "belongs to /completions; here use n.",
        "suffix": "no engine here fills in the middle.",
    }
    inert: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        **SamplingFields.inert,
        "modalities": ((["text"],), 'the only output is text; leave it out or send ["text"].'),
        "echo": ((False,), "a chat's prompt is not repeated; /completions has echo."),
        "add_special_tokens": ((False,), "the chat template writes the special tokens."),
    }


class CompletionRequest(SamplingFields):
    """`POST /completions`."""

    prompt: Prompts
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Choices = 1
    best_of: Choices | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_special_tokens: bool = True
    return_token_ids: bool = False

    refused: ClassVar[dict[str, str]] = {
        **SamplingFields.refused,
        "suffix": "no engine here fills in the middle; send the whole prompt in prompt.",
        "messages": "belongs to /chat/completions; here the text is in prompt.",
        "top_logprobs": "belongs to /chat/completions; here logprobs is the number of alternatives.",
        "tools": "belong to /chat/completions.",
        "tool_choice": "belongs to /chat/completions.",
    }


class BatchCompletionRequest(SamplingFields):
    """`POST /batch_completions`: many prompts, one choice each, one JSON list at the end."""

    prompts: Annotated[
        tuple[str, ...],
        PlainValidator(lambda value: values.texts(value, "prompts")),
        WithJsonSchema(_TEXTS_SCHEMA),
    ]
    add_special_tokens: bool = True

    refused: ClassVar[dict[str, str]] = {
        **SamplingFields.refused,
        "prompt": "is called prompts here, a list of strings.",
        "messages": "belongs to /chat/completions; here the texts are in prompts.",
        "logprobs": "the answer has no place for them; use /completions.",
        "best_of": "belongs to /completions.",
    }
    inert: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        **SamplingFields.inert,
        "n": ((1,), "every prompt has one answer here; /completions has n."),
        "stream": ((False,), "a batch is answered at once; /completions streams lists of prompts."),
        "echo": ((False,), "the answer is the new text only; /completions has echo."),
    }


class EmbeddingsRequest(RequestFields):
    """`POST /embeddings`. Pooling and normalization are the model's own where nothing is said."""

    input: Annotated[
        tuple[str | tuple[int, ...], ...],
        PlainValidator(lambda value: values.prompts(value, "input", values.MAX_INPUTS)),
        WithJsonSchema(_prompt_schema(values.MAX_INPUTS)),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=2**20)] | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    normalize: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    add_special_tokens: bool = True
    # An annotation of the caller's own, accepted as it is.
    user: str | None = None

    refused: ClassVar[dict[str, str]] = {
        "truncate_prompt_tokens": "nothing is cut off here; send inputs that fit the model's context.",
        "prompt": "is called input here.",
        "messages": "belongs to /chat/completions; here the texts are in input.",
        "max_tokens": "a vector has no tokens; its length is dimensions.",
        "input_type": "write the model's own prompt for queries or documents into the input itself.",
    }
    inert: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "stream": ((False,), "vectors are answered at once."),
    }


class TokenizeRequest(RequestFields):
    """`POST /tokenize`: exactly one of prompt and messages."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: Tools = ()
    return_token_strs: bool = False


class DetokenizeRequest(RequestFields):
    """`POST /detokenize`."""

    tokens: Annotated[
        tuple[int, ...],
        PlainValidator(lambda value: values.token_ids(value, "tokens")),
        WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}}),
    ]
