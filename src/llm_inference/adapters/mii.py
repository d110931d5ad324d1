"""DeepSpeed-MII's REST gateway: `POST /mii/<deployment>`, no stream, every answer is one delta.

Its reply is a list of results, which some versions send as JSON text inside a JSON string. `model:` names the
deployment and `tokenizer:` its files, unless `engine_args: {deployment: …}` leaves `model:` free for them. It has no
health route: any answer of the gateway counts. Documented: README and `mii/config.py` of microsoft/DeepSpeed-MII.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from llm_inference.adapters.dialect import Call, Dialect, Reader, Route, capability_table
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.remote import create_remote
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext


class MIIDialect(Dialect):
    name = "mii"
    streams = False
    #: A path that no version has: 404 says that the gateway is there.
    health_path = "/mii"
    engine_args: ClassVar[Mapping[str, type]] = {"deployment": str}
    capabilities = capability_table(
        enforced=("top_k", "min_tokens", "ignore_eos"),
        refused={
            "min_p": "its protocol has no min_p",
            "seed": "its protocol has no seed",
            "logprobs": "it tells no log-probabilities",
            "top_logprobs": "it tells no log-probabilities",
            "best_of": "its protocol has no best_of",
            "frequency_penalty": "its protocol has no penalties",
            "presence_penalty": "its protocol has no penalties",
            "repetition_penalty": "its protocol has no penalties",
            "logit_bias": "its protocol has no logit_bias",
            "stop_token_ids": "its protocol has no stop tokens, and it tells no token ids",
            "return_token_ids": "it tells no token ids",
            "skip_special_tokens": "it leaves special tokens out always",
            "add_special_tokens": "its tokenizer adds them always",
            "response_format": "it cannot constrain its output",
            "structured_outputs": "it cannot constrain its output",
        },
    )

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._deployment = args.get("deployment")

    @classmethod
    def command(cls, model: ModelConfig) -> str:
        return (
            f"python -c 'import mii; mii.serve({json.dumps(model.model)}, deployment_name={json.dumps(model.name)}, "
            f"tensor_parallel={model.tensor_parallel_size}, enable_restful_api=True, restful_api_port=28080)', "
            f"then `url: http://127.0.0.1:28080` and `engine_args: {{deployment: {model.name}}}`"
        )

    def is_ready(self, status: int) -> bool:
        return status < 500

    def route(self, call: Call) -> Route:
        sampling = call.sampling
        body: dict[str, Any] = {
            "prompts": [call.text],
            # Counts the prompt, too, and goes before the other limit.
            "max_length": call.max_model_len,
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "ignore_eos": sampling.ignore_eos,
            "return_full_text": False,
            "do_sample": not call.greedy,
        }
        if not call.greedy:
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        if call.stop:
            body["stop"] = list(call.stop)
        return Route(f"/mii/{quote(self._deployment or call.model, safe='')}", body, "json")

    def reader(self, call: Call) -> Reader:
        return _pieces


def _pieces(reply: Any) -> list[Piece]:
    results = json.loads(reply) if isinstance(reply, str) else reply
    result = results[0]
    text = result["generated_text"]
    return [
        Piece(
            text=text[0] if isinstance(text, list) else text,
            final=True,
            finish_reason=result.get("finish_reason"),
            prompt_tokens=result.get("prompt_length"),
            completion_tokens=result.get("generated_length"),
        )
    ]


def create(model: ModelConfig, context: EngineContext) -> GenerateAPIEngine:
    """Raises `ConfigError`."""
    return create_remote(MIIDialect, MIIDialect, model, context)
