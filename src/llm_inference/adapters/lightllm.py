"""LightLLM's own routes, `/generate` and `/generate_stream`.

Its lines begin `data:` without a space; a list of one result is a bare value, but for `generated_text`. Its
log-probabilities are those it samples from (after temperature and penalties). Sampling is off unless `do_sample` says
so. A wrong request is any 4xx, mostly 417. Documented: `docs/EN/source/tutorial/api_param.rst` of ModelTC/LightLLM.
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
    refuse,
    refuse_lark,
    schema_or_regex,
)
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.remote import command_line, create_remote, said
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest


class LightLLMDialect(Dialect):
    name = "lightllm"
    capabilities = capability_table(
        enforced=(
            "top_k",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_tokens",
            "ignore_eos",
            "skip_special_tokens",
            "add_special_tokens",
            "logprobs",
            "return_token_ids",
            "response_format",
            "structured_outputs",
        ),
        emulated=("stop_token_ids",),
        refused={
            "top_logprobs": "it tells the chosen token's log-probability alone",
            "min_p": "its protocol has no min_p",
            "seed": "its protocol has no seed",
            "logit_bias": "its protocol has no logit_bias",
            "best_of": "it takes best_of only as another word for n",
        },
    )

    @classmethod
    def command(cls, model: ModelConfig) -> str:
        return command_line(
            "python -m lightllm.server.api_server",
            {
                "model_dir": model.model,
                "host": "127.0.0.1",
                "port": 8080,
                "tp": said(model, "tensor_parallel_size"),
                "max_req_total_len": model.max_model_len,
                "running_max_req_size": model.max_num_seqs,
                "batch_max_tokens": model.max_num_batched_tokens,
                "mem_fraction": said(model, "gpu_memory_utilization"),
                "trust_remote_code": model.trust_remote_code,
            },
        )

    def check(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        if sampling.logprobs:
            raise refuse(self.name, "logprobs", "it tells the chosen token's log-probability alone; send 0")
        if sampling.prompt_logprobs is not None:
            raise refuse(self.name, "echo", "it does not tell the log-probabilities of a prompt")
        for field in ("frequency_penalty", "presence_penalty"):
            if (getattr(sampling, field) or 0.0) < 0:
                raise refuse(self.name, field, "it takes no negative penalty")
        if sampling.repetition_penalty is not None and sampling.repetition_penalty < 1:
            raise refuse(self.name, "repetition_penalty", "it takes none below 1")
        refuse_lark(self.name, sampling.grammar)

    def route(self, call: Call) -> Route:
        sampling, prompt = call.sampling, call.prompt
        assert prompt is not None
        parameters: dict[str, Any] = {
            "do_sample": not call.greedy,
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": max(sampling.min_tokens, 1),
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "ignore_eos": sampling.ignore_eos,
            "skip_special_tokens": sampling.skip_special_tokens,
            "add_special_tokens": prompt.add_special_tokens,
        }
        if not call.greedy:
            parameters |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or -1}
        if call.stop:
            parameters["stop_sequences"] = list(call.stop)
        if not call.stream:
            parameters["return_details"] = True
        if sampling.grammar is not None:
            kind, source = schema_or_regex(sampling.grammar)
            parameters["guided_json" if kind == "json_schema" else "regular_constraint"] = source
        body = {"inputs": prompt.raw_text, "parameters": parameters}
        return Route("/generate_stream", body, "sse") if call.stream else Route("/generate", body, "json")

    def reader(self, call: Call) -> Reader:
        return _stream_pieces if call.stream else _reply_pieces


def _stream_pieces(frame: dict[str, Any]) -> list[Piece]:
    token = frame["token"]
    return [
        Piece(
            **_token(token),
            final=frame["finished"],
            finish_reason=frame.get("finish_reason"),
            prompt_tokens=token.get("prompt_tokens"),
            completion_tokens=token.get("count_output_tokens"),
        )
    ]


def _reply_pieces(reply: dict[str, Any]) -> list[Piece]:
    """Token by token where the reply has them, so that a whole reply is read exactly as a stream."""
    tokens = _only(reply.get("tokens"), of_lists=True) or []
    last = {
        "final": True,
        "finish_reason": _only(reply.get("finish_reason")),
        "prompt_tokens": reply.get("prompt_tokens"),
        "completion_tokens": _only(reply.get("count_output_tokens")),
    }
    if not tokens:
        return [Piece(text=_only(reply["generated_text"]), **last)]
    return [*(Piece(**_token(token), completion_tokens=i) for i, token in enumerate(tokens, 1)), Piece(**last)]


def _token(token: dict[str, Any]) -> dict[str, Any]:
    token_id, text = token.get("id"), token["text"]
    if token_id is None:
        return {"text": text}
    return {"text": text, "token_ids": (token_id,), "logprobs": (logprob(token_id, text, token.get("logprob")),)}


def _only(value: Any, *, of_lists: bool = False) -> Any:
    """The value of the one result: bare, or the only element of a list (`of_lists`: the bare value is a list too)."""
    if not isinstance(value, list) or not value:
        return value
    return value if of_lists and not isinstance(value[0], list) else value[0]


def create(model: ModelConfig, context: EngineContext) -> GenerateAPIEngine:
    """Raises `ConfigError`."""
    return create_remote(lambda _: LightLLMDialect(), LightLLMDialect, model, context)
