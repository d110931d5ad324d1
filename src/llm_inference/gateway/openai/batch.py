"""`POST /batch_completions`: a list of prompts in, a list of `{text, tokens_used, finish_reason}` out, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.types import Delta, FinishReason, GenerateRequest, ModelInfo, Usage
from llm_inference.gateway.generation import WholeReply
from llm_inference.gateway.openai import replies
from llm_inference.gateway.openai.intake import Envelope, log_prompt, take_in
from llm_inference.gateway.openai.protocol import BatchCompletionRequest
from llm_inference.gateway.openai.sampling import sampling_params
from llm_inference.gateway.openai.values import fail

#: Of models that say nothing of their batches.
DEFAULT_MAX_BATCH_SIZE = 128


async def batch_completions(request: Request) -> Response:
    intake = await take_in(request, BatchCompletionRequest)
    prompts = intake.fields.prompts
    work = generate_requests(intake.fields, Envelope.new("batch", intake), intake.engine.info)
    await log_prompt(intake, list(prompts))
    return WholeReply(intake.gateway, intake.engine, work, BatchAnswer(len(prompts)))


def generate_requests(fields: BatchCompletionRequest, envelope: Envelope, info: ModelInfo) -> list[GenerateRequest]:
    """One engine request per prompt; they form one batch. Raises `InvalidRequestError` over the model's batch size."""
    limit = info.max_batch_size or info.max_num_seqs or DEFAULT_MAX_BATCH_SIZE
    if len(fields.prompts) > limit:
        raise fail(
            "prompts",
            f"holds {len(fields.prompts)} prompts; a batch of {info.name!r} holds at most {limit} (max_batch_size). "
            "Send several batches.",
        )
    if fields.max_tokens == 0:
        raise fail("max_tokens", "must be at least 1.")
    sampling = sampling_params(fields, info)
    return [
        GenerateRequest(
            request_id=f"{envelope.id}-{place}",
            model=envelope.model,
            prompt=prompt,
            sampling=sampling,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            add_special_tokens=fields.add_special_tokens,
        )
        for place, prompt in enumerate(fields.prompts)
    ]


@dataclass(slots=True)
class _Item:
    text: list[str] = field(default_factory=list)
    num_tokens: int = 0
    usage: Usage | None = None
    finish_reason: FinishReason = "stop"


class BatchAnswer:
    """Deltas → the JSON list."""

    def __init__(self, num_prompts: int) -> None:
        self._items = [_Item() for _ in range(num_prompts)]

    def add(self, prompt_index: int, delta: Delta) -> None:
        item = self._items[prompt_index]
        item.text.append(delta.text)
        item.num_tokens += len(delta.token_ids)
        item.usage = delta.usage or item.usage
        if delta.finish_reason is not None:
            item.finish_reason = delta.finish_reason

    def body(self, usage: Usage) -> bytes:
        return replies.encoder.encode(
            [
                replies.BatchCompletionItem(
                    "".join(item.text),
                    item.num_tokens if item.usage is None else item.usage.completion_tokens,
                    item.finish_reason,
                )
                for item in self._items
            ]
        )
