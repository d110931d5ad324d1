"""What the tests of scheduler and KV cache share: short ways to make requests and to drive steps without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from llm_inference.engine.types import SamplingParams
from llm_inference.native.batch import Batch, ScheduledSequence
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.request import CoreRequest, SampledToken, Sequence
from llm_inference.native.scheduler import Scheduler
from llm_inference.native.scheduler_config import SchedulerConfig
from llm_inference.native.speculation import SpeculationSetup, Speculator, num_kept

#: Chooses the next token of a sequence.
Choose = Callable[[Sequence], int]


def request(
    request_id: str,
    prompt: Iterable[int],
    *,
    max_tokens: int = 4,
    priority: int = 0,
    cache_salt: str = "",
    eos_token_ids: tuple[int, ...] = (),
    n: int = 1,
    best_of: int | None = None,
    prompt_logprobs: int | None = None,
    stop_token_ids: tuple[int, ...] = (),
) -> CoreRequest:
    sampling = SamplingParams(
        max_tokens=max_tokens, n=n, best_of=best_of, prompt_logprobs=prompt_logprobs, stop_token_ids=stop_token_ids
    )
    return CoreRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=sampling,
        eos_token_ids=eos_token_ids,
        priority=priority,
        cache_salt=cache_salt,
    )


def sequence(prompt: Iterable[int], **options: object) -> Sequence:
    """A waiting sequence on its own, for tests of the KV cache alone."""
    core_request = request("r", prompt, **options)  # type: ignore[arg-type]
    tokens = list(core_request.prompt_token_ids)
    return Sequence(core_request, 0, tokens, 0.0, len(tokens))


class Harness:
    """A scheduler with a clock that moves one second per step and a model that says `choose(sequence)`."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 200,
        max_prefill_tokens_with_decodes: int | None = None,
        priority_ageing_s: float = 1e6,
        enable_prefix_caching: bool = True,
        admission_window: int = 32,
        speculation: SpeculationSetup | None = None,
    ) -> None:
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                block_size=block_size,
                max_prefill_tokens_with_decodes=max_prefill_tokens_with_decodes,
                priority_ageing_s=priority_ageing_s,
                admission_window=admission_window,
            ),
            self.kv,
            Speculator(speculation),
        )
        self.now = 0.0
        self.choose: Choose = lambda sequence: 1000 + len(sequence.token_ids)
        self.batch = Batch()
        #: Everything said so far, by (request id, choice).
        self.outputs: dict[tuple[str, int], list[SequenceOutput]] = {}

    def add(self, request_id: str, prompt: Iterable[int], **options: object) -> None:
        self.scheduler.add(request(request_id, prompt, **options), self.now)  # type: ignore[arg-type]

    def schedule(self) -> dict[str, int]:
        """Schedule one step; tokens by request (the first choice under the plain id, others as `id/index`)."""
        self.now += 1.0
        self.batch = self.scheduler.schedule(self.now)
        return {_name(item.sequence): item.num_tokens for item in self.batch.scheduled}

    def update(self) -> list[SequenceOutput]:
        sampled = [self._sample(item) for item in self.batch.scheduled]
        outputs = self.scheduler.update(self.batch, sampled, self.now)
        for output in outputs:
            self.outputs.setdefault((output.request_id, output.index), []).append(output)
        return outputs

    def _sample(self, item: ScheduledSequence) -> list[SampledToken]:
        if not item.drafted:
            return [SampledToken(token_id=self.choose(sampler)) for sampler in item.samplers]
        known = item.sequence
        tokens = []
        for length in range(len(item.drafted) + 1):
            ids = [*known.token_ids, *item.drafted[:length]]
            tokens.append(self.choose(Sequence(known.request, known.index, ids, 0.0, known.num_prompt_tokens)))
        return [SampledToken(token_id=token) for token in tokens[: num_kept(item.drafted, tokens)]]

    def step(self) -> dict[str, int]:
        scheduled = self.schedule()
        self.update()
        return scheduled

    def run(self, limit: int = 1000) -> int:
        """Step until nothing is left to do. Returns the number of steps; fails after `limit`."""
        for count in range(limit):
            if not self.scheduler.has_work:
                return count
            assert self.step(), "there is work, but the step is empty"
        raise AssertionError(f"not finished after {limit} steps")

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [token.token_id for output in self.outputs.get((request_id, index), []) for token in output.tokens]

    def finish_reasons(self, request_id: str, index: int = 0) -> list[str]:
        """Every finish reason that was said of a choice; there must be one at most."""
        return [o.finish_reason for o in self.outputs.get((request_id, index), []) if o.finish_reason is not None]


def _name(sequence: Sequence) -> str:
    return sequence.request.request_id + (f"/{sequence.index}" if sequence.index else "")
