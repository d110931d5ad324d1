"""Triton's generate extension over TensorRT-LLM: `/v2/models/<model>/generate` and `/generate_stream`, or gRPC.

What a model takes is what its configuration lists as inputs, under names that differ between the ensemble and the LLM
API backend and between their versions; so it is read at the start, and the capabilities follow from it. A stream has no
last word: it ends where its body ends, so the finish reason is inferred from our own token count. `output_log_probs`, a
list or a bare 0.0, come without token ids and are not used. Documented: `docs/` of tensorrtllm_backend and
`docs/protocol/extension_generate.md` of server, both of triton-inference-server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec

from llm_inference.adapters.backend import Backend
from llm_inference.adapters.dialect import (
    Call,
    Dialect,
    Reader,
    Route,
    ServerFacts,
    capability_table,
    refuse_lark,
    schema_or_regex,
)
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.remote import MakeBackend, create_remote
from llm_inference.adapters.triton_grpc import GrpcBackend
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest
from llm_inference.errors import ConfigError, EngineError

#: Our word → the names of the input that means it, newest first.
_INPUTS = {
    "max_tokens": ("max_tokens", "sampling_param_max_tokens"),
    "temperature": ("temperature", "sampling_param_temperature"),
    "top_p": ("top_p", "runtime_top_p", "sampling_param_top_p"),
    "top_k": ("top_k", "runtime_top_k", "sampling_param_top_k"),
    "frequency_penalty": ("frequency_penalty", "sampling_param_frequency_penalty"),
    "presence_penalty": ("presence_penalty", "sampling_param_presence_penalty"),
    "repetition_penalty": ("repetition_penalty",),
    "min_tokens": ("min_tokens", "min_length"),
    "seed": ("seed", "random_seed", "sampling_param_seed"),
    "stop": ("stop_words", "sampling_param_stop"),
    "exclude_prompt": ("exclude_input_in_output", "sampling_param_exclude_input_from_output"),
    "stream": ("stream", "streaming"),
    "finish_reason": ("return_finish_reason",),
    "grammar": ("guided_decoding_guide_type",),
}
#: The documented ensemble, until a server has been asked.
_ENSEMBLE = tuple(names[0] for word, names in _INPUTS.items() if word != "finish_reason")


class TritonDialect(Dialect):
    name = "triton"
    health_path = "/v2/health/ready"
    ends_with_body = True
    engine_args: ClassVar[Mapping[str, type]] = {"accumulate_tokens": bool}

    def __init__(self, args: Mapping[str, Any]) -> None:
        #: The server's own setting: each event of a stream has all text so far.
        self._cumulative = bool(args.get("accumulate_tokens"))
        self._decoupled = True
        self._required: tuple[str, ...] = ()
        self._use(_ENSEMBLE)

    def _use(self, inputs: Iterable[str]) -> None:
        there = set(inputs)
        self._names = {word: name for word, names in _INPUTS.items() for name in names[::-1] if name in there}
        self.capabilities = _capabilities(self._names)

    @property
    def strips_prompt(self) -> bool:
        return "exclude_prompt" not in self._names

    @classmethod
    def command(cls, model: ModelConfig) -> str:
        return (
            "put the model into a model repository of the TensorRT-LLM backend, run `tritonserver "
            "--model-repository=<that directory> --http-port=8000`, and name Triton's model in `model:`"
        )

    async def probe(self, backend: Backend, model: str) -> ServerFacts:
        status, body = await backend.get(f"/v2/models/{quote(model, safe='')}/config")
        if status in (400, 404):
            raise ConfigError(f"model: the server at {backend.url} has no {model!r}; name one of its models")
        if status == 200:
            config = msgspec.json.decode(body)
            inputs = config.get("input") or ()
            self._use(entry["name"] for entry in inputs)
            self._required = tuple(entry["name"] for entry in inputs if not entry.get("optional"))
            self._decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled"))
        return ServerFacts()

    def check(self, request: GenerateRequest) -> None:
        refuse_lark(self.name, request.sampling.grammar)

    def must_not_stream(self, request: GenerateRequest) -> bool:
        return not self._decoupled

    def route(self, call: Call) -> Route:
        sampling = call.sampling
        values: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "frequency_penalty": sampling.frequency_penalty or None,
            "presence_penalty": sampling.presence_penalty or None,
            "repetition_penalty": sampling.repetition_penalty,
            "min_tokens": sampling.min_tokens or None,
            "exclude_prompt": True,
            "stream": call.stream,
            "finish_reason": True,
            "stop": list(call.stop) or None,
        }
        if call.greedy:
            values["top_k"] = 1
        else:
            values |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
            values["seed"] = None if sampling.seed is None else sampling.seed % 2**64
        body: dict[str, Any] = {name: "" for name in self._required if name in ("bad_words", "stop_words")}
        body["text_input"] = call.text
        for word, value in values.items():
            if value is not None and word in self._names:
                body[self._names[word]] = value
        if sampling.grammar is not None:
            kind, source = schema_or_regex(sampling.grammar)
            body |= {"guided_decoding_guide_type": kind, "guided_decoding_guide": source}
        path = f"/v2/models/{quote(call.model, safe='')}/generate"
        return Route(path + "_stream", body, "sse") if call.stream else Route(path, body, "json")

    def reader(self, call: Call) -> Reader:
        return _Events(cumulative=self._cumulative and call.stream, whole=not call.stream)


class _Events:
    """Remembers the text so far where each event repeats it. `whole`: there is one event, and it is all."""

    def __init__(self, *, cumulative: bool, whole: bool) -> None:
        self._cumulative = cumulative
        self._whole = whole
        self._text = ""

    def __call__(self, event: dict[str, Any]) -> list[Piece]:
        text = event["text_output"]
        text = text[0] if isinstance(text, list) else text
        if self._cumulative:
            if not text.startswith(self._text):
                raise EngineError("triton: the engine changed text that it had already sent; is accumulate_tokens on?")
            self._text, text = text, text[len(self._text) :]
        reason = event.get("finish_reason")
        reason = reason[0] if isinstance(reason, list) and reason else reason
        return [Piece(text=text, final=self._whole or bool(reason), finish_reason=reason or None)]


def _capabilities(names: Mapping[str, str]) -> Capabilities:
    """Of a model with these inputs."""
    own = ("top_k", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "seed")
    enforced = [field for field in own if field in names]
    if "grammar" in names:
        enforced += ["response_format", "structured_outputs"]
    missing = {field: "the served model has no such input" for field in own if field not in names}
    if "grammar" not in names:
        missing |= dict.fromkeys(("response_format", "structured_outputs"), "the served model has no such input")
    beams = "how many beams there are is fixed when the engine is built"
    return capability_table(
        enforced=enforced,
        refused={
            **missing,
            "min_p": "its generate extension has no min_p",
            "logprobs": "it tells log-probabilities without their tokens",
            "top_logprobs": "it tells log-probabilities without their tokens",
            "best_of": "its generate extension has no best_of",
            "logit_bias": "its inputs are words and numbers, not tables",
            "ignore_eos": "its end token is the model's own",
            "stop_token_ids": "its end token is the model's own, and it tells no token ids",
            "return_token_ids": "it tells no token ids",
            "skip_special_tokens": "its postprocessing model decides that",
            "add_special_tokens": "its preprocessing model decides that",
            "num_beams": beams,
            "length_penalty": beams,
            "early_stopping": beams,
        },
    )


def create(model: ModelConfig, context: EngineContext) -> GenerateAPIEngine:
    """Raises `ConfigError`."""
    backends: dict[str, MakeBackend] = {"http": HttpBackend, "https": HttpBackend, "grpc": GrpcBackend}
    return create_remote(TritonDialect, TritonDialect, model, context, backends=backends)
