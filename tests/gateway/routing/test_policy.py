from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from llm_inference.engine.fake import FakeEngine
from llm_inference.gateway.routing.policy import (
    LeastTokens,
    Policy,
    PrefixAffinity,
    RoundRobin,
    SessionAffinity,
    make_policy,
    ranked,
)
from llm_inference.gateway.routing.replica import Replica


def some(number: int) -> list[Replica]:
    return [Replica(f"replica-{place}", FakeEngine()) for place in range(number)]


def test_least_tokens_counts_tokens_not_requests() -> None:
    one, two, three = some(3)
    one.outstanding_tokens, one.in_flight = 5000, 1
    two.outstanding_tokens, two.in_flight = 300, 3
    three.outstanding_tokens, three.in_flight = 300, 2
    assert LeastTokens().choose([one, two, three], 10, b"") is three
    assert LeastTokens().choose([one, two], 10, b"") is two


def test_round_robin_takes_turns() -> None:
    members = some(3)
    policy = RoundRobin()
    assert [policy.choose(members, 1, b"") for _ in range(7)] == [*members, *members, members[0]]


def test_a_session_stays_and_the_rest_goes_by_load() -> None:
    members = some(5)
    policy = SessionAffinity()
    for session in (b"a", b"b", b"x" * 1000):
        assert len({policy.choose(members, 1, session) for _ in range(10)}) == 1
    assert len({policy.choose(members, 1, b"%d" % number) for number in range(200)}) == 5
    for member in members[1:]:
        member.outstanding_tokens = 1
    assert policy.choose(members, 1, b"") is members[0]


def test_only_the_keys_of_a_replica_that_leaves_move() -> None:
    members = some(8)
    keys = [b"prompt %d" % number for number in range(4000)]
    before = {key: ranked(members, key)[0] for key in keys}
    left = [member for member in members if member is not members[3]]
    after = {key: ranked(left, key)[0] for key in keys}
    moved = [key for key in keys if before[key] is not after[key]]
    assert all(before[key] is members[3] for key in moved)
    assert len(moved) == Counter(before.values())[members[3]]
    # Even: each has its eighth, within five standard deviations.
    assert all(abs(count - 500) < 5 * (4000 * 1 / 8 * 7 / 8) ** 0.5 for count in Counter(before.values()).values())
    # And those that moved did so to all the others.
    assert {after[key] for key in moved} == set(left)


def test_affinity_holds_while_the_load_allows() -> None:
    members = some(4)
    policy = PrefixAffinity(1.25)
    home = ranked(members, b"hot")[0]
    assert all(policy.choose(members, 10, b"hot") is home for _ in range(5))


@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0])
def test_no_replica_is_loaded_over_the_bound(factor: float) -> None:
    """Everything begins alike: without the bound one replica would get it all."""
    members = some(5)
    policy = PrefixAffinity(factor)
    for number in range(1, 401):
        chosen = policy.choose(members, 10, b"the same system prompt")
        chosen.outstanding_tokens += 10
        bound = factor * number * 10 / len(members)
        # A request is not divisible: the least loaded one may pass the bound by less than one request.
        assert chosen.outstanding_tokens < bound + 10
    loads = sorted(member.outstanding_tokens for member in members)
    assert sum(loads) == 4000
    assert loads[-1] <= factor * 4000 / 5 + 10


def test_names_of_policies() -> None:
    names = {"least_tokens": LeastTokens, "round_robin": RoundRobin}
    names |= {"prefix_affinity": PrefixAffinity, "session_affinity": SessionAffinity}
    assert all(type(make_policy(name)) is kind for name, kind in names.items())


def simulate(policy: Policy, arrivals: Sequence[tuple[float, int]], num_replicas: int = 4) -> list[float]:
    """Seconds from arrival to end of each request, on engines that share a fixed rate among what they run.

    A replica computes 1,000 tokens per second, 8 requests at once, the rest in order. Time is virtual and exact.
    """
    members = some(num_replicas)
    clocks = [0.0] * num_replicas  # each replica's own time, up to which it is computed
    running: list[list[list[float]]] = [[] for _ in members]  # [tokens left, request]
    waiting: list[list[list[float]]] = [[] for _ in members]
    ended: dict[int, float] = {}
    sizes: dict[int, int] = {}

    def advance(place: int, until: float) -> None:
        while running[place]:
            left = min(one[0] for one in running[place])
            end = clocks[place] + left * len(running[place]) / 1000
            if end > until:
                done = (until - clocks[place]) * 1000 / len(running[place])
                for one in running[place]:
                    one[0] -= done
                break
            clocks[place] = end
            for one in running[place]:
                one[0] -= left
            for one in [one for one in running[place] if one[0] <= 1e-9]:
                running[place].remove(one)
                number = int(one[1])
                ended[number] = end
                members[place].outstanding_tokens -= sizes[number]
                members[place].in_flight -= 1
                if waiting[place]:
                    running[place].append(waiting[place].pop(0))
        clocks[place] = max(clocks[place], until)

    for number, (at, size) in enumerate(arrivals):
        for place in range(num_replicas):
            advance(place, at)
        chosen = policy.choose(members, size, b"")
        place = members.index(chosen)
        sizes[number] = size
        chosen.outstanding_tokens += size
        chosen.in_flight += 1
        (running if len(running[place]) < 8 else waiting)[place].append([float(size), float(number)])
    for place in range(num_replicas):
        advance(place, float("inf"))
    return [ended[number] - at for number, (at, _) in enumerate(arrivals)]


def p99(values: Sequence[float]) -> float:
    return heapq.nlargest(max(1, len(values) // 100), values)[-1]


@pytest.mark.parametrize("seed", range(3))
def test_tokens_beat_turns_on_mixed_lengths(seed: int) -> None:
    """One in ten requests is 40 times as long as the others; 80 % load."""
    rng = random.Random(seed)
    times = itertools.accumulate(rng.expovariate(6.5) for _ in range(3000))
    arrivals = [(at, 4000 if rng.random() < 0.1 else 100) for at in times]
    turns, tokens = simulate(RoundRobin(), arrivals), simulate(LeastTokens(), arrivals)
    assert p99(tokens) < 0.8 * p99(turns)
    assert sum(tokens) < sum(turns)
