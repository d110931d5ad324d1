"""Text Generation Inference's own routes, `/generate` and `/generate_stream` (its OpenAI routes are another engine).

`details` bring tokens and their alternatives (`top_tokens`), and unstreamed also the prompt's tokens (`prefill`) and
the other sequences of `best_of`. Log-probabilities are those it samples from. Validation errors are 422, or in a stream
an error object after a 200. A hub may serve the same API with the reply in a list of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from llm_inference.adapters.backend import Backend
from llm_inference.adapters.dialect import (
    Call,
    Dialect,
    Reader,
    Route,
    ServerFacts,
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
from llm_inference.engine.types import GenerateRequest, Grammar, SamplingParams


class TGIDialect(Dialect):
    name = "tgi-generate"
    tells_max_model_len = True
    capabilities = capability_table(
        enforced=(
            "top_k",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "logprobs",
            "top_logprobs",
            "best_of",
            "return_token_ids",
            "response_format",
            "structured_outputs",
        ),
        emulated=("stop_token_ids",),
        refused={
            "min_p": "its protocol has no min_p",
            "presence_penalty": "its protocol has no presence_penalty",
            "logit_bias": "its protocol has no logit_bias",
            "min_tokens": "its protocol has no shortest output",
            "ignore_eos": "only its server as a whole can ignore EOS",
            "skip_special_tokens": "it leaves special tokens out always",
            "add_special_tokens": "its tokenizer adds them always",
        },
    )

    @classmethod
    def command(cls, model: ModelConfig) -> str:
        return command_line(
            "text-generation-launcher",
            {
                "model-id": model.model,
                "port": 8080,
                "num-shard": said(model, "tensor_parallel_size"),
                "quantize": model.resolved_quantization,
                "dtype": None if model.resolved_dtype == "auto" else model.resolved_dtype,
                "max-total-tokens": model.max_model_len,
                "max-concurrent-requests": model.max_num_seqs,
                "max-batch-prefill-tokens": model.max_num_batched_tokens,
                "cuda-memory-fraction": said(model, "gpu_memory_utilization"),
                "trust-remote-code": model.trust_remote_code,
            },
        )

    async def probe(self, backend: Backend, model: str) -> ServerFacts:
        status, body = await backend.get("/info")
        info = msgspec.json.decode(body) if status == 200 else {}
        return ServerFacts(max_model_len=info.get("max_total_tokens"))

    def check(self, request: GenerateRequest) -> None:
        refuse_lark(self.name, request.sampling.grammar, "it takes JSON schemas and regular expressions only")

    def choices_in_one_call(self, sampling: SamplingParams) -> bool:
        return (sampling.best_of or 1) > 1

    def must_not_stream(self, request: GenerateRequest) -> bool:
        return request.echo and request.sampling.prompt_logprobs is not None

    def route(self, call: Call) -> Route:
        sampling = call.sampling
        parameters: dict[str, Any] = {
            "max_new_tokens": sampling.max_tokens,
            "do_sample": not call.greedy,
            "details": True,
            "return_full_text": False,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if not call.greedy:
            parameters |= {"temperature": sampling.temperature, "seed": _seed(sampling.seed)}
            # It refuses the values that mean "off".
            parameters |= {"top_p": sampling.top_p} if (sampling.top_p or 1.0) < 1.0 else {}
            parameters |= {"top_k": sampling.top_k} if sampling.top_k else {}
        if sampling.logprobs:
            parameters["top_n_tokens"] = sampling.logprobs
        if self.must_not_stream(call.request):
            parameters["decoder_input_details"] = True
        if call.num_choices > 1 or (sampling.best_of or 1) > 1:
            parameters["best_of"] = sampling.best_of
        if call.stop:
            parameters["stop"] = list(call.stop)
        if sampling.grammar is not None:
            parameters["grammar"] = _grammar(sampling.grammar)
        body = {"inputs": call.text, "parameters": parameters}
        return Route("/generate_stream", body, "sse") if call.stream else Route("/generate", body, "json")

    def reader(self, call: Call) -> Reader:
        if call.stream:
            return _stream_pieces
        return lambda reply: _reply_pieces(reply, call)


def _stream_pieces(frame: dict[str, Any]) -> list[Piece]:
    piece = _token_piece(frame["token"], frame.get("top_tokens") or ())
    details = frame.get("details")
    if details is None:
        # Without details a stream ends with the frame that has the whole text.
        return [piece] if frame.get("generated_text") is None else [piece, Piece(final=True)]
    last = Piece(
        final=True,
        finish_reason=details["finish_reason"],
        prompt_tokens=details.get("input_length"),
        completion_tokens=details["generated_tokens"],
    )
    return [piece, last]


def _reply_pieces(reply: Any, call: Call) -> list[Piece]:
    reply = reply[0] if isinstance(reply, list) else reply
    details = reply.get("details")
    if details is None:
        return [Piece(text=reply["generated_text"], final=True)]
    sequences = [{**details, "generated_text": reply["generated_text"]}, *(details.get("best_of_sequences") or ())]
    sequences.sort(key=_mean_logprob, reverse=True)
    best = enumerate(sequences[: call.num_choices])
    return [piece for index, sequence in best for piece in _sequence(index, sequence, call)]


def _sequence(index: int, sequence: dict[str, Any], call: Call) -> Iterable[Piece]:
    """One finished sequence, token by token, so that a whole reply is read exactly as a stream."""
    prefill = sequence.get("prefill") or None
    prompt_logprobs = None
    if prefill and call.sampling.prompt_logprobs is not None:
        prompt_logprobs = tuple(logprob(token["id"], token["text"], token["logprob"]) for token in prefill)
    tops = sequence.get("top_tokens") or ()
    for place, token in enumerate(sequence["tokens"]):
        yield _token_piece(
            token, tops[place] if place < len(tops) else (), index=index, prompt_logprobs=prompt_logprobs
        )
    yield Piece(
        index=index,
        final=True,
        finish_reason=sequence["finish_reason"],
        prompt_tokens=len(prefill) if prefill else None,
        completion_tokens=sequence["generated_tokens"],
        prompt_logprobs=prompt_logprobs,
    )


def _token_piece(token: dict[str, Any], top: Iterable[dict[str, Any]], **more: Any) -> Piece:
    """A special token ends the output or is none of it: it is not shown."""
    if token["special"]:
        return Piece(**more)
    alternatives = [(other["id"], other["text"], other["logprob"]) for other in top]
    entry = logprob(token["id"], token["text"], token["logprob"], alternatives)
    return Piece(text=token["text"], token_ids=(token["id"],), logprobs=(entry,), **more)


def _mean_logprob(sequence: dict[str, Any]) -> float:
    values = [token["logprob"] or 0.0 for token in sequence["tokens"]]
    return sum(values) / max(len(values), 1)


def _seed(seed: int | None) -> int | None:
    """It takes seeds above 0; every seed of ours becomes one of those."""
    return None if seed is None else seed % (2**63 - 1) + 1


def _grammar(grammar: Grammar) -> dict[str, Any]:
    kind, source = schema_or_regex(grammar)
    return {"type": "json", "value": json.loads(source)} if kind == "json_schema" else {"type": kind, "value": source}


def create(model: ModelConfig, context: EngineContext) -> GenerateAPIEngine:
    """Raises `ConfigError`."""
    return create_remote(lambda _: TGIDialect(), TGIDialect, model, context)
