"""One request's way to a replica: chosen when it runs, tried again elsewhere as long as nothing of the answer is out.

tier ── version ── replica ── first delta? ── yes: its deltas to the end, whatever comes
         ▲                        │ no, and not the caller's fault
         │                        ▼
         └── another replica, once; then the fallback models, once each; then the error
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from hashlib import blake2b

from llm_inference.engine.base import Capabilities, Embeds, Engine, EngineStats, Health, ReportsStats, Tokenizes
from llm_inference.engine.types import (
    Delta,
    EmbedRequest,
    EmbedResult,
    GenerateRequest,
    ModelInfo,
    Prompt,
    TokenizeResult,
)
from llm_inference.errors import (
    EngineError,
    InvalidRequestError,
    OverloadedError,
    RequestError,
    RequestTimeoutError,
)
from llm_inference.gateway.routing import tiers
from llm_inference.gateway.routing.candidates import Candidates, Choice, Rungs
from llm_inference.gateway.routing.deployment import Deployment, choose_version
from llm_inference.gateway.routing.prefix import prefix_of
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.table import RoutingTable, Target
from llm_inference.gateway.routing.totals import joined_health, summed_stats
from llm_inference.gateway.routing.wish import Wish
from llm_inference.gateway.tenants import tokens

#: An engine that does not say how it is within this time is not well.
_HEALTH_TIMEOUT_S = 1.5
_ATTEMPT_TIMEOUT = "attempt_timeout"


class RoutedEngine:
    """An `Engine` for one request of one or more prompts. Each prompt finds its own replica; tier and version are one.

    Raises what `tiers.resolve` raises. Starting and stopping are the business of whoever owns the replicas.
    """

    def __init__(self, table: RoutingTable, target: Target, wish: Wish) -> None:
        self._table = table
        self._target = target
        self._group = group = target.group
        self._wish = wish
        pinned = [one for one in group.deployments if one.version == target.version]
        open_to_all = pinned if target.version is not None else [one for one in group.deployments if not one.shadow]
        of_these = {one.tier for one in open_to_all}
        ladder = [tier for tier in group.ladder if tier in of_these]
        in_order = tiers.resolve(group, ladder, wish.tier, wish.scope)
        self._point = _point(wish.session) if wish.session else group.rng.random()
        self._open_to_all = open_to_all
        self.rungs = self._rungs_of(in_order)
        self._served: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._face.capabilities

    @property
    def info(self) -> ModelInfo:
        return self._face.info

    def lower(self) -> str:
        """Have the request served by the next lower tier, where it named none. Its name; "": there is none for it."""
        group, wish = self._group, self._wish
        mode = group.rules.spill_over
        first = self.rungs.chosen[0].tier
        if first not in group.ladder or not (wish.plain or mode == "always"):
            return ""
        found = []
        for tier in group.lower(first):
            may = (wish.scope is None or wish.scope.may_use_tier(tier)) and not group.demoted(tier)
            rung = [one for one in self._open_to_all if one.tier == tier]
            if may and rung and self._able(choose_version(rung, self._point)):
                found.append(tier)
        if not found:
            return ""
        self.rungs = self._rungs_of(found[:1] if mode == "never" else found)
        return found[0]

    async def start(self) -> None:
        """Nothing: replicas are started when they are made."""

    async def stop(self, grace_s: float) -> None:
        """Nothing: replicas are not its own."""

    async def health(self) -> Health:
        replicas = self._group.replicas
        states = await asyncio.gather(*(health_of(replica) for replica in replicas))
        return joined_health({replica.id: state for replica, state in zip(replicas, states, strict=True)})

    def stats(self) -> EngineStats:
        engines = [replica.engine for replica in self._group.replicas]
        return summed_stats([engine.stats() for engine in engines if isinstance(engine, ReportsStats)])

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> TokenizeResult:
        return await self._tokenizer().tokenize(prompt, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        return await self._tokenizer().detokenize(token_ids)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Like `Engine.embed`; another replica is tried as for `generate`."""
        num_tokens = tokens.estimate(request.inputs)
        failure: Exception | None = None
        candidates = self._candidates(request, num_tokens)
        for choice in candidates:
            replica = choice.replica
            engine = replica.engine
            if not isinstance(engine, Embeds):
                continue
            self._note(choice)
            try:
                with replica.working(num_tokens):
                    result = await engine.embed(request)
                replica.succeeded()
                return result
            except Exception as error:
                failure = self._judge(choice, error, failure)
        raise failure or candidates.nobody()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        """Deltas of one replica alone. Raises like `Engine.generate`; what no replica could do, as the last said it."""
        num_tokens = tokens.likely_tokens(request, self.info.max_model_len)
        for mirror in self._group.mirrors if self._target.version is None else ():
            mirror.offer(request)
        failure: Exception | None = None
        candidates = self._candidates(request, num_tokens)
        for choice in candidates:
            replica, begun = choice.replica, False
            self._note(choice)
            deployment, shadowing = choice.deployment, choice.group.shadowing
            answer = None
            if shadowing is not None:
                answer = shadowing.sample(request, deployment.version, deployment.tier, greedy=deployment.greedy)
            try:
                with replica.working(num_tokens):
                    async with aclosing(replica.engine.generate(request)) as deltas:
                        first = await self._first(deltas, choice)
                        begun = True
                        if replica.breaker.ejected:  # it was the one that tried; others need not wait for its end
                            replica.succeeded()
                        if answer is not None:
                            answer.add(first)
                        yield first
                        async for delta in deltas:
                            if answer is not None:
                                answer.add(delta)
                            yield delta
            except Exception as error:
                failure = self._judge(choice, error, failure, begun=begun)
                continue
            replica.succeeded()
            if shadowing is not None and answer is not None:
                shadowing.offer(request, deployment.version, deployment.tier, answer)
            return
        raise failure or candidates.nobody()

    async def _first(self, deltas: AsyncGenerator[Delta, None], choice: Choice) -> Delta:
        """The first delta, within the time for one attempt."""
        limit_s = choice.group.rules.attempt_timeout_s
        try:
            first = await (anext(deltas) if limit_s is None else asyncio.wait_for(anext(deltas), limit_s))
        except StopAsyncIteration as error:
            raise EngineError("The engine ended its output without finishing every choice.") from error
        except asyncio.TimeoutError as error:
            if limit_s is None:
                raise  # the engine's own: there was no limit of ours
            raise RequestTimeoutError(
                f"No token came within {limit_s:g} s (routing.attempt_timeout_s); send the request again.",
                code=_ATTEMPT_TIMEOUT,
            ) from error
        if first.finish_reason in ("abort", "error"):
            raise EngineError("The engine gave this request up before its end; send it again.")
        return first

    def _judge(self, choice: Choice, error: Exception, before: Exception | None, *, begun: bool = False) -> Exception:
        """What to say if nothing is left to try. Raises `error` itself where trying again would be wrong."""
        choice.replica.failed(error)
        late = isinstance(error, RequestTimeoutError) and error.public_code != _ATTEMPT_TIMEOUT
        if begun or late or isinstance(error, RequestError):
            raise error
        self._served.remove(choice.replica.id)
        # "Come back in a while" is of more use to the client than how another one broke.
        return before if isinstance(before, OverloadedError) and not isinstance(error, OverloadedError) else error

    def _note(self, choice: Choice) -> None:
        """Several prompts of a request may be with several replicas."""
        self._served.append(choice.replica.id)
        diary = self._wish.diary
        if diary is not None:
            diary.replica = ",".join(dict.fromkeys(self._served))
            diary.tier = choice.deployment.tier

    def _rungs_of(self, tiers_in_order: Sequence[str]) -> Rungs:
        rungs = [[one for one in self._open_to_all if one.tier == tier] for tier in tiers_in_order]
        chosen = [choose_version(rung, self._point) for rung in rungs]
        return Rungs(self._group, chosen, [one for one in rungs[0] if one is not chosen[0]])

    def _able(self, deployment: Deployment) -> bool:
        """Whether one of its replicas is there for this request: well, not drained, and able to do what is asked."""
        fits = self._wish.fits
        return any(one.available and (fits is None or fits(one.engine)) for one in deployment.replicas)

    def _candidates(self, work: GenerateRequest | EmbedRequest, num_tokens: int) -> Candidates:
        rules, wants = self._group.rules, self._group.policy.wants
        key = b""
        if wants == "prefix":
            key = prefix_of(work, rules.prefix_bytes)
        elif wants == "session":
            key = self._wish.session.encode("utf-8", "surrogatepass")
        return Candidates(self.rungs, key, num_tokens, self._wish.fits, self._fallbacks)

    def _fallbacks(self) -> Iterator[Rungs]:
        """Of the names that answer when this one cannot, as of the table that the request began with."""
        for name in self._group.rules.fallbacks:
            target = self._table.targets_by_name.get(name)
            if target is not None:
                wish = Wish(session=self._wish.session, scope=None)
                yield RoutedEngine(self._table, target, wish).rungs

    @property
    def _face(self) -> Engine:
        """Of the first choice, one that is there."""
        replicas = self.rungs.chosen[0].replicas
        return next((one for one in replicas if not one.breaker.ejected), replicas[0]).engine

    def _tokenizer(self) -> Tokenizes:
        engine = self._face
        if not isinstance(engine, Tokenizes):
            raise InvalidRequestError(f"The engine of {self._group.name!r} shows no tokenizer.", param="model")
        return engine


def _point(session: str) -> float:
    """A session's own number in [0, 1), the same in every process."""
    return int.from_bytes(blake2b(session.encode("utf-8", "surrogatepass"), digest_size=6).digest(), "big") / 2**48


async def health_of(replica: Replica) -> Health:
    try:
        return await asyncio.wait_for(replica.engine.health(), _HEALTH_TIMEOUT_S)
    except asyncio.TimeoutError:
        return Health(live=True, ready=False, progressing=False, reason="the engine does not answer its health check")
    except Exception as error:
        return Health(live=False, ready=False, progressing=False, reason=f"the health check failed: {error}")
