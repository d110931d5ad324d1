"""What speculation by prompt lookup gains where text repeats, and what it costs where nothing does.

    python benchmarks/speculation.py [--runner auto] [--precision auto] [--concurrency 1 8] [--rounds 3]
                                     [--only editing|free] [--json FILE]

Two models in one process, one with `speculation: {method: ngram}`, one without, by turns on the same prompts.

editing   a text of some 300 tokens, to be written again: greedy, 192 tokens
free      short prompts, drawn at temperature 1 with seeds: hardly three tokens in a row are ever said again
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from llm_inference import LLM, SamplingParams

REPOSITORY = Path(__file__).resolve().parent.parent
NUM_TOKENS = 192
SUBJECTS = ("a lighthouse", "two brothers", "the last train", "a garden", "an old map", "the sea", "a violin", "winter")


def editing(number: int) -> tuple[str, SamplingParams]:
    words = " ".join((REPOSITORY / "docs" / "structure.md").read_text().split()).split(" ")
    text = " ".join(words[700 + 150 * number : 850 + 150 * number])
    prompt = f"A text:\n\n{text}\n\nThe same text again, with its mistakes corrected:\n\n{text[:60]}"
    return prompt, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def free(number: int) -> tuple[str, SamplingParams]:
    prompt = f"A story about {SUBJECTS[number % len(SUBJECTS)]}, number {number}."
    return prompt, SamplingParams(temperature=1.0, seed=number, max_tokens=NUM_TOKENS, ignore_eos=True)


WORKLOADS = {"editing": editing, "free": free}


def measure(llm: LLM, workload: str, first: int, concurrency: int) -> tuple[dict[str, float], list[tuple[int, ...]]]:
    """Output tokens per second of `concurrency` requests at once, prompts included; and what was said."""
    prompts, sampling = zip(*(WORKLOADS[workload](first + i) for i in range(concurrency)), strict=True)
    before = llm._core.stats()
    begun = time.perf_counter()
    outputs = llm.generate(prompts, sampling)
    seconds = time.perf_counter() - begun
    after = llm._core.stats()
    drafted = after.num_drafted_tokens - before.num_drafted_tokens
    figures = {
        "tok_s": sum(len(output.token_ids) for output in outputs) / seconds,
        "steps": after.num_steps - before.num_steps,
        "drafted": drafted,
        "accepted": after.num_accepted_tokens - before.num_accepted_tokens,
    }
    return figures, [output.token_ids for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(WORKLOADS))
    parser.add_argument("--num-tokens", type=int, default=8, help="`speculation.num_tokens`")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    options = {"runner": args.runner, "precision": args.precision, "max_model_len": 1024, "kv_cache_memory": "1GiB"}
    models = {
        method: LLM(
            speculation={"method": method, "num_tokens": args.num_tokens},
            enable_prefix_caching=False,
            progress=False,
            **options,
        )
        for method in ("none", "ngram")
    }
    rows = []
    for workload in [args.only] if args.only else WORKLOADS:
        for concurrency in args.concurrency:
            rounds: dict[str, list[dict[str, float]]] = {method: [] for method in models}
            num_equal = 0
            for number in range(args.rounds):
                said = {}
                for method, llm in models.items():
                    figures, said[method] = measure(llm, workload, number, concurrency)
                    rounds[method].append(figures)
                num_equal += sum(a == b for a, b in zip(said["none"], said["ngram"], strict=True))
            ratios = [on["tok_s"] / off["tok_s"] for off, on in zip(rounds["none"], rounds["ngram"], strict=True)]
            row = {
                "workload": workload,
                "concurrency": concurrency,
                "off_tok_s": round(statistics.median(r["tok_s"] for r in rounds["none"]), 1),
                "on_tok_s": round(statistics.median(r["tok_s"] for r in rounds["ngram"]), 1),
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
                "steps_off": sum(r["steps"] for r in rounds["none"]),
                "steps_on": sum(r["steps"] for r in rounds["ngram"]),
                "drafted": sum(r["drafted"] for r in rounds["ngram"]),
                "accepted": sum(r["accepted"] for r in rounds["ngram"]),
                "equal": f"{num_equal}/{args.rounds * concurrency}",
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json:
        args.json.write_text(json.dumps({**vars(args), "json": str(args.json), "rows": rows}, indent=1, default=str))


if __name__ == "__main__":
    main()
