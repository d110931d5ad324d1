"""Everything that decides a benchmark, in one frozen object; a report writes all of it down but the key.

Knows nothing of the command line that may have filled it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.lengths import Lengths
from llm_inference.tools.bench.slo import Slo

Endpoint = Literal["chat", "completions"]

DEFAULT_NUM_PROMPTS = 100
#: Prompts made ready for a closed loop that only a duration bounds.
DEFAULT_NUM_PROMPTS_FOR_DURATION = 1000
DEFAULT_CONCURRENCY = 8
_INPUT_LEN = Lengths.fixed(256)
_OUTPUT_LEN = Lengths.fixed(128)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Raises `ConfigError` for what contradicts itself.

    Load: `concurrency` alone is a closed loop of that many clients; `request_rate` (requests per second) sends on a
    schedule whatever comes back, with `concurrency` then the most that may be in flight; neither is a closed loop of 8.
    """

    url: str
    model: str | None = None  # None: the first that the server lists
    api_key: str | None = None
    endpoint: Endpoint = "chat"

    num_prompts: int | None = None
    input_len: Lengths = _INPUT_LEN
    output_len: Lengths = _OUTPUT_LEN
    prefix_len: int = 0  # tokens in front of every prompt, the same in all, on top of `input_len`
    seed: int = 0
    dataset: Path | None = None
    ignore_eos: bool = True
    continuous_usage: bool = True

    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0  # shape of the gamma intervals; 1: Poisson, below: burstier, above: more regular
    warmup: int = 1
    duration_s: float | None = None
    timeout_s: float = 600.0  # per request

    slo: Slo | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"--url: {self.url!r} is no base URL; write one such as http://127.0.0.1:8000")
        self._least("--num-prompts", self.num_prompts, 1)
        self._least("--prefix-len", self.prefix_len, 0)
        self._least("--seed", self.seed, 0)
        self._least("--concurrency", self.concurrency, 1)
        self._least("--warmup", self.warmup, 0)
        self._positive("--request-rate", self.request_rate)
        self._positive("--burstiness", self.burstiness)
        self._positive("--duration", self.duration_s)
        self._positive("--timeout", self.timeout_s)
        if self.burstiness != 1.0 and self.request_rate is None:
            raise ConfigError("--burstiness would have no effect without --request-rate, which it shapes")
        if self.dataset is not None and self.prefix_len:
            raise ConfigError("--prefix-len would have no effect on the prompts of --dataset; leave one out")

    @property
    def api_url(self) -> str:
        """The base of the OpenAI routes: the URL itself if it ends in a version such as /v1, else with /v1 added."""
        url = self.url.rstrip("/")
        return url if re.search(r"/v\d+$", url) else f"{url}/v1"

    @property
    def root_url(self) -> str:
        """Where servers have the routes that OpenAI's API has not: the URL without its version."""
        return re.sub(r"/v\d+$", "", self.url.rstrip("/"))

    @property
    def max_in_flight(self) -> int | None:
        """None: no limit, as a schedule without `concurrency` has it."""
        if self.concurrency is None and self.request_rate is None:
            return DEFAULT_CONCURRENCY
        return self.concurrency

    def shown(self) -> dict[str, Any]:
        """All settings as JSON has them, without the key."""
        return {
            "url": self.url,
            "model": self.model,
            "endpoint": self.endpoint,
            "num_prompts": self.num_prompts,
            "input_len": str(self.input_len),
            "output_len": str(self.output_len),
            "prefix_len": self.prefix_len,
            "seed": self.seed,
            "dataset": None if self.dataset is None else str(self.dataset),
            "ignore_eos": self.ignore_eos,
            "continuous_usage": self.continuous_usage,
            "concurrency": self.max_in_flight,
            "request_rate": self.request_rate,
            "burstiness": self.burstiness,
            "warmup": self.warmup,
            "duration_s": self.duration_s,
            "timeout_s": self.timeout_s,
            "slo": None if self.slo is None else str(self.slo),
            "temperature": 0,
        }

    @staticmethod
    def _least(name: str, value: int | None, least: int) -> None:
        if value is not None and value < least:
            raise ConfigError(f"{name}: is {value}, must be at least {least}")

    @staticmethod
    def _positive(name: str, value: float | None) -> None:
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name}: is {value}, must be a finite number above 0")
