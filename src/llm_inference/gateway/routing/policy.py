"""Which of several replicas takes a request. A policy is given those that can, and knows only their loads and names."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from llm_inference.gateway.routing.replica import Replica


class Policy(Protocol):
    """One per name; it may remember."""

    #: What `choose` wants as its key: the beginning of the prompt, the caller's session, or nothing.
    wants: str

    def choose(self, replicas: Sequence[Replica], num_tokens: int, key: bytes) -> Replica:
        """One of `replicas`, which is not empty. `num_tokens`: what the request may come to. `key` may be empty."""
        ...


class LeastTokens:
    """The fewest outstanding tokens: a long request weighs as much as it will take. Ties go by requests, then order."""

    wants = ""

    def choose(self, replicas: Sequence[Replica], num_tokens: int, key: bytes) -> Replica:
        return min(replicas, key=_load)


class RoundRobin:
    """Each in its turn."""

    wants = ""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, replicas: Sequence[Replica], num_tokens: int, key: bytes) -> Replica:
        self._next += 1
        return replicas[(self._next - 1) % len(replicas)]


class PrefixAffinity:
    """Prompts that begin alike go to the same replica, which has that beginning in its cache, within bounded load.

    Rendezvous hashing (Thaler and Ravishankar, 1998): when a replica leaves, only its own keys move. The load of
    whoever takes a request is then at most `load_factor` times the mean (as in Mirrokni, Thorup and Zadimoghaddam,
    2016), or, where one request alone is more than that, what the least loaded one then has.
    """

    wants = "prefix"

    def __init__(self, load_factor: float = 1.25) -> None:
        self._factor = load_factor

    def choose(self, replicas: Sequence[Replica], num_tokens: int, key: bytes) -> Replica:
        total = num_tokens + sum(replica.outstanding_tokens for replica in replicas)
        bound = self._factor * total / len(replicas)
        for replica in ranked(replicas, key):
            if replica.outstanding_tokens + num_tokens <= bound:
                return replica
        # One request is larger than the bound: where it raises the peak least. Among equals (all idle) the key decides.
        least = min(replica.outstanding_tokens for replica in replicas)
        return ranked([replica for replica in replicas if replica.outstanding_tokens == least], key)[0]


class SessionAffinity:
    """All requests of a session go to the same replica while it is there; without a session, to the least loaded."""

    wants = "session"

    def choose(self, replicas: Sequence[Replica], num_tokens: int, key: bytes) -> Replica:
        return ranked(replicas, key)[0] if key else min(replicas, key=_load)


def ranked(replicas: Sequence[Replica], key: bytes) -> list[Replica]:
    """In the order in which `key` would have them: each key has an order of its own, and no two processes differ."""
    return sorted(replicas, key=lambda replica: blake2b(replica.id.encode(), digest_size=8, key=_short(key)).digest())


def make_policy(name: str, load_factor: float = 1.25) -> Policy:
    """By its name in the configuration."""
    if name == "prefix_affinity":
        return PrefixAffinity(load_factor)
    if name == "session_affinity":
        return SessionAffinity()
    return RoundRobin() if name == "round_robin" else LeastTokens()


def _load(replica: Replica) -> tuple[int, int]:
    return replica.outstanding_tokens, replica.in_flight


def _short(key: bytes) -> bytes:
    """At most as long as the hash takes keys."""
    return key if len(key) <= 64 else blake2b(key, digest_size=32).digest()
