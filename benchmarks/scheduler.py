"""How long the scheduler itself takes per step, with no model behind it. Prints; judges nothing.

    python benchmarks/scheduler.py [--waiting 1000] [--running 16] [--steps 2000] [--prompt-tokens 16 512]

Requests arrive as fast as they finish, so that the queue keeps its length. Every other prompt starts with one of a few
shared prefixes. `add`, which hashes the prompt, is measured by itself. Times are CPU times of the thread, so that other
work on the machine does not show. Python's garbage collector does, since a full collection walks every waiting prompt;
`--no-gc` leaves it out.
"""

from __future__ import annotations

import argparse
import gc
import random
import time

from llm_inference.engine.types import SamplingParams
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.request import CoreRequest, SampledToken
from llm_inference.native.scheduler import Scheduler
from llm_inference.native.scheduler_config import SchedulerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--running", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=(16, 512), metavar=("LEAST", "MOST"))
    parser.add_argument("--output-tokens", type=int, nargs=2, default=(16, 256), metavar=("LEAST", "MOST"))
    parser.add_argument("--blocks", type=int, default=2048, help="of 16 tokens; few blocks mean preemptions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-gc", action="store_true", help="without the garbage collector")
    options = parser.parse_args()
    if options.no_gc:
        gc.disable()

    rng = random.Random(options.seed)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=options.running, max_num_batched_tokens=2048, max_model_len=8192, block_size=16),
        KVCacheManager(options.blocks, 16),
    )
    stems = [[rng.randrange(49152) for _ in range(options.prompt_tokens[1])] for _ in range(8)]
    names = iter(f"r{number}" for number in range(10**9))

    def arrive(now: float) -> None:
        length = rng.randint(*options.prompt_tokens)
        shared = rng.randrange(length) if rng.random() < 0.5 else 0
        prompt = rng.choice(stems)[:shared] + [rng.randrange(49152) for _ in range(length - shared)]
        sampling = SamplingParams(max_tokens=rng.randint(*options.output_tokens))
        priority = rng.choice((0, 0, 0, 1, 2))
        request = CoreRequest(
            request_id=next(names), prompt_token_ids=tuple(prompt), sampling=sampling, priority=priority
        )
        begin = time.thread_time()
        scheduler.add(request, now)
        adds.append(time.thread_time() - begin)

    adds: list[float] = []
    steps: list[float] = []
    tokens = 0
    for number in range(options.steps):
        now = number * 0.05
        while scheduler.num_waiting < options.waiting:
            arrive(now)
        begin = time.thread_time()
        batch = scheduler.schedule(now)
        scheduled = time.thread_time() - begin
        sampled = [[SampledToken(rng.randrange(49152)) for _ in item.samplers] for item in batch.scheduled]
        begin = time.thread_time()
        scheduler.update(batch, sampled, now)
        steps.append(scheduled + time.thread_time() - begin)
        tokens += batch.num_tokens

    stats = scheduler.stats()
    print(f"{options.steps} steps, {options.waiting} waiting, {options.running} seats, {tokens} tokens scheduled")
    print(
        f"prefix hits {stats.prefix_cache_hits}/{stats.prefix_cache_queries} tokens, "
        f"{stats.num_preemptions} preemptions, {stats.num_evictions} evictions"
    )
    report("schedule + update", steps)
    report("add", adds)


def report(label: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    count = len(ordered)
    figures = {
        "mean": sum(ordered) / count,
        "p50": ordered[count // 2],
        "p99": ordered[count * 99 // 100],
        "max": ordered[-1],
    }
    print(f"{label:>17}: " + ", ".join(f"{name} {value * 1e3:.3f} ms" for name, value in figures.items()))


if __name__ == "__main__":
    main()
