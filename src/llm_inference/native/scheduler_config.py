"""The limits of a step and of a sequence, checked against each other and against requests.

Knows nothing of how they are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_inference.errors import ConfigError, ContextLengthError, InvalidRequestError
from llm_inference.native.request import CoreRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of a sequence. Raises `ConfigError` when they contradict each other."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    #: Prompt tokens in a step that also decodes: bounds the gap between two tokens of a stream. None: up to 256.
    max_prefill_tokens_with_decodes: int | None = None
    #: The context at which a token's attention takes as long as all else; chunks beside decodes shrink towards the end
    #: of a long prompt accordingly, so that all take about as long. None: they do not.
    context_that_doubles_cost: int | None = None
    #: Seconds of waiting that are worth one priority level. Infinity: strict priorities.
    priority_ageing_s: float = 30.0
    #: How many waiting sequences a step looks at, from the first.
    admission_window: int = 32

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "admission_window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.", param=name)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is less than max_num_seqs "
                f"({self.max_num_seqs}), but a step must hold one token of each running sequence; "
                "raise the first or lower the second.",
                param="max_num_batched_tokens",
            )
        if self.max_prefill_tokens_with_decodes is not None and self.max_prefill_tokens_with_decodes < 1:
            raise ConfigError(
                f"max_prefill_tokens_with_decodes is {self.max_prefill_tokens_with_decodes}; it must be at least 1, "
                "else no prompt is computed while a stream runs.",
                param="max_prefill_tokens_with_decodes",
            )
        if not self.priority_ageing_s > 0:
            raise ConfigError(
                f"priority_ageing_s is {self.priority_ageing_s}; it must be above 0.", param="priority_ageing_s"
            )

    def prefill_tokens_with_decodes(self, context: int) -> int:
        """Prompt tokens beside decodes, where the longest prompt that is being computed has `context` tokens behind it.

        At least a sixteenth of the limit, so that a long prompt ends.
        """
        limit = self.max_prefill_tokens_with_decodes
        limit = min(self.max_num_batched_tokens, 256 if limit is None else limit)
        if self.context_that_doubles_cost is None:
            return limit
        return max(int(limit / (1 + context / self.context_that_doubles_cost)), -(-limit // 16))

    def check(self, request: CoreRequest, num_slots: int) -> int:
        """The number of choices of a request that can run, where the KV cache holds `num_slots` tokens.

        Raises `InvalidRequestError` or `ContextLengthError` for one that never can.
        """
        sampling = request.sampling
        num_choices = max(sampling.n, sampling.best_of or 1, sampling.num_beams)
        if not request.prompt_token_ids:
            raise InvalidRequestError("The prompt has no tokens; send at least one.", param="prompt")
        if num_choices > self.max_num_seqs:
            raise InvalidRequestError(
                f"{num_choices} choices are asked for, but this server runs at most {self.max_num_seqs} "
                "sequences at a time (max_num_seqs); ask for fewer.",
                param="n" if sampling.n == num_choices else "best_of",
            )
        num_prompt = len(request.prompt_token_ids)
        num_least = num_prompt + (0 if sampling.max_tokens == 0 else 1)
        if num_least > self.max_model_len:
            raise ContextLengthError(
                f"The model's context length is {self.max_model_len} tokens, but the prompt has {num_prompt} "
                "and leaves no room for an answer; shorten the prompt.",
                param="prompt",
            )
        if num_least > num_slots:
            raise ContextLengthError(
                f"The server's KV cache holds {num_slots} tokens, but the prompt has {num_prompt} and leaves "
                "no room for an answer; shorten the prompt, or start the server with more kv_cache_memory.",
                param="prompt",
            )
        return num_choices
