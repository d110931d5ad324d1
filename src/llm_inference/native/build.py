"""From a `CoreSetup` to a core that is ready to step: load, allocate, join. Imports torch."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from llm_inference.errors import ConfigError, StartupError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.core import Core, EngineCore
from llm_inference.native.encoder_core import EncoderCore
from llm_inference.native.grammar import GrammarCompiler
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.loader import load_encoder, resolve_dtype
from llm_inference.native.plan import load_tokenizer, make_grammars
from llm_inference.native.runner import torch_build
from llm_inference.native.runner.choice import BLOCK_SIZES
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.native.runner.warm_up import warm_up
from llm_inference.native.sampler import Sampler
from llm_inference.native.scheduler import Scheduler
from llm_inference.native.scheduler_config import SchedulerConfig
from llm_inference.native.setup import CoreSetup
from llm_inference.native.speculation import Speculator
from llm_inference.native.stage_clock import StageClock
from llm_inference.native.wire import CoreReport

if TYPE_CHECKING:
    from llm_inference.native.runner.compiled_runner import CompiledRunner
    from llm_inference.native.runner.openvino_runner import OpenVINORunner

logger = logging.getLogger(__name__)


def build_core(setup: CoreSetup, clock: StageClock | None = None) -> tuple[Core, CoreReport]:
    """Load the model and allocate its cache. `clock` may know stages before this one. Raises `StartupError`."""
    clock = clock or StageClock()
    if setup.num_threads is not None:
        torch.set_num_threads(setup.num_threads)
    device = _device(setup.device)
    directory = Path(setup.model_dir)
    spec = ModelSpec.from_directory(directory)
    dtype, reason = resolve_dtype(setup.precision, spec, device)
    if setup.precision == "auto":
        logger.info("computing in %s on %s: %s", str(dtype).removeprefix("torch."), device, reason)
    if setup.kind == "encoder":
        return _build_encoder(setup, spec, dtype, device, clock)
    return _build_decoder(setup, spec, dtype, device, clock)


def _build_encoder(
    setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, device: torch.device, clock: StageClock
) -> tuple[EncoderCore, CoreReport]:
    encoder = load_encoder(
        Path(setup.model_dir), spec, dtype=dtype, device=device, quantization=setup.quantization, progress=False
    )
    clock.end("weights")
    core = EncoderCore(
        encoder,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        max_model_len=setup.max_model_len,
    )
    report = CoreReport(
        precision=setup.quantization or str(dtype).removeprefix("torch."),
        num_kv_blocks=0,
        block_size=setup.block_size or BLOCK_SIZES["torch"],
        weight_bytes=encoder.num_bytes,
        kv_cache_bytes=0,
        runner=f"torch on {device}",
        load_s=_rounded(clock),
    )
    logger.info("ready in %s", clock)
    return core, report


def _build_decoder(
    setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, device: torch.device, clock: StageClock
) -> tuple[EngineCore, CoreReport]:
    directory = Path(setup.model_dir)
    name = str(dtype).removeprefix("torch.")
    with ThreadPoolExecutor(1, thread_name_prefix="grammars") as beside:
        # Much of it is done outside the interpreter, as is much of loading.
        loading_grammars = beside.submit(_warm_grammars, directory, setup)
        parts = torch_build.choose_parts(setup, spec, dtype, device) if setup.runner == "torch" else None
        block_size = parts.attention.block_size if parts is not None else setup.block_size or BLOCK_SIZES[setup.runner]
        runner = _runner(setup, parts, spec, dtype, device, clock)
        num_blocks = setup.num_kv_blocks or torch_build.blocks_on_gpu(parts, setup, spec, dtype, device)
        runner.allocate_kv_cache(num_blocks)
        clock.end("kv_cache")
        grammars = loading_grammars.result()
        clock.end("grammars")
    if isinstance(runner, TorchRunner):
        assert parts is not None
        parts = torch_build.start(runner, parts, setup, device, num_blocks)
    else:
        warm_up(runner, block_size=block_size, num_blocks=num_blocks, max_tokens=setup.max_num_batched_tokens)
    clock.end("compile" if setup.compile else "warm_up")
    kv = KVCacheManager(num_blocks, block_size, setup.enable_prefix_caching)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            max_model_len=setup.max_model_len,
            block_size=block_size,
            max_prefill_tokens_with_decodes=setup.max_prefill_tokens_with_decodes,
            context_that_doubles_cost=spec.context_that_doubles_cost,
        ),
        kv,
        Speculator(setup.speculation),
    )
    core = EngineCore(
        runner,
        scheduler,
        Sampler(runner.vocab_size, device, num_valid_tokens=setup.num_valid_tokens),
        grammars,
        block_size=block_size,
    )
    report = CoreReport(
        precision=setup.quantization or name,
        num_kv_blocks=num_blocks,
        block_size=block_size,
        weight_bytes=runner.weight_bytes,
        kv_cache_bytes=num_blocks * runner.kv_block_bytes,
        runner=f"{setup.runner} on {device}{'' if parts is None or device.type == 'cpu' else parts.title}",
        load_s=_rounded(clock),
    )
    logger.info(
        "%s: %s, weights %.2f GiB, KV cache %d blocks of %d tokens (%.2f GiB)",
        directory.name,
        report.precision,
        report.weight_bytes / 2**30,
        num_blocks,
        block_size,
        report.kv_cache_bytes / 2**30,
    )
    logger.info("ready in %s", clock)
    return core, report


def _rounded(clock: StageClock) -> dict[str, float]:
    return {stage: round(seconds, 3) for stage, seconds in clock.stages.items()}


def _runner(
    setup: CoreSetup,
    parts: torch_build.TorchParts | None,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    clock: StageClock,
) -> TorchRunner | OpenVINORunner | CompiledRunner:
    if parts is not None:
        torch_runner = torch_build.load_runner(parts, setup, spec, dtype, device)
        clock.end("weights")
        return torch_runner
    num_threads = setup.num_threads or torch.get_num_threads()
    make = _compiled if setup.runner == "compiled" else _openvino
    runner = make(setup, spec, dtype, num_threads, clock)
    # What is left for torch is sampling: one pool of threads, the runner's.
    torch.set_num_threads(1)
    return runner


def _compiled(
    setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, num_threads: int, clock: StageClock
) -> CompiledRunner:
    from llm_inference.native.runner.compiled_runner import CompiledRunner

    clock.end("imports")
    return CompiledRunner(
        Path(setup.model_dir),
        spec,
        dtype=dtype,
        quantization=setup.quantization,
        kv_cache_dtype=setup.kv_cache_dtype,
        num_threads=num_threads,
        clock=clock,
    )


def _openvino(
    setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, num_threads: int, clock: StageClock
) -> OpenVINORunner:
    try:
        from llm_inference.native.runner.openvino_runner import OpenVINORunner
    except ImportError as exc:
        raise StartupError(
            f"the package openvino cannot be imported ({exc}); install it anew, or set `runner: torch`"
        ) from exc
    clock.end("imports")
    return OpenVINORunner(
        Path(setup.model_dir),
        spec,
        dtype=dtype,
        quantization=setup.quantization,
        kv_cache_dtype=setup.kv_cache_dtype,
        num_threads=num_threads,
        count_nodes=setup.count_nodes,
        clock=clock,
    )


def _warm_grammars(directory: Path, setup: CoreSetup) -> GrammarCompiler | None:
    """None where outputs cannot be constrained: no EOS, or a kind of tokenizer that the grammar library cannot read."""
    grammars = make_grammars(load_tokenizer(directory, setup.tokenizer, None), setup)
    if grammars is not None:
        try:
            grammars.warm_up()
        except UnsupportedModelError as exc:
            logger.warning("no constrained output with this model: %s", exc.message)
            return None
    return grammars


def _device(name: str) -> torch.device:
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device: {name} was asked for (or a GPU was found), but this torch ({torch.__version__}) sees no CUDA "
            "device; install a CUDA build of torch, or set `device: cpu`"
        )
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"device: {name} does not exist; there are {torch.cuda.device_count()} CUDA devices")
    torch.cuda.set_device(device)  # streams and events are those of the current one
    return device
