"""From a request to what a worker is told: defaults filled in, checked, every number said. No sockets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llm_inference.adapters.dialect import GREEDY_BELOW, refuse
from llm_inference.adapters.generate_prompt import PreparedPrompt, PromptSide
from llm_inference.adapters.library.plan import LibraryPlan
from llm_inference.adapters.library.wire import Grammar, WorkerSampling
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.errors import InvalidRequestError

#: What one library makes of a request's grammar, after refusing the values that it cannot take. Raises
#: `InvalidRequestError`. `SamplingParams` are resolved.
Translate = Callable[[GenerateRequest, SamplingParams], Grammar | None]

#: Seeds beyond this are folded: the libraries hold them in 32 bits or fewer.
_SEEDS = 2**31


def worker_sampling(
    request: GenerateRequest, prompt: PreparedPrompt, side: PromptSide, plan: LibraryPlan, translate: Translate
) -> tuple[SamplingParams, WorkerSampling]:
    """(the request's sampling with everything resolved, the same for the worker). Raises `InvalidRequestError`."""
    asked = request.sampling
    engine = plan.info.engine
    if asked.max_tokens == 0:
        raise refuse(engine, "max_tokens", "it cannot score a prompt without generating; send 1")
    if asked.prompt_logprobs is not None:
        raise refuse(engine, "logprobs", "it tells no log-probabilities of a prompt, so not together with `echo`")
    side.check_ids(asked.stop_token_ids, "stop_token_ids")
    side.check_ids(tuple(asked.logit_bias or ()), "logit_bias")
    if asked.forced_eos_token_id is not None:
        side.check_ids((asked.forced_eos_token_id,), "forced_eos_token_id")
    room = plan.info.max_model_len - len(prompt.token_ids)
    resolved = asked.resolve(plan.defaults)
    max_tokens = room if resolved.max_tokens is None else min(resolved.max_tokens, room)
    if resolved.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {resolved.min_tokens}, but at most {max_tokens} tokens can be generated", param="min_tokens"
        )
    if plan.info.max_num_seqs is not None and max(resolved.n, resolved.num_beams) > plan.info.max_num_seqs:
        raise InvalidRequestError(
            f"{max(resolved.n, resolved.num_beams)} sequences were asked for; this server runs at most "
            f"max_num_seqs={plan.info.max_num_seqs} at once",
            param="num_beams" if resolved.num_beams > resolved.n else "n",
        )
    resolved = msgspec.structs.replace(resolved, max_tokens=max_tokens)
    return resolved, _said(resolved, max_tokens, plan.eos_token_ids, translate(request, resolved))


def _said(
    resolved: SamplingParams, max_tokens: int, eos_token_ids: tuple[int, ...], grammar: Grammar | None
) -> WorkerSampling:
    temperature = resolved.temperature or 0.0
    return WorkerSampling(
        max_tokens=max_tokens,
        min_tokens=resolved.min_tokens,
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_p=_number(resolved.top_p, 1.0),
        top_k=resolved.top_k or 0,
        min_p=_number(resolved.min_p, 0.0),
        repetition_penalty=_number(resolved.repetition_penalty, 1.0),
        presence_penalty=_number(resolved.presence_penalty, 0.0),
        frequency_penalty=_number(resolved.frequency_penalty, 0.0),
        logit_bias=resolved.logit_bias or {},
        seed=None if resolved.seed is None else resolved.seed % _SEEDS,
        eos_token_ids=eos_token_ids,
        stop_token_ids=resolved.stop_token_ids,
        ignore_eos=resolved.ignore_eos,
        forced_eos_token_id=resolved.forced_eos_token_id,
        logprobs=resolved.logprobs,
        n=resolved.n,
        num_beams=resolved.num_beams,
        length_penalty=resolved.length_penalty,
        early_stopping=resolved.early_stopping,
        grammar=grammar,
    )


def _number(value: float | None, unset: float) -> float:
    return unset if value is None else value
