"""The suite asks about every field there is."""

from __future__ import annotations

from llm_inference.gateway.openai.sampling import NEUTRAL
from tests.conformance.fields import PROBES


def test_there_is_a_probe_for_every_field() -> None:
    assert set(PROBES) == set(NEUTRAL)
