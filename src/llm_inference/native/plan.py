"""From a model's configuration to everything that a front and a core need to know. Torch-free.

    ModelConfig ─► resolve, verify ─► ModelSpec ─► precision, limits, memory ─► NativePlan

Refuses here, before a process is started, whatever can be known without reading a weight. A plan is plain data: the
parent writes it down for further gateway workers, so that all of them agree.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Literal

import msgspec

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import GenerationDefaults, ModelInfo
from llm_inference.errors import ConfigError, InvalidRequestError, UnsupportedModelError
from llm_inference.model_spec import DTYPE_BYTES, GenerationConfig, ModelSpec, read_generation_config
from llm_inference.native.budget import DEFAULT_CPU_KV_BYTES, MemoryNeeds, plan_memory
from llm_inference.native.embedding_defaults import EmbeddingDefaults, read_embedding_defaults
from llm_inference.native.encoder_plan import refuse_options_without_effect, require_memory, step_tokens
from llm_inference.native.grammar import GrammarCompiler
from llm_inference.native.logits_processors import known_processors
from llm_inference.native.models.registry import ModelKind, model_kind
from llm_inference.native.precision import choose
from llm_inference.native.prepare import Limits, Preparer
from llm_inference.native.runner.choice import BLOCK_SIZES, KVCacheDType, Machine, RunnerName, Wanted, choose_runner
from llm_inference.native.runner.kv_format import kv_format
from llm_inference.native.setup import CoreSetup
from llm_inference.native.speculation import SpeculationSetup
from llm_inference.native.torch_options import check_torch_options
from llm_inference.sources.resolve import resolve
from llm_inference.telemetry.devices import available_cpus, available_memory_bytes, has_nvidia_gpu, thread_environment
from llm_inference.text.parsing import ModelFormats
from llm_inference.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LogFormat = Literal["auto", "json", "console"]

QUANTIZATIONS = ("int8", "int4")

#: Without a word in the config: how much one step computes and how many sequences run, by kind of device.
#: On a CPU 96 prompt tokens beside decodes cost no throughput against 256, and halve the gaps (docs/performance.md).
DEFAULT_LIMITS = {
    "cpu": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "max_prefill_tokens_with_decodes": 96},
    "cuda": {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_prefill_tokens_with_decodes": 256},
}


class NativePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve and how. `setup` goes to the core, the rest stays with the front."""

    setup: CoreSetup
    info: ModelInfo
    defaults: GenerationDefaults
    embedding: EmbeddingDefaults
    chat_template: str | None
    tool_parser: str
    reasoning_parser: str

    @property
    def core_env(self) -> dict[str, str]:
        """Environment of the core's process; see `thread_environment`."""
        return {} if self.setup.num_threads is None else thread_environment(self.setup.num_threads)

    def require_generation(self) -> None:
        """Raises `InvalidRequestError` when the model is an encoder."""
        if self.setup.kind == "encoder":
            raise InvalidRequestError(
                f"The model {self.info.name!r} is an encoder: it makes vectors of texts (/embeddings), and no text.",
                param="model",
                code="unsupported_operation",
            )

    def make_tokenizer(self) -> Tokenizer:
        return load_tokenizer(Path(self.setup.model_dir), self.setup.tokenizer, self.chat_template)

    def make_preparer(self) -> Preparer:
        """Load the tokenizer and what hangs on it. Raises `StartupError`."""
        tokenizer = self.make_tokenizer()
        setup = self.setup
        return Preparer(
            tokenizer=tokenizer,
            defaults=self.defaults,
            eos_token_ids=setup.eos_token_ids,
            limits=Limits(
                setup.max_model_len,
                setup.max_num_seqs,
                setup.num_valid_tokens,
                tokens_cover_text=setup.kind == "decoder",
            ),
            formats=ModelFormats.choose(self.tool_parser, self.reasoning_parser, tokenizer),
            grammars=make_grammars(tokenizer, setup),
            processors=tuple(known_processors()),
        )


def make_plan(
    model: ModelConfig, *, progress: bool = True, log_level: str = "info", log_format: LogFormat = "auto"
) -> NativePlan:
    """Resolve `model` to local files and decide everything. Raises `StartupError` with what to do about it."""
    _refuse_foreign_options(model)
    directory = resolve(
        model.model,
        progress=progress,
        trust_remote_code=model.trust_remote_code,
        require_tokenizer=model.tokenizer is None,
    ).directory
    spec = ModelSpec.from_directory(directory)
    tokenizer = load_tokenizer(directory, model.tokenizer, model.chat_template)
    device = _device(model.device)
    device_kind = "cpu" if device == "cpu" else "cuda"
    kind = model_kind(spec.model_type)
    embedding = read_embedding_defaults(directory, kind, spec.hidden_size)
    quantization = _quantization(model, spec)
    precision = choose(model.resolved_dtype, spec.dtype, device)
    logger.info("%s: computing in %s on %s: %s", model.name, precision.dtype, device, precision.reason)
    limits = DEFAULT_LIMITS[device_kind]
    max_num_seqs = model.max_num_seqs or limits["max_num_seqs"]
    num_kv_blocks = None
    runner = _runner(model, spec, kind, device, precision.dtype, quantization)
    # On a GPU the core chooses the attention, and the attention the block size.
    block_size = model.block_size or (BLOCK_SIZES[runner] if device == "cpu" else None)
    if kind == "encoder":
        refuse_options_without_effect(model)
        max_model_len = _max_model_len(model, spec, embedding.max_tokens)
        max_num_batched_tokens = step_tokens(model, max_model_len, limits["max_num_batched_tokens"])
        if device == "cpu":
            needs = memory_needs(spec, precision.dtype, quantization, max_num_batched_tokens)
            require_memory(needs, available_memory_bytes(), model.gpu_memory_utilization)
    else:
        max_model_len = _max_model_len(model, spec)
        max_num_batched_tokens = model.max_num_batched_tokens or max(limits["max_num_batched_tokens"], max_num_seqs)
        check_torch_options(
            model, spec, runner=runner, device=device, precision=precision.dtype, max_num_seqs=max_num_seqs
        )
        if block_size is not None and device == "cpu":
            needs = memory_needs(
                spec, precision.dtype, quantization, max_num_batched_tokens, runner, model.kv_cache_dtype
            )
            num_kv_blocks = _num_kv_blocks(model, needs, max_model_len, max_num_seqs, block_size)
    generation = read_generation_config(directory)
    setup = CoreSetup(
        model_dir=str(directory),
        kind=kind,
        tokenizer=model.tokenizer,
        device=device,
        precision=precision.dtype,
        quantization=quantization,
        runner=runner,
        kv_cache_dtype=model.kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_prefill_tokens_with_decodes=model.max_prefill_tokens_with_decodes
        or limits["max_prefill_tokens_with_decodes"],
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        kv_cache_bytes=model.kv_cache_memory,
        gpu_memory_utilization=model.gpu_memory_utilization,
        enable_prefix_caching=model.enable_prefix_caching,
        speculation=_speculation(model),
        eos_token_ids=_eos_token_ids(generation, tokenizer) if kind == "decoder" else (),
        num_valid_tokens=min(tokenizer.vocab_size, spec.vocab_size),
        num_threads=available_cpus() if device == "cpu" else None,
        compile=model.compile,
        attention=model.attention,
        cuda_graphs=model.cuda_graphs,
        log_level=log_level,
        log_format=log_format,
    )
    info = ModelInfo(
        name=model.name,
        max_model_len=max_model_len,
        engine="native",
        source=model.model,
        created=int(time.time()),
        precision=quantization or precision.dtype,
        vocab_size=setup.num_valid_tokens,
        max_num_seqs=max_num_seqs,
        max_batch_size=model.max_batch_size or max_num_seqs,
    )
    return NativePlan(
        setup=setup,
        info=info,
        defaults=_defaults(model, generation),
        embedding=embedding,
        chat_template=model.chat_template,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
    )


def load_tokenizer(directory: Path, override: str | None, chat_template: str | None) -> Tokenizer:
    """The model's own tokenizer, or `override`: a path, or another source to resolve."""
    place = None
    if override is not None:
        place = Path(override) if Path(override).exists() else resolve(override).directory
    return Tokenizer.load(directory, tokenizer=place, chat_template=chat_template)


def make_grammars(tokenizer: Tokenizer, setup: CoreSetup) -> GrammarCompiler | None:
    """None where the model has no EOS: a constrained output could not end."""
    if not setup.eos_token_ids:
        return None
    return GrammarCompiler(tokenizer.to_json(), setup.num_valid_tokens, setup.eos_token_ids)


def memory_needs(
    spec: ModelSpec,
    dtype: str,
    quantization: str | None,
    max_num_batched_tokens: int,
    runner: RunnerName = "torch",
    kv_cache_dtype: KVCacheDType = "auto",
) -> MemoryNeeds:
    """Bytes by the spec. Workspace: activations of a full step and float32 logits of 64 rows, with half as reserve."""
    step = max_num_batched_tokens * (2 * spec.hidden_size + 2 * spec.intermediate_size) * 4 * 2
    logits = 64 * spec.vocab_size * 4
    # On a CPU the head is packed for its kernel, beside the embedding that it is tied to.
    packed_head = spec.vocab_size * spec.hidden_size * int(DTYPE_BYTES[dtype]) if spec.tie_word_embeddings else 0
    weights = spec.weight_bytes(quantization or dtype)
    if runner == "compiled":
        weights, packed_head = compiled_weight_bytes(spec, quantization), 0
    if runner == "openvino" and (quantization is not None or dtype != spec.dtype):
        # What it packs stays behind the packed copy, unless that is the mapped file itself.
        weights *= 2
    return MemoryNeeds(
        weight_bytes=weights + packed_head,
        kv_bytes_per_token=kv_format(runner, dtype, quantization, kv_cache_dtype).bytes_per_token(spec),
        workspace_bytes=(step + logits) * 3 // 2,
        alternatives={name: spec.weight_bytes(name) for name in ("bfloat16", *QUANTIZATIONS)},
    )


def compiled_weight_bytes(spec: ModelSpec, quantization: str | None) -> int:
    """Bounds what the compiled runner packs: scales beside each group, both ends in 8 bits, one of them where tied."""
    if quantization is None:
        return spec.weight_bytes("float32")
    ends = spec.vocab_size * spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
    in_8_bits, in_4_bits = 1 + 4 / 64, 1 / 2 + 4 / 32
    inner = in_4_bits if quantization == "int4" else in_8_bits
    return math.ceil(ends * in_8_bits + (spec.num_parameters - ends) * inner)


def _refuse_foreign_options(model: ModelConfig) -> None:
    """Options that would have no effect here are errors, not silence."""
    for key, unset, advice in (
        ("tensor_parallel_size", 1, "choose `engine: vllm` for several GPUs"),
        ("replicas", 1, "start one server per replica"),
        ("device_map", None, "use `device`"),
        ("engine_args", {}, "the native engine's options are keys of the model section"),
        ("url", None, "`url` belongs to engines that run elsewhere"),
    ):
        if getattr(model, key) != unset:
            raise ConfigError(f"{key}: the native engine does not support it; {advice}")


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if has_nvidia_gpu() else "cpu"
    if name == "cpu" or name.startswith("cuda"):
        return name
    raise ConfigError(f"device: {name!r} is unknown to the native engine; use auto, cpu, cuda or cuda:<number>")


def _quantization(model: ModelConfig, spec: ModelSpec) -> str | None:
    wanted = model.resolved_quantization
    if spec.quantization_config is not None:
        method = spec.quantization_config.get("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{model.model}: the checkpoint is quantized ({method}), which the native engine cannot load yet; use the "
            "original checkpoint, or an engine that can (vllm)"
        )
    if wanted is not None and wanted not in QUANTIZATIONS:
        raise UnsupportedModelError(
            f"quantization: {wanted!r} is not known to the native engine; it has {', '.join(QUANTIZATIONS)}. "
            "awq, gptq and fp8 checkpoints need another engine, such as vllm."
        )
    return wanted


def _runner(
    model: ModelConfig, spec: ModelSpec, kind: ModelKind, device: str, precision: str, quantization: str | None
) -> RunnerName:
    if kind == "encoder":
        return "torch"
    wanted = Wanted(
        model_type=spec.model_type,
        head_dim=spec.head_dim,
        device=device,
        precision=precision,
        quantization=quantization,
        block_size=model.block_size,
        kv_cache_dtype=model.kv_cache_dtype,
    )
    choice = choose_runner(model.runner, wanted, Machine.this())
    logger.info("%s: runner: %s, because %s", model.name, choice.name, choice.reason)
    return choice.name


def _speculation(model: ModelConfig) -> SpeculationSetup | None:
    wanted = model.speculation
    if wanted.method == "none":
        return None
    return SpeculationSetup(num_tokens=wanted.num_tokens, max_ngram=wanted.max_ngram, min_ngram=wanted.min_ngram)


def _num_kv_blocks(
    model: ModelConfig, needs: MemoryNeeds, max_model_len: int, max_num_seqs: int, block_size: int
) -> int:
    memory = plan_memory(
        needs,
        available_bytes=available_memory_bytes(),
        utilization=model.gpu_memory_utilization,
        kv_cache_bytes=model.kv_cache_memory,
        default_kv_bytes=None if "gpu_memory_utilization" in model.model_fields_set else DEFAULT_CPU_KV_BYTES,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
    )
    logger.info(
        "%s: KV cache of %.2f GiB, %d tokens: %s",
        model.name,
        memory.kv_cache_bytes / 2**30,
        memory.num_kv_blocks * block_size,
        memory.reason,
    )
    return memory.num_kv_blocks


def _max_model_len(model: ModelConfig, spec: ModelSpec, advised: int | None = None) -> int:
    """`advised`: what the model's files say is the longest input it is good for; the config may go beyond it."""
    own = spec.max_position_embeddings
    if model.max_model_len is None:
        return min(own, advised or own)
    if model.max_model_len > own:
        raise ConfigError(
            f"max_model_len is {model.max_model_len}, but {model.model} was made for at most {own} positions; "
            f"set it to {own} or less"
        )
    return model.max_model_len


def _eos_token_ids(generation: GenerationConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Every id that ends an answer: generation_config.json, config.json, and the tokenizer's own."""
    own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return tuple(dict.fromkeys((*generation.eos_token_ids, *own)))


def _defaults(model: ModelConfig, generation: GenerationConfig) -> GenerationDefaults:
    """The YAML's `generation:` above generation_config.json."""
    said = {key: value for key, value in model.generation.model_dump().items() if value is not None}
    below = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "min_p": generation.min_p,
        "repetition_penalty": generation.repetition_penalty,
        "max_tokens": generation.max_new_tokens,
    }
    return GenerationDefaults(**{**below, **said})
