"""Complete many prompts inside this process, without a server, and write one JSON object a line.

    python examples/offline_batch.py [FILE]

FILE has a prompt a line; without it a few are built in. The list may be as long as you like: it is split into batches
of `max_batch_size` prompts that run together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from llm_inference import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "The capital of Italy is",
    "The opposite of hot is",
    "2 + 2 =",
    "def factorial(n):",
]


def main() -> None:
    prompts = Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else PROMPTS
    with LLM(max_model_len=2048, max_batch_size=4) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=16, temperature=0))
    for prompt, output in zip(prompts, outputs, strict=True):
        line = {"prompt": prompt, "text": output.text, "finish_reason": output.outputs[0].finish_reason}
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
