from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from llm_inference.gateway.admission.queue import FairQueue, Waiting


def drain(queue: FairQueue, now: float = 0.0) -> list[Waiting]:
    found = []
    while (one := queue.pop(now)) is not None:
        found.append(one)
    return found


def test_one_key_is_first_in_first_out() -> None:
    queue = FairQueue()
    for number in range(5):
        queue.push(Waiting("a", 10, float(number)))
    assert len(queue) == queue.num_of("a") == 5
    assert queue.num_tokens == 50
    assert [one.since for one in drain(queue)] == [0, 1, 2, 3, 4]
    assert len(queue) == queue.num_tokens == queue.num_of("a") == 0
    assert queue.pop(0) is None
    assert queue.greediest() == ""


def test_keys_take_turns() -> None:
    queue = FairQueue()
    for _ in range(4):
        queue.push(Waiting("flood", 1, 0.0))
    queue.push(Waiting("b", 1, 1.0))
    queue.push(Waiting("c", 1, 1.0))
    assert [one.key for one in drain(queue, 2.0)] == ["flood", "b", "c", "flood", "flood", "flood"]


def test_a_key_that_comes_back_has_no_turns_saved_up() -> None:
    queue = FairQueue()
    for number in range(6):
        queue.push(Waiting(f"k{number % 3}", 1, 0.0))
    assert [one.key for one in (queue.pop(0.0), queue.pop(0.0)) if one] == ["k0", "k1"]
    queue.push(Waiting("new", 1, 5.0))
    assert [one.key for one in drain(queue, 5.0)] == ["k2", "k0", "k1", "new", "k2"]
    assert len(queue) == 0


def test_priority_goes_first_and_ageing_catches_up() -> None:
    queue = FairQueue(ageing_s=5.0)
    queue.push(Waiting("patient", 1, 0.0, priority=2))
    for number in range(3):
        queue.push(Waiting("urgent", 1, float(number), priority=0))
    first = queue.pop(9.9)  # one step of two: still behind
    assert first is not None
    assert first.key == "urgent"
    second = queue.pop(10.0)  # as urgent as the others, and they have had their turn
    assert second is not None
    assert second.key == "patient"


def test_nobody_starves_under_a_stream_of_urgent_requests() -> None:
    queue = FairQueue(ageing_s=1.0)
    queue.push(Waiting("low", 1, 0.0, priority=10))
    for now in range(100):
        queue.push(Waiting("high", 1, float(now), priority=0))
        queue.push(Waiting("high", 1, float(now), priority=0))
        one = queue.pop(float(now))
        if one is not None and one.key == "low":
            assert now == 10
            return
    pytest.fail("it starved")


def test_waiting_puts_nobody_before_its_own_priority() -> None:
    """A key that has been flooding for an hour is not before one that comes now."""
    queue = FairQueue(ageing_s=1.0)
    for _ in range(10):
        queue.push(Waiting("flood", 1, 0.0))
    assert queue.pop(3600.0) is not None
    queue.push(Waiting("new", 1, 3600.0))
    keys = [one.key for one in drain(queue, 3600.0)]
    assert keys.index("new") <= 1


@pytest.mark.parametrize("tokens", [1, 100])
def test_tiers_share_by_weight_and_none_is_wasted(tokens: int) -> None:
    queue = FairQueue({"gold": 3.0, "free": 1.0})
    for number in range(400):
        queue.push(Waiting(f"g{number % 5}", tokens, 0.0, tier="gold"))
        queue.push(Waiting(f"f{number % 5}", tokens, 0.0, tier="free"))
    first = Counter(one.tier for one in (queue.pop(0.0) for _ in range(200)) if one)
    assert first == {"gold": 150, "free": 50}
    rest = Counter(one.tier for one in drain(queue))
    assert rest == {"gold": 250, "free": 350}  # alone, it gets everything


def test_shares_are_of_tokens() -> None:
    queue = FairQueue()
    rng = random.Random(7)
    used: dict[str, int] = defaultdict(int)
    for _ in range(2000):
        queue.push(Waiting("a", rng.randrange(900, 1100), 0.0, tier="long"))
        queue.push(Waiting("b", rng.randrange(90, 110), 0.0, tier="short"))
    for _ in range(1100):
        one = queue.pop(0.0)
        assert one is not None
        used[one.tier] += one.tokens
    assert used["long"] / used["short"] == pytest.approx(1.0, abs=0.05)


def test_an_empty_tier_saves_nothing_up() -> None:
    queue = FairQueue()
    for _ in range(100):
        queue.push(Waiting("a", 10, 0.0, tier="busy"))
    for _ in range(50):
        assert queue.pop(0.0) is not None
    for _ in range(50):
        queue.push(Waiting("b", 10, 0.0, tier="late"))
    first = Counter(one.tier for one in (queue.pop(0.0) for _ in range(20)) if one)
    assert first == {"busy": 10, "late": 10}


def test_a_blocked_model_holds_up_nobody_else() -> None:
    queue = FairQueue()
    queue.push(Waiting("a", 1, 0.0, model="full"))
    queue.push(Waiting("a", 1, 1.0, model="free"))
    one = queue.pop(2.0, lambda model: model == "full")
    assert one is not None
    assert one.model == "free"
    assert queue.pop(2.0, lambda model: model == "full") is None
    assert len(queue) == 1
    assert queue.pop(2.0) is not None


def test_who_is_ahead() -> None:
    queue = FairQueue({"gold": 2.0})
    for number in range(12):
        queue.push(Waiting(f"k{number % 3}", 1, 0.0))
    assert queue.num_ahead("new", "", 0) == 3  # one each
    assert queue.num_ahead("k0", "", 0) == 12
    assert queue.num_ahead("new", "", -1) == 0  # more urgent than all
    assert queue.num_ahead("new", "gold", 0) == 1  # of the other tier at most half as many, rounded up


def test_removing_keeps_the_sums() -> None:
    """Against a plain list, at random."""
    rng = random.Random(3)
    queue = FairQueue({"a": 2.0}, ageing_s=3.0)
    waiting: list[Waiting] = []
    for step in range(3000):
        if rng.random() < 0.5:
            one = Waiting(
                rng.choice("xyz"),
                rng.randrange(1, 50),
                float(step),
                tier=rng.choice(["a", "b", ""]),
                priority=rng.randrange(-2, 3),
                model=rng.choice("mn"),
            )
            waiting.append(one)
            queue.push(one)
        elif waiting and rng.random() < 0.4:
            gone = waiting.pop(rng.randrange(len(waiting)))
            queue.remove(gone)
        elif waiting:
            popped = queue.pop(float(step))
            assert popped in waiting
            waiting.remove(popped)
        assert len(queue) == len(waiting)
        assert queue.num_tokens == sum(one.tokens for one in waiting)
        assert Counter(one.key for one in waiting) == Counter({key: queue.num_of(key) for key in "xyz"})
        assert sorted(map(id, queue)) == sorted(map(id, waiting))
    assert len(drain(queue, 9999.0)) == len(waiting)
