"""Throughput against concurrency, and time to the first token against the length of the prompt, without a server.

    python benchmarks/scaling.py [--runner auto] [--precision auto] [--concurrency 1 2 4 8 16 32 64]
                                 [--prompts 128 256 512 1024 2048 4096 8064] [--only throughput|ttft]
                                 [--rounds 3] [--json FILE]

throughput  so many requests at once, 64 tokens in and 64 out, greedy: output tokens per second, prompts included
ttft        one request alone, one token out: seconds from the call to the token, and prompt tokens per second

Medians of the rounds, after one round that does not count. Prompts are random tokens, never the same twice, and the
prefix cache is off.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from llm_inference import LLM, SamplingParams

NUM_IN, NUM_OUT = 64, 64


def timed(llm: LLM, prompts: list[tuple[int, ...]], max_tokens: int) -> float:
    """Seconds that all of `prompts` take together."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    begun = time.perf_counter()
    outputs = llm.generate(prompts, sampling)
    seconds = time.perf_counter() - begun
    assert all(len(output.token_ids) == max_tokens for output in outputs)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8064])
    parser.add_argument("--only", choices=["throughput", "ttft"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    rng = random.Random(0)
    llm = LLM(
        args.model,
        runner=args.runner,
        precision=args.precision,
        max_num_seqs=max(args.concurrency),
        enable_prefix_caching=False,
        progress=False,
    )
    vocab_size, longest = llm.info.vocab_size or 1000, llm.info.max_model_len

    def prompt(num_tokens: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size // 2, vocab_size) for _ in range(num_tokens))

    result: dict[str, object] = {"runner": llm._report.runner, "precision": llm._report.precision}
    print(json.dumps(result))
    if args.only != "ttft":
        rows = []
        for concurrency in args.concurrency:
            seconds = [
                timed(llm, [prompt(NUM_IN) for _ in range(concurrency)], NUM_OUT) for _ in range(1 + args.rounds)
            ]
            rates = [concurrency * NUM_OUT / s for s in seconds[1:]]
            rows.append({"concurrency": concurrency, **spread("output_tok_s", rates)})
            print(json.dumps(rows[-1]), flush=True)
        result["throughput"] = rows
    if args.only != "throughput":
        rows = []
        for length in args.prompts:
            if length >= longest:
                print(json.dumps({"prompt_tokens": length, "skipped": f"the model holds {longest} tokens"}))
                continue
            seconds = [timed(llm, [prompt(length)], 1) for _ in range(1 + args.rounds)][1:]
            rate = round(length / statistics.median(seconds), 1)
            rows.append({"prompt_tokens": length, **spread("ttft_s", seconds), "prompt_tok_s": rate})
            print(json.dumps(rows[-1]), flush=True)
        result["ttft"] = rows
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    figures = {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    return {key: round(value, 3) for key, value in figures.items()}


if __name__ == "__main__":
    main()
