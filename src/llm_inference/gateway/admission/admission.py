"""Who may come in now: a bound on requests in flight, a queue before it, and the closing of the door before shutdown.

    arrives ─► place free? ──yes──────────────────────────► in flight ─► leaves: the next one is let in
                 │ no                                          ▲
                 └► room in the queue, and in time? ──yes──► waits
                      └ no: refused at once, with Retry-After by the observed rate of departures

A place is held until the last byte is out, so that "in flight" means work, not handlers. One event loop, no locks. It
does not know HTTP, keys or engines: `Visitor` says what counts of them, `busy` which model's engine is full.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from llm_inference.errors import NotReadyError, OverloadedError, RequestTimeoutError
from llm_inference.gateway.admission.drain_rate import DrainRate
from llm_inference.gateway.admission.queue import FairQueue, Waiting
from llm_inference.gateway.admission.rules import NO_QUEUE, AdmissionRules

#: Seconds after which a refused caller should try again, where nothing is known. Clients give up at 120 s.
RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
DRAIN_RETRY_AFTER_S = 5.0
#: The part of the time that a request may wait which its expected wait may fill: to be turned away after the wait is
#: worse than at once.
EXPECTED_PART = 0.8
#: How often those who wait for a busy engine are looked at.
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks to come in. `deadline`: in seconds of the clock; None: none."""

    key: str = ""
    tier: str = ""
    model: str = ""
    priority: int = 0
    tokens: int = 0
    deadline: float | None = None


class Admission:
    """Counts places; lets wait or refuses who finds none, and everybody while draining."""

    def __init__(
        self,
        max_concurrent_requests: int,
        rules: AdmissionRules = NO_QUEUE,
        *,
        busy: Callable[[str], bool] = lambda model: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rules = rules
        self._limit = max_concurrent_requests
        self._busy = busy
        self._watches_engines = rules.max_kv_cache_usage is not None
        self._clock = clock
        self._in_flight = 0
        self._queue = FairQueue(rules.shares, rules.ageing_s)
        self._drain_rate = DrainRate(max_concurrent_requests)
        self._poll: asyncio.TimerHandle | None = None
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def filling(self) -> float:
        """How full the queue is, by requests or by tokens: 0 to 1; 0 without a queue."""
        rules = self.rules
        if not rules.max_queue_requests:
            return 0.0
        by_tokens = self._queue.num_tokens / rules.max_queue_tokens if rules.max_queue_tokens else 0.0
        return min(max(len(self._queue) / rules.max_queue_requests, by_tokens), 1.0)

    def check(self, key: str = "") -> None:
        """Raise what would be raised now for a small request: `NotReadyError` while draining, `OverloadedError`.

        Cheap; called before a body is read, so that a refused request costs nothing.
        """
        if self._draining:
            raise NotReadyError(
                "This server is shutting down and takes no new requests; send it to another replica or retry later.",
                code="shutting_down",
                retry_after_s=DRAIN_RETRY_AFTER_S,
            )
        if self._in_flight >= self._limit:
            self._check_room(Visitor(key))

    def try_enter(self, model: str = "") -> bool:
        """Take a place if one is free and nobody waits for it. Raises `NotReadyError` while draining."""
        if self._draining:
            self.check()
        if self._in_flight >= self._limit or len(self._queue) or (self._watches_engines and self._is_busy(model)):
            return False
        self._take_place()
        return True

    async def wait(self, visitor: Visitor) -> None:
        """Wait for a place, and have it. Cancelling it gives the place in the queue up.

        Raises `OverloadedError` where there is no room or the wait would be, or has become, too long, and
        `RequestTimeoutError` where the deadline is before any of that.
        """
        if self._watches_engines and len(self._queue) and self._in_flight < self._limit:
            self._let_in()  # whoever is left waits for an engine that is full
            if self._in_flight < self._limit and not self._is_busy(visitor.model):
                self._take_place()
                return
        now = self._clock()
        self._check_room(visitor)
        self._make_room(visitor)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one = Waiting(visitor.key, visitor.tokens, now, visitor.tier, visitor.priority, visitor.model, ticket=turn)
        self._queue.push(one)
        self._idle.clear()
        self._let_in()
        until = now + self.rules.max_wait_s
        deadline = visitor.deadline
        timer = asyncio.get_running_loop().call_later(
            max((until if deadline is None else min(until, deadline)) - now, 0.0), self._give_up, one, deadline
        )
        try:
            await turn
        except BaseException:
            if not one.gone:
                self._queue.remove(one)
                self._settle()
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it had just been let in
            raise
        finally:
            timer.cancel()

    def leave(self) -> None:
        """Give a place back; the next one is let in."""
        if self._in_flight >= self._limit or len(self._queue):
            self._drain_rate.departed(self._clock())
        else:
            self._drain_rate.forget()
        self._in_flight -= 1
        if len(self._queue):
            self._let_in()
        self._settle()

    @contextmanager
    def permit(self) -> Iterator[None]:
        """Hold one place for the `with` block, for work that never waits for one. Raises like `check`."""
        if self._draining:
            self.check()
        if self._in_flight >= self._limit:
            self._refuse("in flight")
        self._take_place()
        try:
            yield
        finally:
            self.leave()

    def begin_drain(self) -> None:
        """From now on refuse; what is in flight or waits goes on. Cannot be undone."""
        self._draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight and nobody waits. False if `timeout_s` passed first."""
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    # --- inside

    def _take_place(self) -> None:
        self._in_flight += 1
        self._idle.clear()

    def _settle(self) -> None:
        if self._in_flight == 0 and not len(self._queue):
            self._idle.set()

    def _is_busy(self, model: str) -> bool:
        """Never while nothing is in flight: then nobody's leaving could make it better."""
        return self._in_flight > 0 and self._busy(model)

    def _let_in(self) -> None:
        """Give free places to those who are next."""
        while self._in_flight < self._limit and len(self._queue):
            blocked = self._is_busy if self._watches_engines else lambda model: False
            one = self._queue.pop(self._clock(), blocked)
            if one is None:
                if self._poll is None:
                    self._poll = asyncio.get_running_loop().call_later(POLL_S, self._look_again)
                return
            if not one.ticket.done():  # else it is just being cancelled
                self._take_place()
                one.ticket.set_result(None)

    def _look_again(self) -> None:
        self._poll = None
        self._let_in()

    def _check_room(self, visitor: Visitor) -> None:
        """Raise `OverloadedError` where `visitor` cannot wait, or would wait longer than it may."""
        rules, queue = self.rules, self._queue
        if not rules.max_queue_requests:
            self._refuse("in flight" if self._in_flight >= self._limit else "engine")
        if not self._has_room(visitor) and not self._displaced(visitor):
            self._refuse("queue")
        now = self._clock()
        ahead = queue.num_ahead(visitor.key, visitor.tier, visitor.priority)
        expected = self._drain_rate.wait_s(ahead, now)
        if expected is None or self._in_flight < self._limit:
            return
        left = rules.max_wait_s if visitor.deadline is None else min(rules.max_wait_s, visitor.deadline - now)
        if expected > EXPECTED_PART * left:
            self._refuse("wait", expected)

    def _has_room(self, visitor: Visitor) -> bool:
        rules, queue = self.rules, self._queue
        if len(queue) >= rules.max_queue_requests:
            return False
        # One request that is larger than the whole bound may wait where nobody else does.
        over = rules.max_queue_tokens is not None and queue.num_tokens + visitor.tokens > rules.max_queue_tokens
        return not over or not len(queue)

    def _displaced(self, visitor: Visitor) -> Waiting | None:
        """Who must give way in a full queue: the last of the key that has most, where that is more than its share.

        One for one: where the newcomer does not fit into that place, nobody is turned away for it.
        """
        queue = self._queue
        greediest = queue.greediest()
        if not greediest and not len(queue):
            return None
        if queue.num_of(greediest) <= queue.num_of(visitor.key) + 1:
            return None
        last, most = queue.last_of(greediest), self.rules.max_queue_tokens
        if last is not None and most is not None and queue.num_tokens - last.tokens + visitor.tokens > most:
            return None
        return last

    def _make_room(self, visitor: Visitor) -> None:
        if self._has_room(visitor):
            return
        last = self._displaced(visitor)
        if last is None:
            self._refuse("queue")
        self._queue.remove(last)
        if not last.ticket.done():
            last.ticket.set_exception(self._refusal("displaced"))

    def _give_up(self, one: Waiting, deadline: float | None) -> None:
        if one.gone or one.ticket.done():
            return
        self._queue.remove(one)
        if deadline is not None and deadline <= one.since + self.rules.max_wait_s:
            one.ticket.set_exception(
                RequestTimeoutError("The request's time was over before there was room for it; nothing was computed.")
            )
        else:
            one.ticket.set_exception(self._refusal("time"))
        self._settle()

    def _refuse(self, why: str, expected_s: float | None = None) -> NoReturn:
        raise self._refusal(why, expected_s)

    def _refusal(self, why: str, expected_s: float | None = None) -> OverloadedError:
        wait_s = expected_s or self._drain_rate.wait_s(len(self._queue), self._clock()) or RETRY_AFTER_S
        rules = self.rules
        code, text = {
            "in flight": (
                None,
                f"{self._in_flight} requests are in flight, which is the limit of this server "
                "(api.max_concurrent_requests)",
            ),
            "engine": (None, "The model's engines are full (admission.max_kv_cache_usage)"),
            "queue": (
                "queue_full",
                f"{len(self._queue)} requests of {self._queue.num_tokens} tokens wait already, and no more may "
                "(admission.max_queue_requests, admission.max_queue_tokens)",
            ),
            "displaced": ("queue_full", "The queue is full, and this key has more requests in it than others"),
            "wait": (
                "queue_timeout",
                f"The wait would be about {wait_s:.3g} s, longer than the request may wait (admission.max_wait_s, or "
                "its own x-request-timeout)",
            ),
            "time": ("queue_timeout", f"There was no room within {rules.max_wait_s:g} s (admission.max_wait_s)"),
        }[why]
        return OverloadedError(
            f"{text}; retry later.", code=code, retry_after_s=min(max(wait_s, RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        )
