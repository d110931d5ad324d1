"""A benchmark client for any OpenAI-compatible server: `run(BenchSettings(url=…)) -> Report`.

    settings → workload (lengths, prompts | dataset) → load (closed loop | arrivals) → api → reading → timeline
                                                                                                  ↓
                                                          plot, table ← report ← statistics ← timelines

The rooms' rule of thumb: what does arithmetic does no input or output, and what talks to the server does no arithmetic.
Knows nothing of the server's inside: what is measured is what a client sees. Imports no torch.
"""

from llm_inference.tools.bench.benchmark import run, run_async
from llm_inference.tools.bench.lengths import Lengths
from llm_inference.tools.bench.report import Report
from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.slo import Slo

__all__ = ["BenchSettings", "Lengths", "Report", "Slo", "run", "run_async"]
