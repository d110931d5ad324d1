"""SGLang's own route, `/generate` (its OpenAI routes are another engine). Prompts go as token ids: exactly ours.

A stream's `text` is all text so far; lists of tokens are all so far or only the new ones, by version and settings, so
the token count says which of them are new. `finish_reason` is an object, the last line `[DONE]`. In a stream, errors
come after a 200.
"""

from __future__ import annotations

from typing import Any

from llm_inference.adapters.dialect import (
    Call,
    Dialect,
    Reader,
    Route,
    capability_table,
    logprob,
    refuse_lark,
    schema_or_regex,
)
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.remote import command_line, create_remote, said
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest, TokenLogprob
from llm_inference.errors import EngineError


class SGLangDialect(Dialect):
    name = "sglang-generate"
    own_defaults = True
    capabilities = capability_table(
        enforced=(
            "top_k",
            "min_p",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "logit_bias",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "skip_special_tokens",
            "add_special_tokens",
            "logprobs",
            "top_logprobs",
            "return_token_ids",
            "response_format",
            "structured_outputs",
        ),
        refused={
            "seed": "it samples by a seed only when its server was started as deterministic",
            "best_of": "its protocol has no best_of",
        },
    )

    @classmethod
    def command(cls, model: ModelConfig) -> str:
        return command_line(
            "python -m sglang.launch_server",
            {
                "model-path": model.model,
                "port": 30000,
                "tp": said(model, "tensor_parallel_size"),
                "context-length": model.max_model_len,
                "max-running-requests": model.max_num_seqs,
                "chunked-prefill-size": model.max_num_batched_tokens,
                "mem-fraction-static": said(model, "gpu_memory_utilization"),
                "dtype": None if model.resolved_dtype == "auto" else model.resolved_dtype,
                "quantization": model.resolved_quantization,
                "disable-radix-cache": not model.enable_prefix_caching,
                "trust-remote-code": model.trust_remote_code,
            },
        )

    def check(self, request: GenerateRequest) -> None:
        refuse_lark(self.name, request.sampling.grammar)

    def route(self, call: Call) -> Route:
        sampling, prompt = call.sampling, call.prompt
        assert prompt is not None
        parameters: dict[str, Any] = {
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens or None,
            "temperature": 0.0 if call.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k is None else sampling.top_k or -1,
            "min_p": sampling.min_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "logit_bias": {str(key): value for key, value in (sampling.logit_bias or {}).items()} or None,
            "stop": list(call.stop) or None,
            "stop_token_ids": list(sampling.stop_token_ids) or None,
            "ignore_eos": sampling.ignore_eos or None,
            "skip_special_tokens": sampling.skip_special_tokens,
        }
        if sampling.grammar is not None:
            kind, source = schema_or_regex(sampling.grammar)
            parameters[kind] = source
        body: dict[str, Any] = {
            "input_ids": list(prompt.token_ids),
            "sampling_params": {name: value for name, value in parameters.items() if value is not None},
            "stream": call.stream,
        }
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            body |= {"return_logprob": True, "return_text_in_logprobs": True}
            body["top_logprobs_num"] = sampling.logprobs or 0
        if sampling.prompt_logprobs is not None:
            body["logprob_start_len"] = 0
        return Route("/generate", body, "sse" if call.stream else "json")

    def reader(self, call: Call) -> Reader:
        return _CumulativeReader(call)


class _CumulativeReader:
    """Remembers how much of one choice has been seen."""

    def __init__(self, call: Call) -> None:
        self._wants_prompt = call.sampling.prompt_logprobs is not None
        #: EOS matches too, and is no reason that a client asked for.
        self._stops: tuple[int | str, ...] = (*call.sampling.stop_token_ids, *call.sampling.stop)
        self._text = ""
        self._num_tokens = 0

    def __call__(self, frame: Any) -> list[Piece]:
        frame = frame[0] if isinstance(frame, list) else frame
        meta = frame["meta_info"]
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason["type"] == "abort":
            raise EngineError(f"sglang-generate: the engine gave the request up: {reason.get('message', '')}")
        count = meta["completion_tokens"]
        num_new = count - self._num_tokens
        self._num_tokens = count
        tops = _newest(meta.get("output_top_logprobs"), num_new)
        entries = _newest(meta.get("output_token_logprobs"), num_new)
        prompt_logprobs = None
        if self._wants_prompt and meta.get("input_token_logprobs"):
            shown = meta.get("input_top_logprobs") or []
            prompt_logprobs = _logprobs(meta["input_token_logprobs"], shown)
        matched = reason.get("matched") if isinstance(reason, dict) else None
        return [
            Piece(
                text=self._new_text(frame["text"], final=reason is not None),
                token_ids=tuple(_newest(frame.get("output_ids"), num_new)),
                logprobs=_logprobs(entries, tops),
                prompt_logprobs=prompt_logprobs,
                final=reason is not None,
                finish_reason=reason["type"] if isinstance(reason, dict) else reason,
                stop_reason=matched if matched in self._stops else None,
                prompt_tokens=meta.get("prompt_tokens"),
                completion_tokens=count,
                cached_tokens=meta.get("cached_tokens"),
            )
        ]

    def _new_text(self, whole: str, *, final: bool) -> str:
        """What `whole` adds. A replacement character at its end may yet become a character: it waits."""
        if not final:
            whole = whole.rstrip("\ufffd")
        if self._text.startswith(whole):
            return ""  # the engine trimmed an end that has been shown
        if not whole.startswith(self._text):
            raise EngineError("sglang-generate: the engine changed text that it had already sent")
        new = whole[len(self._text) :]
        self._text = whole
        return new


def _newest(entries: list[Any] | None, num_new: int) -> list[Any]:
    """The last `num_new` of a list that holds all tokens so far, or only those."""
    return (entries or [])[-num_new:] if num_new > 0 else []


def _logprobs(entries: list[Any], tops: list[Any]) -> tuple[TokenLogprob, ...]:
    """From `[value, token id, text]`, and for each of them its alternatives in the same form (or None)."""
    return tuple(
        logprob(
            token_id,
            text or "",
            value,
            ((other_id, other_text or "", other) for other, other_id, other_text in (_at(tops, place) or ())),
        )
        for place, (value, token_id, text) in enumerate(entries)
    )


def _at(entries: list[Any], place: int) -> Any:
    return entries[place] if place < len(entries) else None


def create(model: ModelConfig, context: EngineContext) -> GenerateAPIEngine:
    """Raises `ConfigError`."""
    return create_remote(lambda _: SGLangDialect(), SGLangDialect, model, context)
