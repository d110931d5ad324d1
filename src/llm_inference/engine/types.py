"""The words that gateway and engines share: a request, its sampling, the deltas that come back.

Frozen msgspec structs, so that the same types cross process borders. No tensors, no HTTP, no SSE.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort", "error"]


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's own defaults: generation_config.json below, the YAML's `generation:` above. None: not said."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens. None means "the model's default"; `resolve` fills those in.

    Ranges are the business of whoever takes the values in from outside (`gateway/openai/fields.py`).
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1: off
    min_p: float | None = None
    repetition_penalty: float | None = None  # over prompt and output, multiplicative (CTRL, arXiv:1909.05858)
    presence_penalty: float | None = None  # over output only, additive
    frequency_penalty: float | None = None  # over output only, additive per occurrence
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    forced_eos_token_id: int | None = None  # the token in the last place that `max_tokens` leaves, if it comes to that
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # None: none; k >= 0: the chosen token's and the k best
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    grammar: Grammar | None = None
    logits_processors: tuple[LogitsProcessorCall, ...] = ()  # plug-ins, applied in this order

    def resolve(self, defaults: GenerationDefaults) -> SamplingParams:
        """A copy in which no field that a default may fill is None (`max_tokens` may stay None: up to the context)."""

        def pick(name: str, fallback: Any) -> Any:
            value = getattr(self, name)
            if value is None:
                value = getattr(defaults, name)
            return fallback if value is None else value

        return msgspec.structs.replace(
            self,
            max_tokens=pick("max_tokens", None),
            temperature=pick("temperature", 1.0),
            top_p=pick("top_p", 1.0),
            top_k=max(pick("top_k", 0), 0),
            min_p=pick("min_p", 0.0),
            repetition_penalty=pick("repetition_penalty", 1.0),
            presence_penalty=pick("presence_penalty", 0.0),
            frequency_penalty=pick("frequency_penalty", 0.0),
        )


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the output. `source` is JSON Schema text, a regex, a Lark grammar, or JSON list of choices."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    source: str


class LogitsProcessorCall(msgspec.Struct, frozen=True):
    """A logits processor that a plug-in package brought, by its entry point's name, and its keyword arguments."""

    name: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as the OpenAI API spells them (plain dicts, already validated). The engine's side templates them."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


#: Text, token ids, or chat messages.
Prompt = str | tuple[int, ...] | ChatPrompt


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request for one prompt. Several prompts are several requests."""

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    echo: bool = False  # completions: the prompt's text (and logprobs) before the output
    priority: int = 0  # lower runs first
    cache_salt: str | None = None  # prefixes are shared only between equal salts
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    add_special_tokens: bool = True  # text prompts: let the tokenizer add BOS where the model has one
    extra: dict[str, Any] = msgspec.field(default_factory=dict)  # fields that only one engine knows
    trace_context: dict[str, str] = msgspec.field(default_factory=dict)  # W3C headers for servers behind us


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token with its natural-log probability under the model's raw distribution, and the best alternatives.

    `logprob` is None only for the very first token of an echoed prompt, which nothing predicts.
    `top` is sorted, best first, and holds `(token_id, token_text, logprob)`.
    """

    token_id: int
    token: str
    logprob: float | None
    token_bytes: bytes = b""
    top: tuple[tuple[int, str, float, bytes], ...] = ()  # (token_id, text, logprob, bytes)
    text_offset: int = 0  # in characters of the whole text, for the completions format


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A fragment of a tool call. `id` and `name` come once, in the first fragment of each `index`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Token counts so far, over all choices of the request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Timing(msgspec.Struct, frozen=True):
    """Seconds, measured by the engine; the final delta carries them."""

    queue_s: float = 0.0  # accepted → first scheduled
    ttft_s: float = 0.0  # accepted → first token
    total_s: float = 0.0


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new since the last delta of the same choice.

    Joined `text` of all deltas of an index is that choice's whole text. `finish_reason` is set in exactly one delta of
    each index, its last. `usage` is cumulative and set at least in the very last delta of the request.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string or token id that ended it
    prompt_token_ids: tuple[int, ...] | None = None  # only in the first delta, for echo and return_token_ids
    usage: Usage | None = None
    timing: Timing | None = None


#: How the hidden states of an input's tokens become one vector: their mean, the last token's, the first token's.
Pooling = Literal["mean", "last", "cls"]


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request for vectors, of one or more inputs. None: what the model's own files say."""

    request_id: str
    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    pooling: Pooling | None = None
    normalize: bool | None = None  # to length 1
    dimensions: int | None = None  # the first so many; with `normalize` brought to length 1 again
    priority: int = 0  # lower runs first
    cache_salt: str | None = None
    add_special_tokens: bool = True


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """`vectors[i]` is input i's: little-endian float32, all of the same length. `usage` is over all inputs."""

    vectors: tuple[bytes, ...]
    usage: Usage
    timing: Timing | None = None


class TokenizeResult(msgspec.Struct, frozen=True):
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    max_model_len: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `/v1/models` and the logs say of a served model."""

    name: str
    max_model_len: int
    engine: str
    source: str = ""
    created: int = 0  # Unix seconds: when it was loaded
    precision: str = ""
    vocab_size: int | None = None
    max_num_seqs: int | None = None
    max_batch_size: int | None = None
