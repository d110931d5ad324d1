"""What a model takes when it is deployed: its headers, and the native allocator's own formula.

Here because it joins two rooms that know nothing of each other: the native engine's arithmetic and `deploy/`. Reads
config.json and headers, never a weight; a hub model that is not cached is not fetched for it.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from llm_inference.adapters.launch import Plan, engine_flags, merge
from llm_inference.adapters.vllm import LAUNCH as VLLM
from llm_inference.adapters.vllm import arguments as vllm_arguments
from llm_inference.config.schema import ModelConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.needs import ModelNeeds, Place
from llm_inference.errors import ConfigError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.budget import DEFAULT_CPU_KV_BYTES, plan_memory
from llm_inference.native.models.registry import model_kind
from llm_inference.native.plan import DEFAULT_LIMITS, QUANTIZATIONS, memory_needs
from llm_inference.native.precision import choose
from llm_inference.native.runner.choice import BLOCK_SIZES
from llm_inference.sources.resolve import ResolvedModel, resolve

#: Whole blocks of the largest size hold whole ones of the smaller sizes.
_BLOCK_TOKENS = max(BLOCK_SIZES.values())
#: Far more than anything needs: the formula is asked what it would like, not what fits.
_UNLIMITED = 2**60
_CPU_ENGINES = ("fake", "llama.cpp", "openvino", "onnx")
#: Scales and zero points beside 4-bit weights.
_SCALES = 1.06


def measure(model: ModelConfig, choices: Choices, info: Path | None = None) -> ModelNeeds:
    """`info`: a directory with the model's config.json, where the model itself is not on this machine.

    Raises `ConfigError` when neither is there, and what reading headers raises.
    """
    if model.url is not None:
        return ModelNeeds(engine=model.engine, place="remote", engine_why="it runs at `url`")
    template = _template(model.chat_template)
    if model.engine == "fake":
        return ModelNeeds(engine="fake", place="cpu", engine_why="as configured", chat_template=template)
    directory, resolved, path = _find(model, info)
    spec = ModelSpec.from_directory(directory)
    engine, why = _engine(model, spec)
    place = _place(model, engine, choices)
    own = _native_cpu(model, spec) if engine == "native" and place == "cpu" else _others(model, spec, place)
    weights, kv, least, workspace, how = own
    gguf = resolved.gguf.stat().st_size if resolved is not None and resolved.gguf is not None else 0
    files = spec.checkpoint_bytes or weights
    return ModelNeeds(
        engine=engine,
        place=place,
        engine_why=why,
        weight_bytes=weights,
        kv_bytes=kv,
        least_kv_bytes=least,
        workspace_bytes=workspace,
        download_bytes=0 if path is not None else gguf or files,
        disk_bytes=gguf + files,
        local_path=str(path) if path is not None else None,
        chat_template=template,
        sizes_why=how,
        worker_program=VLLM.program if engine == "vllm" else "",
        worker_flags=_worker_flags(model) if engine == "vllm" else (),
    )


def _worker_flags(model: ModelConfig) -> tuple[str, ...]:
    """vLLM's flags on a further machine, as our server gives them on the first; which port it has is the first's."""
    # In the order of the adapter: the source, then the address and the name, which only an API server has.
    ours = vllm_arguments(Plan(model=model, source=model.model, port=0))[1:]
    api = ("--host", "--port", "--served-model-name")
    kept = [word for at, word in enumerate(ours) if word not in api and (at == 0 or ours[at - 1] not in api)]
    return tuple(merge(kept, engine_flags(model.engine_args)))


def _find(model: ModelConfig, info: Path | None) -> tuple[Path, ResolvedModel | None, Path | None]:
    """(where config.json is, the resolved model if it is here, its path if its source is one)."""
    path = Path(os.path.expanduser(model.model))
    local = path.resolve() if os.path.lexists(path) else None
    if info is not None:
        if not (info / "config.json").is_file():
            raise ConfigError(f"--model-info: {info} holds no config.json")
        return info, None, local
    if local is None and not model.model.startswith("pypi:"):
        cached = _cached_hub_directory(model.model)
        if cached is None:
            raise ConfigError(
                f"{model.name}: {model.model} is not on this machine, so its size is not known; give a directory with "
                f"its config.json (no weights are needed): --model-info {model.name}=DIRECTORY"
            )
        return cached, None, None
    resolved = resolve(model.model, require_tokenizer=False)
    return resolved.directory, resolved, local


def _cached_hub_directory(source: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = source.partition("@")
    try:
        found = try_to_load_from_cache(repository, "config.json", revision=revision or None)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _engine(model: ModelConfig, spec: ModelSpec) -> tuple[str, str]:
    """By the same reasons as `engine: auto`, but for the place of deployment, of which nothing is known here."""
    if model.engine != "auto":
        return model.engine, "as configured"
    if spec.quantization_config is not None:
        method = spec.quantization_config.get("quant_method", "unknown")
        return "vllm", f"auto: the native engine cannot load checkpoints quantized with {method}"
    if model.resolved_quantization not in (None, *QUANTIZATIONS):
        return "vllm", f"auto: the native engine does not know the quantization {model.resolved_quantization}"
    if model.tensor_parallel_size > 1:
        return "vllm", "auto: the native engine runs a model on one device, and tensor_parallel_size is above 1"
    return "native", "auto: it can serve the model"


def _place(model: ModelConfig, engine: str, choices: Choices) -> Place:
    if model.device.startswith("cuda"):
        return "cuda"
    if model.device == "cpu" or engine in _CPU_ENGINES:
        return "cpu"
    if choices.device != "auto":
        return "cuda" if choices.device == "cuda" else "cpu"
    return "cpu" if engine == "native" else "cuda"


def _native_cpu(model: ModelConfig, spec: ModelSpec) -> tuple[int, int, int, int, str]:
    """(weights, KV cache, one longest sequence, workspace, how) by the allocator's formula, for any CPU."""
    limits = DEFAULT_LIMITS["cpu"]
    # Without the features of this machine's CPU: the other one may have to compute in float32.
    precision = choose(model.resolved_dtype, spec.dtype, "cpu", frozenset())
    max_num_seqs = model.max_num_seqs or limits["max_num_seqs"]
    max_model_len = model.max_model_len or spec.max_position_embeddings
    batched = model.max_num_batched_tokens or max(limits["max_num_batched_tokens"], max_num_seqs)
    # Which of the runners the other machine has is not known either: the largest of them.
    runners = BLOCK_SIZES if model.runner == "auto" else (model.runner,)
    each = [
        memory_needs(spec, precision.dtype, model.resolved_quantization, batched, one, model.kv_cache_dtype)
        for one in runners
    ]
    needs = dataclasses.replace(
        max(each, key=lambda one: one.weight_bytes + one.workspace_bytes),
        kv_bytes_per_token=max(one.kv_bytes_per_token for one in each),
    )
    how = f"computing in {precision.dtype}: {precision.reason}"
    if model_kind(spec.model_type) == "encoder":
        return needs.weight_bytes, 0, 0, needs.workspace_bytes, how
    block_size = max(model.block_size or 0, _BLOCK_TOKENS)
    plan = plan_memory(
        needs,
        available_bytes=_UNLIMITED,
        utilization=model.gpu_memory_utilization,
        kv_cache_bytes=model.kv_cache_memory,
        default_kv_bytes=DEFAULT_CPU_KV_BYTES,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
    )
    least = -(-max_model_len // block_size) * block_size * needs.kv_bytes_per_token
    kv = model.kv_cache_memory or plan.kv_cache_bytes
    return needs.weight_bytes, kv, least, needs.workspace_bytes, f"{how}; KV cache: {plan.reason}"


def _others(model: ModelConfig, spec: ModelSpec, place: Place) -> tuple[int, int, int, int, str]:
    """Weights as they are, or as they would be; the cache is the engine's own business on a GPU."""
    wanted = model.resolved_quantization
    if spec.checkpoint_bytes and wanted not in QUANTIZATIONS:
        weights, how = spec.checkpoint_bytes, "weights by their files' headers"
    elif spec.quantization_config is not None or wanted is not None:
        bits = (spec.quantization_config or {}).get("bits", 8 if wanted in ("fp8", "int8") else 4)
        embeddings = spec.vocab_size * spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
        inner = (spec.num_parameters - embeddings) * (bits if isinstance(bits, int) else 4) / 8
        weights, how = int(embeddings * 2 + inner * _SCALES), f"weights of {bits} bits, estimated by the shapes"
    else:
        weights, how = spec.weight_bytes("bfloat16"), "weights of 16 bits, by the shapes"
    length = model.max_model_len or spec.max_position_embeddings
    least = length * spec.kv_bytes_per_token("bfloat16")
    kv = (model.kv_cache_memory or max(DEFAULT_CPU_KV_BYTES, least)) if place == "cpu" else 0
    return weights, kv, least, 0, how


def _template(template: str | None) -> str | None:
    """The content of a template that is a file, else None: what is no file needs no reading."""
    if template is None or "\n" in template or "{" in template:
        return None
    path = Path(os.path.expanduser(template))
    return path.read_text(encoding="utf-8") if path.is_file() else None
