"""Each rule of the scheduler, on small pools and without a model."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest

from llm_inference.errors import ConfigError, ContextLengthError, InvalidRequestError
from llm_inference.native.batch import ModelInput
from llm_inference.native.kv_cache import KVCacheManager
from llm_inference.native.request import SampledToken, SequenceStatus
from llm_inference.native.scheduler import Scheduler, SchedulerConfig
from tests.native.scheduling import Harness, request


def config(**changes: float | None) -> SchedulerConfig:
    values = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 100, "block_size": 4, **changes}
    return SchedulerConfig(**values)  # type: ignore[arg-type]


# --- configuration and refusals


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"block_size": 0}, "block_size"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"admission_window": 0}, "admission_window"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
        ({"max_prefill_tokens_with_decodes": 0}, "max_prefill_tokens_with_decodes"),
        ({"priority_ageing_s": 0.0}, "priority_ageing_s"),
        ({"priority_ageing_s": float("nan")}, "priority_ageing_s"),
    ],
)
def test_contradicting_limits_are_refused(changes: dict[str, float], param: str) -> None:
    with pytest.raises(ConfigError, match=param) as caught:
        config(**changes)
    assert caught.value.param == param


def test_prompt_tokens_beside_decodes_default_to_256_within_the_step() -> None:
    for context in (0, 10**6):
        assert config().prefill_tokens_with_decodes(context) == 64
        assert config(max_num_batched_tokens=2048).prefill_tokens_with_decodes(context) == 256
        wider = config(max_num_batched_tokens=2048, max_prefill_tokens_with_decodes=512)
        assert wider.prefill_tokens_with_decodes(context) == 512
        assert replace(wider, max_num_batched_tokens=64).prefill_tokens_with_decodes(context) == 64


@pytest.mark.parametrize(("context", "expected"), [(0, 256), (1000, 192), (3000, 128), (9000, 64), (10**9, 16)])
def test_chunks_beside_decodes_shrink_as_their_context_grows(context: int, expected: int) -> None:
    limits = config(max_num_batched_tokens=2048, context_that_doubles_cost=3000)
    assert limits.prefill_tokens_with_decodes(context) == expected


def test_a_long_prompt_beside_a_stream_is_computed_in_shrinking_chunks() -> None:
    limits = config(max_num_batched_tokens=64, max_model_len=400, context_that_doubles_cost=64)
    scheduler = Scheduler(limits, KVCacheManager(200, 4, enable_prefix_caching=False))
    scheduler.add(request("stream", [1, 2, 3], max_tokens=100), 0.0)
    scheduler.update(scheduler.schedule(0.0), [[SampledToken(7)]], 0.0)
    scheduler.add(request("long", list(range(300)), max_tokens=1), 0.0)
    chunks = []
    while sum(chunks) < 300:
        batch = scheduler.schedule(0.0)
        chunks += [item.num_tokens for item in batch.scheduled if item.sequence.request.request_id == "long"]
        scheduler.update(batch, [[SampledToken(7)] * len(item.samplers) for item in batch.scheduled], 0.0)
    assert chunks[:2] == [63, 32]  # one of the 64 tokens of the first step is the stream's
    assert chunks == sorted(chunks, reverse=True)
    assert all(chunk * (1 + done / 64) <= 64 for chunk, done in zip(chunks, accumulate([0, *chunks]), strict=False))


def test_what_can_never_run_is_refused_at_once() -> None:
    harness = Harness(num_blocks=10, block_size=4, max_num_seqs=3, max_model_len=30)
    with pytest.raises(InvalidRequestError, match="no tokens") as caught:
        harness.add("empty", [])
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="max_num_seqs") as caught:
        harness.add("wide", [1], n=4)
    assert caught.value.param == "n"
    with pytest.raises(InvalidRequestError, match="max_num_seqs") as caught:
        harness.add("wide", [1], n=2, best_of=4)
    assert caught.value.param == "best_of"
    with pytest.raises(ContextLengthError, match=r"context length is 30 tokens, but the prompt has 30") as caught:
        harness.add("long", range(30))
    assert (caught.value.param, caught.value.public_code) == ("prompt", "context_length_exceeded")
    assert not harness.scheduler.has_work
    harness.add("fits", range(29))
    with pytest.raises(InvalidRequestError, match="in use"):
        harness.add("fits", [1])
    harness.run()
    assert harness.finish_reasons("fits") == ["length"]
    harness.add("fits", [1])  # the id is free again
    harness.run()


def test_a_prompt_over_the_whole_pool_is_refused_and_others_go_on() -> None:
    harness = Harness(num_blocks=4, block_size=4, max_model_len=1000)
    harness.add("ok", range(5), max_tokens=3)
    with pytest.raises(ContextLengthError, match="KV cache holds 16 tokens, but the prompt has 16"):
        harness.add("huge", range(16))
    harness.add("just", range(100, 115), max_tokens=50)
    harness.run()
    assert len(harness.tokens("ok")) == 3
    assert (len(harness.tokens("just")), harness.finish_reasons("just")) == (1, ["length"])


# --- one request


def test_one_request_from_prompt_to_length() -> None:
    harness = Harness()
    harness.add("a", range(10), max_tokens=3)
    assert (harness.scheduler.num_waiting, harness.scheduler.num_running) == (1, 0)
    assert harness.step() == {"a": 10}
    assert harness.step() == {"a": 1}
    assert harness.step() == {"a": 1}
    assert harness.tokens("a") == [1010, 1011, 1012]
    assert harness.finish_reasons("a") == ["length"]
    last = harness.outputs["a", 0][-1]
    assert (last.first_scheduled_s, last.first_token_s, last.num_cached_tokens) == (1.0, 1.0, 0)
    assert not harness.scheduler.has_work
    assert not harness.scheduler.is_live("a")
    assert harness.schedule() == {}
    assert harness.kv.num_free_blocks == harness.kv.num_blocks


def test_eos_and_stop_ids_end_a_choice() -> None:
    harness = Harness()
    harness.add("eos", [1, 2, 3], eos_token_ids=(1004,), max_tokens=9)
    harness.add("stop", [4, 5, 6], stop_token_ids=(1003,), max_tokens=9)
    harness.run()
    assert harness.tokens("eos") == [1003, 1004]
    assert harness.outputs["eos", 0][-1].stop_reason is None
    assert harness.tokens("stop") == [1003]
    assert harness.outputs["stop", 0][-1].stop_reason == 1003
    assert harness.finish_reasons("eos") == harness.finish_reasons("stop") == ["stop"]


def test_the_context_ends_an_answer_that_may_be_longer() -> None:
    harness = Harness(max_model_len=12)
    harness.add("a", range(9), max_tokens=100)
    harness.run()
    assert len(harness.tokens("a")) == 3
    assert harness.finish_reasons("a") == ["length"]


def test_an_answer_grows_to_the_last_slot_of_the_pool() -> None:
    harness = Harness(num_blocks=3, block_size=4, max_model_len=100)
    harness.add("a", range(5), max_tokens=100)
    harness.run()
    assert len(harness.tokens("a")) == 12 - 5


def test_scoring_samples_nothing_and_says_length_once_per_choice() -> None:
    harness = Harness(max_num_batched_tokens=8, max_model_len=20)
    harness.add("score", range(20), max_tokens=0, prompt_logprobs=0)
    harness.add("three", range(50, 56), max_tokens=0, n=3)
    while harness.scheduler.has_work:
        harness.schedule()
        assert all(item.samplers == [] for item in harness.batch.scheduled)
        harness.update()
    assert harness.finish_reasons("score") == ["length"]
    assert harness.tokens("score") == []
    assert [harness.finish_reasons("three", index) for index in range(3)] == [["length"]] * 3
    assert harness.kv.num_free_blocks == harness.kv.num_blocks


# --- batching and the token budget


def test_a_finished_sequence_leaves_and_a_waiting_one_enters_at_the_next_step() -> None:
    harness = Harness(max_num_seqs=2)
    harness.add("a", [1], max_tokens=2)
    harness.add("b", [2], max_tokens=4)
    harness.add("c", [3], max_tokens=2)
    assert harness.step() == {"a": 1, "b": 1}
    assert harness.step() == {"a": 1, "b": 1}
    assert harness.step() == {"b": 1, "c": 1}
    assert harness.step() == {"b": 1, "c": 1}
    assert not harness.scheduler.has_work


def test_decodes_come_first_and_prompts_are_chunked_beside_them() -> None:
    harness = Harness(max_num_batched_tokens=16, max_prefill_tokens_with_decodes=6)
    harness.add("stream", [1, 2], max_tokens=20)
    harness.step()
    harness.add("long", range(100, 140))
    seen = []
    while harness.scheduler.num_running < 2 or len(seen) < 7:
        seen.append(harness.schedule())
        assert next(iter(seen[-1])) == "stream"
        assert ModelInput.build(harness.batch, 4).num_decodes >= 1
        harness.update()
    assert seen == [{"stream": 1, "long": 6}] * 6 + [{"stream": 1, "long": 4}]
    assert harness.tokens("long") == [1040]


def test_one_token_chunks_stand_with_the_decodes() -> None:
    harness = Harness()
    harness.add("long", range(9))
    harness.add("short", [50])
    harness.schedule()
    assert [item.num_tokens for item in harness.batch.scheduled] == [1, 9]
    assert ModelInput.build(harness.batch, 4).num_decodes == 1


def test_the_step_budget_holds() -> None:
    harness = Harness(max_num_batched_tokens=16, max_num_seqs=8)
    for number in range(12):
        harness.add(f"r{number}", range(number * 100, number * 100 + 5 + number), max_tokens=5)
    while harness.scheduler.has_work:
        scheduled = harness.step()
        assert 0 < sum(scheduled.values()) <= 16
    assert all(harness.finish_reasons(f"r{number}") == ["length"] for number in range(12))


def test_a_short_prompt_does_not_wait_for_all_chunks_of_a_long_one() -> None:
    harness = Harness(max_num_batched_tokens=16, num_blocks=64)
    harness.add("long", range(100))
    assert harness.step() == {"long": 16}
    harness.add("short", range(500, 506))
    assert harness.step() == {"long": 10, "short": 6}
    assert harness.tokens("short") == [1006]


def test_a_long_prompt_keeps_half_of_the_budget_against_many_short_ones() -> None:
    harness = Harness(max_num_batched_tokens=16, num_blocks=200, max_num_seqs=16)
    harness.add("long", range(90), max_tokens=1)
    for number in range(60):
        harness.add(f"s{number}", range(1000 + 10 * number, 1006 + 10 * number), max_tokens=1)
    steps = 0
    while not harness.finish_reasons("long"):
        assert harness.step()["long"] >= 8 or harness.finish_reasons("long")
        steps += 1
    assert steps <= 12


def test_equally_long_prompts_go_one_after_the_other() -> None:
    harness = Harness(max_num_batched_tokens=16)
    harness.add("first", range(40), max_tokens=1)
    harness.add("second", range(100, 140), max_tokens=1)
    assert harness.step() == {"first": 16}
    assert harness.step() == {"first": 16}
    assert harness.step() == {"first": 8, "second": 8}


def test_what_overtakes_leaves_a_seat_for_the_overtaken() -> None:
    harness = Harness(max_num_batched_tokens=16, max_num_seqs=3)
    harness.add("first", range(60), max_tokens=1)
    harness.add("second", range(100, 160), max_tokens=1)
    harness.add("short", range(200, 204), max_tokens=9)
    harness.add("late", range(300, 304), max_tokens=9)
    assert harness.step() == {"first": 12, "short": 4}  # two seats used, one kept for "second"
    assert "late" not in harness.step()


# --- order


def test_priority_first_then_arrival() -> None:
    harness = Harness(max_num_seqs=1)
    for name, priority in (("low", 5), ("first", 0), ("second", 0), ("high", -3)):
        harness.add(name, [1, 2], priority=priority, max_tokens=1)
    assert [next(iter(harness.step())) for _ in range(4)] == ["high", "first", "second", "low"]


def test_waiting_earns_priority() -> None:
    harness = Harness(max_num_seqs=1, priority_ageing_s=10.0)
    harness.add("patient", [1, 2], priority=2, max_tokens=1)
    served = []
    for number in range(40):
        harness.add(f"vip{number}", [3, 4], priority=0, max_tokens=1)
        served.append(next(iter(harness.step())))
    assert served.index("patient") == 20  # two levels at ten seconds each


def test_without_ageing_priorities_are_strict() -> None:
    harness = Harness(max_num_seqs=1, priority_ageing_s=float("inf"))
    harness.add("patient", [1, 2], priority=1, max_tokens=1)
    for number in range(50):
        harness.add(f"vip{number}", [3, 4], max_tokens=1)
        assert "patient" not in harness.step()
    harness.run()
    assert harness.finish_reasons("patient") == ["length"]


def test_nobody_overtakes_one_that_lacks_blocks_or_seats() -> None:
    harness = Harness(num_blocks=8, block_size=4)
    harness.add("running", range(16), max_tokens=6)
    harness.step()
    harness.add("big", range(100, 120), max_tokens=1)
    harness.add("small", [7], max_tokens=1)
    assert harness.step() == {"running": 1}
    harness.run()
    assert harness.outputs["big", 0][0].first_token_s <= harness.outputs["small", 0][0].first_token_s  # type: ignore[operator]

    harness = Harness(max_num_seqs=3)
    harness.add("running", [1], max_tokens=6)
    harness.step()
    harness.add("wide", [2], n=3, max_tokens=1)
    harness.add("small", [3], max_tokens=1)
    assert harness.step() == {"running": 1}


# --- preemption


def test_the_lowest_ranked_is_preempted_and_loses_no_token() -> None:
    harness = Harness(num_blocks=6, block_size=4)
    harness.add("urgent", range(7), max_tokens=12, priority=0)
    harness.add("later", range(100, 107), max_tokens=12, priority=1)
    harness.run()
    assert harness.scheduler.num_preemptions > 0
    assert harness.tokens("urgent") == harness.tokens("later") == list(range(1007, 1019))
    assert harness.finish_reasons("urgent") == harness.finish_reasons("later") == ["length"]
    done = [harness.outputs[name, 0][-1] for name in ("urgent", "later")]
    assert done[0].first_token_s == done[1].first_token_s == 1.0


def test_among_equals_the_last_to_arrive_is_preempted_and_comes_back_first() -> None:
    harness = Harness(num_blocks=6, block_size=4, max_num_seqs=2)
    harness.add("a", range(7), max_tokens=12)
    harness.add("b", range(100, 107), max_tokens=12)
    harness.add("c", range(200, 203), max_tokens=1)
    while not harness.scheduler.num_preemptions:
        scheduled = harness.step()
    assert "b" not in scheduled
    assert "c" not in scheduled
    order: list[str] = []
    while harness.scheduler.has_work:
        order += harness.step()
    assert order.index("b") < order.index("c")
    assert harness.finish_reasons("b") == ["length"]


def test_what_was_preempted_finds_its_own_blocks_again() -> None:
    harness = Harness(num_blocks=7, block_size=4, max_num_seqs=2)
    harness.add("a", range(7), max_tokens=10)
    harness.add("b", range(100, 107), max_tokens=12)
    while not harness.scheduler.num_preemptions:
        harness.step()
    while "b" not in harness.schedule():
        harness.update()
    (item,) = [item for item in harness.batch.scheduled if item.sequence.request.request_id == "b"]
    assert item.start >= 4  # its first block at least
    harness.update()
    harness.run()
    assert harness.tokens("b") == list(range(1007, 1019))
    assert harness.outputs["b", 0][-1].num_cached_tokens == 0  # of the prompt, when it first entered


def test_nothing_is_preempted_in_order_to_admit() -> None:
    harness = Harness(num_blocks=6, block_size=4)
    harness.add("low", range(15), max_tokens=6, priority=9)
    harness.step()
    harness.add("high", range(100, 115), max_tokens=1, priority=0)
    while harness.scheduler.has_work:
        harness.step()
    assert harness.scheduler.num_preemptions == 0
    assert harness.finish_reasons("high") == ["length"]


def test_the_oldest_goes_on_in_every_step_of_a_crowded_pool() -> None:
    harness = Harness(num_blocks=8, block_size=2, max_num_seqs=4, max_model_len=16)
    for number in range(6):
        harness.add(f"r{number}", range(10 * number, 10 * number + 4), max_tokens=12)
    while not harness.finish_reasons("r0"):
        assert "r0" in harness.step()
    harness.run()
    assert harness.scheduler.num_preemptions > 2
    assert all(harness.tokens(f"r{number}") == list(range(1004, 1016)) for number in range(6))


# --- choices


def test_choices_fork_when_the_prompt_is_computed_and_share_its_blocks() -> None:
    harness = Harness(max_num_batched_tokens=8, num_blocks=32)
    harness.choose = lambda sequence: 1000 * (sequence.index + 1) + len(sequence.token_ids)
    harness.add("a", range(10), n=3, max_tokens=3)
    harness.schedule()
    assert harness.batch.scheduled[0].samplers == []
    harness.update()
    harness.schedule()
    (item,) = harness.batch.scheduled
    assert [sampler.index for sampler in item.samplers] == [0, 1, 2]
    assert all(sampler.block_table == item.sequence.block_table for sampler in item.samplers)
    harness.update()
    assert harness.kv.num_free_blocks == 32 - 3
    assert harness.schedule() == {"a": 1, "a/1": 1, "a/2": 1}
    assert len(harness.batch.block_copies) == 2  # the third writes in place
    harness.update()
    harness.run()
    for index in range(3):
        base = 1000 * (index + 1)
        assert harness.tokens("a", index) == [base + 10, base + 11, base + 12]
        assert harness.finish_reasons("a", index) == ["length"]
    assert harness.kv.num_free_blocks == 32


def test_best_of_makes_that_many_choices() -> None:
    harness = Harness()
    harness.add("a", [1, 2], n=1, best_of=3, max_tokens=1)
    harness.run()
    assert sorted(harness.outputs) == [("a", 0), ("a", 1), ("a", 2)]


def test_seats_are_kept_for_choices_that_have_not_forked_yet() -> None:
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=8)
    harness.add("wide", range(20), n=3, max_tokens=9)
    harness.add("one", [50], max_tokens=9)
    harness.add("two", [60], max_tokens=9)
    for _ in range(4):
        assert "two" not in harness.step()
    assert harness.scheduler.num_running == 4
    assert harness.scheduler.num_waiting == 1


def test_choices_survive_preemption_in_a_pool_that_holds_only_one() -> None:
    harness = Harness(num_blocks=4, block_size=4, max_model_len=16)
    harness.choose = lambda sequence: 1000 * (sequence.index + 1) + len(sequence.token_ids)
    harness.add("a", range(6), n=3, max_tokens=8)
    harness.run()
    assert harness.scheduler.num_preemptions > 0
    for index in range(3):
        assert harness.tokens("a", index) == [1000 * (index + 1) + length for length in range(6, 14)]
        assert harness.finish_reasons("a", index) == ["length"]
    assert harness.kv.num_free_blocks == 4


# --- abort


def test_abort_frees_at_once_wherever_the_request_is() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add("running", range(10), max_tokens=50)
    harness.add("waiting", range(10), max_tokens=50)
    harness.step()
    assert harness.scheduler.abort("waiting")
    assert harness.scheduler.num_waiting == 0
    assert harness.scheduler.abort("running")
    assert harness.kv.num_free_blocks == harness.kv.num_blocks
    assert not harness.scheduler.has_work
    assert not harness.scheduler.abort("running")
    assert not harness.scheduler.abort("never seen")
    assert harness.finish_reasons("running") == []


def test_abort_between_schedule_and_update_is_passed_over() -> None:
    harness = Harness()
    harness.add("gone", range(5), n=2)
    harness.add("stays", range(50, 55))
    harness.schedule()
    sequences = [sampler for item in harness.batch.scheduled for sampler in item.samplers]
    assert harness.scheduler.abort("gone")
    assert {output.request_id for output in harness.update()} == {"stays"}
    assert [s.status for s in sequences] == [SequenceStatus.FINISHED, SequenceStatus.FINISHED, SequenceStatus.RUNNING]
    assert not harness.kv.lookup(sequences[0]).block_ids  # what may not have been computed is not shared
    harness.run()
    assert len(harness.tokens("stays")) == 4


def test_one_choice_can_be_aborted_and_the_others_go_on() -> None:
    harness = Harness()
    harness.add("a", range(5), n=3)
    harness.step()
    assert harness.scheduler.abort("a", 0)
    assert not harness.scheduler.abort("a", 0)
    assert not harness.scheduler.abort("a", 7)
    harness.run()
    assert len(harness.tokens("a", 0)) == 1
    assert [len(harness.tokens("a", index)) for index in (1, 2)] == [4, 4]


def test_the_first_choice_aborted_in_the_step_of_the_fork_takes_nothing_from_the_others() -> None:
    harness = Harness()
    harness.add("a", range(8), n=2)
    harness.schedule()
    assert harness.scheduler.abort("a", 0)
    harness.update()
    harness.run()
    assert harness.tokens("a", 0) == []
    assert harness.tokens("a", 1) == [1008, 1009, 1010, 1011]
    harness.add("again", range(9), max_tokens=1)
    harness.run()
    assert harness.outputs["again", 0][0].num_cached_tokens == 8


def test_choices_aborted_before_the_fork_never_appear() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.add("a", range(10), n=4)
    harness.step()
    assert harness.scheduler.abort("a", 2)
    assert harness.scheduler.abort("a", 0)  # it computes the prompt: choice 1 takes that over
    assert not harness.scheduler.abort("a", 0)
    harness.run()
    assert sorted(harness.outputs) == [("a", 1), ("a", 3)]
    assert harness.finish_reasons("a", 1) == harness.finish_reasons("a", 3) == ["length"]
    assert harness.kv.num_free_blocks == harness.kv.num_blocks


# --- prefix sharing


def test_the_next_turn_reuses_the_last_ones_blocks() -> None:
    harness = Harness()
    harness.add("turn1", range(10), max_tokens=7)
    harness.run()
    history = [*range(10), *harness.tokens("turn1")]
    harness.add("turn2", [*history, 5, 6], max_tokens=1)
    assert harness.step() == {"turn2": 19 - 16}
    assert harness.outputs["turn2", 0][0].num_cached_tokens == 16
    stats = harness.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (29, 16)


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    harness = Harness(max_num_batched_tokens=16, num_blocks=64)
    harness.add("first", [*range(40), 900], max_tokens=1)
    harness.add("second", [*range(40), 901], max_tokens=1)
    harness.add("third", [*range(40), 902], max_tokens=1)
    harness.add("other", range(500, 508), max_tokens=1)
    assert harness.step() == {"first": 8, "other": 8}  # unrelated work goes on meanwhile
    assert harness.step() == {"first": 16}
    assert harness.step() == {"first": 16}
    assert harness.step() == {"first": 1, "second": 1, "third": 1}  # all that they share is computed
    assert harness.outputs["third", 0][0].num_cached_tokens == 40


@pytest.mark.parametrize("how", ["abort", "preempt"])
def test_who_waits_for_a_prefix_computes_it_when_the_other_goes_away(how: str) -> None:
    harness = Harness(max_num_batched_tokens=8, num_blocks=16 if how == "abort" else 8, block_size=4)
    if how == "preempt":
        harness.add("old", range(300, 303), max_tokens=30)
        harness.step()
    harness.add("first", [*range(22), 900], max_tokens=1, priority=1)
    harness.step()
    harness.add("second", [*range(22), 901], max_tokens=1)
    assert "second" not in harness.step()
    if how == "abort":
        harness.scheduler.abort("first")
        assert "second" in harness.step()
    else:
        harness.scheduler._preempt(harness.scheduler._running[-1])
    harness.run()
    assert harness.finish_reasons("second") == ["length"]
    assert harness.finish_reasons("first") == ([] if how == "abort" else ["length"])


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([0, 1, 2, 3], {}),  # its only full block holds its last token
        ([0, 1, 2], {}),  # no full block
        (list(range(12)), {"cache_salt": "other"}),
        (list(range(12)), {"prompt_logprobs": 1}),
        ([9, *range(11)], {}),
    ],
)
def test_nobody_waits_where_nothing_is_to_gain(prompt: list[int], options: dict[str, object]) -> None:
    harness = Harness()
    harness.add("first", range(12), max_tokens=1)
    harness.add("second", prompt, max_tokens=1, **options)
    assert harness.step() == {"first": 12, "second": len(prompt)}


def test_nobody_waits_without_prefix_caching() -> None:
    harness = Harness(enable_prefix_caching=False)
    harness.add("first", range(12), max_tokens=1)
    harness.add("second", range(12), max_tokens=1)
    assert harness.step() == {"first": 12, "second": 12}


def test_prompt_logprobs_compute_the_whole_prompt() -> None:
    harness = Harness()
    harness.add("warm", range(12), max_tokens=1)
    harness.run()
    harness.add("score", range(12), max_tokens=1, prompt_logprobs=1)
    harness.schedule()
    assert ModelInput.build(harness.batch, 4).logits_indices == list(range(12))
    harness.update()
    assert harness.outputs["score", 0][0].num_cached_tokens == 0


# --- figures and misuse


def test_stats_tell_load_and_cache() -> None:
    harness = Harness(num_blocks=10, max_num_seqs=1)
    harness.add("a", range(10))
    harness.add("b", range(10))
    harness.step()
    stats = harness.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.num_kv_blocks, stats.num_free_kv_blocks) == (10, 7)
    assert stats.kv_cache_usage == pytest.approx(0.3)
    assert stats.num_preemptions == stats.num_evictions == 0


def test_an_update_that_does_not_fit_the_batch_is_an_error() -> None:
    harness = Harness()
    harness.scheduler.add(request("a", [1]), 0.0)
    batch = harness.scheduler.schedule(1.0)
    with pytest.raises(ValueError, match="zip"):
        harness.scheduler.update(batch, [[SampledToken(1), SampledToken(2)]], 1.0)
