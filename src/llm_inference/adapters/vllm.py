"""`engine: vllm`: vLLM's OpenAI server, started here or at `url`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from llm_inference.adapters.launch import Advice, Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import FIELDS, Profile, response_format
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import Grammar
from llm_inference.model_spec.fields import JsonFields
from llm_inference.telemetry.devices import has_nvidia_gpu
from llm_inference.text.parsers.registry import detect
from llm_inference.text.tokenizer_files import read_files, read_text


def structured_outputs(grammar: Grammar) -> dict[str, Any]:
    """`response_format` for JSON; vLLM's own field for the rest."""
    if grammar.kind == "choice":
        return {"structured_outputs": {"choice": msgspec.json.decode(grammar.source)}}
    if grammar.kind in ("regex", "grammar"):
        return {"structured_outputs": {grammar.kind: grammar.source}}
    return response_format(grammar)


def without_ids_of_an_echo(body: dict[str, Any]) -> dict[str, Any]:
    """vLLM 0.32 leaves the echoed prompt out of a stream that shows token ids; the text is what was asked for."""
    if body.get("echo"):
        return {name: value for name, value in body.items() if name != "return_token_ids"}
    return body


PROFILE = Profile(
    name="vllm",
    evidence="documented",
    source="its CPU build 0.32.0, started by us and asked for these fields",
    enforced=frozenset(FIELDS)
    - {"best_of", "num_beams", "length_penalty", "early_stopping", "logits_processors", "forced_eos_token_id"}
    - {"tool_choice"},
    # Its own, 0.32, needs a parser for the model's format, and streams a named call of `hermes` with its markers in it.
    emulated=frozenset(("tool_choice",)),
    reasons={"best_of": "vLLM has dropped it; use n"},
    grammar=structured_outputs,
    tokenize=True,
    max_stop_strings=4,
    completion_length="number",
    continuous_usage=True,
    # The engine is not told which clients want them; a server that does not know the field leaves it alone.
    constants={"return_token_ids": True},
    rewrite=without_ids_of_an_echo,
    cuts_max_tokens=True,
    one_greedy_choice=True,
    owned_by="vllm",
)

LAUNCH = Launch(
    program="vllm",
    modules=("vllm.entrypoints.openai.api_server",),
    command=("serve",),
    help_flags=("--help=all", "--help"),
    arguments=lambda plan: arguments(plan),
    install="llm-inference engines install vllm",
    advice=(
        Advice(
            r"out of memory|No available memory for the cache blocks|is larger than the maximum number of tokens|"
            r"less than desired GPU memory utilization|insufficient memory|not enough memory",
            "lower max_model_len or max_num_seqs; set gpu_memory_utilization higher if the cache has too little room, "
            "lower if other programs use the same device",
        ),
    ),
)


def arguments(plan: Plan) -> list[str]:
    """Our configuration as vLLM's flags; `vllm serve MODEL` takes the model first, the module by flag."""
    model = plan.model
    return [
        *(["--model", plan.source] if plan.by_module else [plan.source]),
        *flag("--host", plan.host),
        *flag("--port", plan.port),
        *flag("--served-model-name", plan.served_name),
        *flag("--dtype", dtype(plan)),
        *flag("--quantization", model.resolved_quantization),
        *flag("--max-model-len", model.max_model_len),
        *flag("--max-num-seqs", model.max_num_seqs),
        *flag("--max-num-batched-tokens", model.max_num_batched_tokens),
        *flag("--tensor-parallel-size", model.tensor_parallel_size if model.tensor_parallel_size > 1 else None),
        *flag("--gpu-memory-utilization", plan.said("gpu_memory_utilization")),
        *flag("--kv-cache-memory-bytes", model.kv_cache_memory),
        *flag("--block-size", model.block_size),
        *flag("--tokenizer", model.tokenizer),
        *flag("--chat-template", model.chat_template),
        "--enable-prefix-caching" if model.enable_prefix_caching else "--no-enable-prefix-caching",
        *(["--trust-remote-code"] if model.trust_remote_code else []),
        *parser_flags(plan),
        *flag("--scheduling-policy", "priority"),
    ]


def parser_flags(plan: Plan) -> list[str]:
    """Its parsers for our `tool_parser` and `reasoning_parser`, which have the same names there."""
    model = plan.model
    flags = flag("--reasoning-parser", None if model.reasoning_parser == "none" else model.reasoning_parser)
    found = {"auto": detect(chat_template(plan)), "none": None}.get(model.tool_parser, model.tool_parser)
    return [*flags, *(["--enable-auto-tool-choice", "--tool-call-parser", found] if found else [])]


def chat_template(plan: Plan) -> str | None:
    """The source of the one in use when there are tools; None where that is not known here."""
    said, directory = plan.model.chat_template, Path(plan.source)
    if said is not None:
        return read_text(Path(said)) if Path(said).is_file() else said
    templates = read_files(directory).templates if directory.is_dir() else {}
    return templates.get("tool_use") or templates.get("default")


def dtype(plan: Plan) -> str:
    """vLLM's "auto" halves a float32 checkpoint. On a CPU, where the native engine does not, it is kept as it is."""
    config = Path(plan.source) / "config.json"
    if plan.model.resolved_dtype != "auto" or not config.is_file() or has_nvidia_gpu():
        return plan.model.resolved_dtype
    content = JsonFields.read(config).content
    return "float32" if "float32" in (content.get("dtype"), content.get("torch_dtype")) else "auto"


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
