"""Charges for tests of counters."""

from __future__ import annotations

import time

from llm_inference.gateway.tenants.limits import Charge, Limits, Subject, charges_of


def subject(key: str = "key:k_1", **limits: int) -> Subject:
    return Subject(key, "this API key", Limits(**limits))


def charges(tokens: int = 0, key: str = "key:k_1", **limits: int) -> list[Charge]:
    """What a request of `tokens` tokens takes of `limits`."""
    return charges_of(subject(key, **limits), tokens, 0, time.time())
