"""What the front says in public of a core that died."""

from __future__ import annotations

from llm_inference.native.engine import _in_public


def test_the_last_lines_of_a_child_stay_in_the_log() -> None:
    """`/health` needs no key; a traceback may hold paths, and parts of requests."""
    died = "the engine of m was killed by SIGKILL"
    assert _in_public(died) == died
    assert _in_public(f"{died}; its last lines:\n  Traceback …\n  ValueError: secret") == died
    given_up = f"the engine of m was restarted 5 times in 600 s and is given up; last: {died}"
    assert _in_public(f"{given_up}; its last lines:\n  secret") == given_up
