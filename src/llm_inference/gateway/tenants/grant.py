"""One request's way through the limits: caps, reservation, settling. Entered before the work, left with its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from starlette.requests import ClientDisconnect

from llm_inference.engine.base import Engine
from llm_inference.engine.types import ChatPrompt, EmbedRequest, GenerateRequest, Usage
from llm_inference.errors import InvalidRequestError, RateLimitError, RequestTimeoutError
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.tenants import tokens
from llm_inference.gateway.tenants.headers import limit_headers
from llm_inference.gateway.tenants.limit_store import Use
from llm_inference.gateway.tenants.limits import NANO, Charge, Subject, Verdict, charges_of

if TYPE_CHECKING:
    from llm_inference.gateway.tenants.tenants import Tenants

#: How a request ends whose client has left, or whose time or server has ended.
_LEFT = (ClientDisconnect, RequestTimeoutError, asyncio.CancelledError)

WorkT = TypeVar("WorkT", GenerateRequest, EmbedRequest)


class Grant(Generic[WorkT]):
    """`async with grant as work:` gives the requests to run: clamped to the key's priorities and output limit."""

    def __init__(
        self,
        tenants: Tenants,
        record: RequestRecord,
        engine: Engine,
        work: Sequence[WorkT],
        subjects: Sequence[Subject],
    ) -> None:
        self._tenants = tenants
        self._record = record
        self._engine = engine
        self._work: tuple[WorkT, ...] = tuple(work)
        self._subjects = subjects
        self._lease = tenants.new_lease()
        self._charges: list[Charge] = []
        self._prompt_tokens = 0

    async def __aenter__(self) -> tuple[WorkT, ...]:
        store = self._tenants.limits
        output_limit = self._cap_output()
        prompt_tokens = self._prompt_tokens = await self._cap_prompt()
        answer_tokens = sum(
            tokens.output_tokens(one, output_limit, self._engine.info.max_model_len) for one in self._work
        )
        price = self._tenants.price_of(self._record.model, Usage(prompt_tokens, answer_tokens))
        now = time.time()
        for subject in self._subjects:
            self._charges += charges_of(subject, prompt_tokens + answer_tokens, price, now)
        if not self._bounded():
            # An answer of unknown length is a guess, and must not make a request larger than a whole limit.
            self._charges = [
                msgspec.structs.replace(
                    charge, amount=min(charge.amount, max(charge.limit, self._of_prompt(charge.unit)))
                )
                for charge in self._charges
            ]
        if store is not None and self._charges:
            verdict = await store.reserve(self._charges, self._lease)
            self._record.headers = limit_headers(self._charges, verdict.states)
            if verdict.refused is not None:
                raise self._refusal(verdict, verdict.refused)
        return tuple(self._shaped(one, output_limit) for one in self._work)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        store = self._tenants.limits
        if store is None or not self._charges:
            return
        usage = self._record.usage or Usage()
        if isinstance(error, _LEFT) and not usage.prompt_tokens:
            # Who leaves before the first token has used the engine all the same.
            usage = Usage(self._prompt_tokens, usage.completion_tokens)
        used = usage.prompt_tokens + usage.completion_tokens
        if error is None and not used:
            # An engine that tells no counts has worked all the same: what was reserved is the best that is known.
            store.settle([Use(charge, charge.amount) for charge in self._charges], self._lease)
            return
        price = self._tenants.price_of(self._record.model, usage)
        actual = {"requests": 1, "tokens": used, "price": price}
        store.settle([Use(charge, actual[charge.unit]) for charge in self._charges], self._lease)

    def _cap_output(self) -> int | None:
        """The least limit of an answer's tokens. Raises `InvalidRequestError` for a request that wants more."""
        limits = [
            (subject.limits.max_output_tokens, subject.label)
            for subject in self._subjects
            if subject.limits.max_output_tokens is not None
        ]
        if not limits:
            return None
        limit, label = min(limits)
        for one in self._work:
            asked = one.sampling.max_tokens if isinstance(one, GenerateRequest) else None
            if asked is not None and asked > limit:
                self._record.metrics.refused("max_output_tokens")
                raise InvalidRequestError(
                    f"max_tokens is {asked}; {label} may ask for {limit} tokens at most (max_output_tokens).",
                    param="max_tokens",
                )
        return limit

    async def _cap_prompt(self) -> int:
        """The prompts' tokens, counted where they may be over a limit. Raises `InvalidRequestError` over it."""
        limits = [
            (subject.limits.max_prompt_tokens, subject.label)
            for subject in self._subjects
            if subject.limits.max_prompt_tokens is not None
        ]
        if not limits:
            return sum([tokens.estimate(tokens.prompts_of(one)) for one in self._work])
        limit, label = min(limits)
        total = 0
        for one in self._work:
            for prompt in tokens.prompts_of(one):
                guess, at_most = tokens.bounds(prompt)
                if at_most <= limit:
                    total += guess
                    continue
                counted = await tokens.count(self._engine, prompt, add_special_tokens=one.add_special_tokens)
                if counted > limit:
                    self._record.metrics.refused("max_prompt_tokens")
                    raise InvalidRequestError(
                        f"The prompt has {counted} tokens; {label} may send {limit} at most (max_prompt_tokens).",
                        param=_prompt_field(one),
                    )
                total += counted
        return total

    def _bounded(self) -> bool:
        """Whether the request itself says how long its answers may be."""
        return all(isinstance(one, EmbedRequest) or one.sampling.max_tokens is not None for one in self._work)

    def _of_prompt(self, unit: str) -> int:
        if unit == "price":
            return self._tenants.price_of(self._record.model, Usage(self._prompt_tokens))
        return self._prompt_tokens if unit == "tokens" else 1

    def _shaped(self, one: WorkT, output_limit: int | None) -> WorkT:
        key = self._record.key
        if key is not None and key.scope.priority is not None:
            priority = key.scope.clamp(one.priority)
            if priority != one.priority and self._engine.capabilities.support("priority") != "refused":
                one = msgspec.structs.replace(one, priority=priority)
        if output_limit is not None and isinstance(one, GenerateRequest) and one.sampling.max_tokens is None:
            sampling = msgspec.structs.replace(one.sampling, max_tokens=output_limit)
            one = msgspec.structs.replace(one, sampling=sampling)
        return one

    def _refusal(self, verdict: Verdict, place: int) -> RateLimitError:
        charge = self._charges[place]
        self._charges = []  # nothing was taken, nothing is to settle
        self._record.metrics.refused(charge.name)
        state = verdict.states[place]
        code = "insufficient_quota" if charge.kind == "budget" else None
        if verdict.retry_after_s is None:
            message = (
                f"The request may come to {_amount(charge, charge.amount)}, more than the whole limit of "
                f"{charge.label} ({charge.name}: {_amount(charge, charge.limit)}); ask for less."
            )
            return RateLimitError(message, code=code)
        message = (
            f"The limit of {charge.label} is reached ({charge.name}: {_amount(charge, charge.limit)}; "
            f"{_amount(charge, state.remaining)} left, {_amount(charge, charge.amount)} asked for); "
            f"retry in {max(verdict.retry_after_s, 0.001):.3g} s."
        )
        error = RateLimitError(message, code=code, retry_after_s=verdict.retry_after_s)
        if charge.name == "requests_per_minute" and not charge.subject.startswith("model:"):
            self._tenants.block(charge.subject, error, self._record.headers)
        return error


def _amount(charge: Charge, amount: int) -> str:
    return f"{amount / NANO:g} in price" if charge.unit == "price" else f"{amount} {charge.unit}"


def _prompt_field(one: GenerateRequest | EmbedRequest) -> str:
    if isinstance(one, EmbedRequest):
        return "input"
    return "messages" if isinstance(one.prompt, ChatPrompt) else "prompt"
