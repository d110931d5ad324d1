"""An engine core on a tiny model, and a way to run requests through it to the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llm_inference.engine.types import FinishReason, GenerationDefaults, SamplingParams
from llm_inference.native.core import EngineCore
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.request import CoreRequest, SampledToken
from llm_inference.native.runner.base import Runner
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.native.sampler import Sampler
from llm_inference.native.scheduler import Scheduler
from llm_inference.native.scheduler_config import SchedulerConfig
from llm_inference.native.speculation import SpeculationSetup, Speculator
from tests.native.tiny_models import CPU, TinyModel

BLOCK_SIZE = 4


def make_core(
    model: TinyModel,
    *,
    num_blocks: int = 200,
    prefix_caching: bool = True,
    speculation: SpeculationSetup | None = None,
    runner: Runner | None = None,
    block_size: int = BLOCK_SIZE,
    **limits: int,
) -> EngineCore:
    """`runner`: fresh, in place of torch's; `block_size` is what it likes."""
    runner = runner or TorchRunner(model.load(), block_size=block_size)
    runner.allocate_kv_cache(num_blocks)
    settings = {"max_num_seqs": 16, "max_num_batched_tokens": 64, "max_model_len": 256} | limits
    scheduler = Scheduler(
        SchedulerConfig(block_size=block_size, **settings),
        KVCacheManager(num_blocks, block_size, prefix_caching),
        Speculator(speculation),
    )
    return EngineCore(runner, scheduler, Sampler(runner.vocab_size, CPU), None, block_size=block_size)


def make_request(request_id: str, prompt: Iterable[int], *, eos: tuple[int, ...] = (), **sampling: Any) -> CoreRequest:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **sampling}).resolve(GenerationDefaults())
    return CoreRequest(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=params, eos_token_ids=eos)


@dataclass
class Outcome:
    """What came of one choice."""

    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


def run(core: EngineCore, requests: Iterable[CoreRequest], *, max_steps: int = 20_000) -> dict[str, list[Outcome]]:
    """All requests at once, to the end: request id → its choices. Fails on a request that fails or never ends."""
    outcomes: dict[str, dict[int, Outcome]] = defaultdict(lambda: defaultdict(Outcome))
    for request in requests:
        core.add(request)
    for _ in range(max_steps):
        if not core.has_work:
            break
        result = core.step()
        assert not result.failures
        for output in result.outputs:
            outcome = outcomes[output.request_id][output.index]
            assert outcome.finish_reason is None, "nothing follows a finish reason"
            outcome.tokens += output.tokens
            outcome.finish_reason = output.finish_reason
            outcome.num_cached_tokens = output.num_cached_tokens
    assert not core.has_work, "the core never came to an end"
    stats = core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks, "blocks are left behind"
    for request_id, choices in outcomes.items():
        assert all(outcome.finish_reason for outcome in choices.values()), request_id
        assert not core.is_live(request_id)
    return {request_id: [choices[index] for index in sorted(choices)] for request_id, choices in outcomes.items()}
