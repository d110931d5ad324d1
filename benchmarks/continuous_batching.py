"""What batching gains: 64 requests one at a time and 16 at a time, and transformers' single stream beside them.

    python benchmarks/continuous_batching.py [--rounds 1] [--json FILE]

Prompts of 16–512 tokens, outputs of 16–256, greedy, fixed seed, through the real server over HTTP. The single stream of
transformers runs on the same weights in the same run, on a subset, with its own KV cache and greedy search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.e2e.server import running_server

from llm_inference.sources.resolve import DEFAULT_SOURCE, resolve
from llm_inference.tools.bench import BenchSettings, Lengths, run

NUM_REQUESTS = 64
CONCURRENCY = 16


def serve_rate(url: str, concurrency: int) -> dict:
    """Output tokens per second and latencies of the whole workload at one concurrency."""
    report = run(
        BenchSettings(
            url=url,
            endpoint="completions",
            num_prompts=NUM_REQUESTS,
            input_len=Lengths.parse("16:512"),
            output_len=Lengths.parse("16:256"),
            concurrency=concurrency,
            seed=1,
            warmup=2,
        ),
        progress=True,
    )
    assert report.ok, report.failures
    return json.loads(report.to_json())


def transformers_rate(num_tokens: int = 128) -> float:
    """Output tokens per second of one greedy stream in transformers, at a typical prompt of 264 tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve(DEFAULT_SOURCE).directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    torch.manual_seed(0)
    rates = []
    for _ in range(3):
        ids = torch.randint(1000, 20000, (1, 264))
        begun = time.perf_counter()
        with torch.inference_mode():
            options = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0}
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        rates.append(num_tokens / (time.perf_counter() - begun))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for number in range(arguments.rounds):
        # A fresh server each time: nothing of the prompts is in a cache.
        with running_server() as server:
            alone = serve_rate(server.url, 1)
        with running_server() as server:
            batched = serve_rate(server.url, CONCURRENCY)
        results.append({"alone": alone, "batched": batched, "transformers_tok_s": transformers_rate()})
        print(json.dumps({"round": number, **summary(results[-1])}))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


def summary(result: dict) -> dict[str, float]:
    alone = result["alone"]["output_tokens_per_s"]
    batched = result["batched"]["output_tokens_per_s"]
    return {
        "one_at_a_time_tok_s": round(alone, 1),
        "sixteen_at_a_time_tok_s": round(batched, 1),
        "gain": round(batched / alone, 2),
        "transformers_tok_s": round(result["transformers_tok_s"], 1),
        "one_at_a_time_over_transformers": round(alone / result["transformers_tok_s"], 2),
    }


if __name__ == "__main__":
    main()
