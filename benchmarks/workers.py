"""What a second gateway worker costs or gains: the same requests through one worker and through two, on one core each.

    python benchmarks/workers.py [--rounds 3] [--num-prompts 200] [--concurrency 16] [--json FILE]

Short prompts and outputs, so that the gateway's share of the work is as large as it gets. Each round starts both
servers anew, the first one of a round by turns; on a machine with few cores a second worker also takes time from the
core, and that is part of the answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.e2e.server import running_server

from llm_inference.tools.bench import BenchSettings, Lengths, run


def measure(num_workers: int, num_prompts: int, concurrency: int) -> dict:
    """The report of the whole workload; nothing may fail."""
    with running_server(["--workers", str(num_workers)]) as server:
        report = run(
            BenchSettings(
                url=server.url,
                endpoint="completions",
                num_prompts=num_prompts,
                input_len=Lengths.parse("16:64"),
                output_len=Lengths.parse("16:64"),
                concurrency=concurrency,
                seed=1,
                warmup=8,
            ),
            progress=sys.stderr.isatty(),
        )
    assert report.ok, report.failures
    return json.loads(report.to_json())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[int, list[dict]] = {1: [], 2: []}
    for number in range(arguments.rounds):
        for num_workers in (1, 2) if number % 2 == 0 else (2, 1):
            result = measure(num_workers, arguments.num_prompts, arguments.concurrency)
            results[num_workers].append(result)
            print(json.dumps({"round": number, "workers": num_workers, "output_tok_s": rate(result)}), flush=True)
    one, two = (statistics.median(map(rate, results[num_workers])) for num_workers in (1, 2))
    summary = {"one_worker_tok_s": one, "two_workers_tok_s": two, "two_over_one": round(two / one, 3)}
    print(json.dumps(summary))
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": summary, "rounds": results}, indent=1))


def rate(result: dict) -> float:
    return round(result["output_tokens_per_s"], 1)


if __name__ == "__main__":
    main()
