"""The engine over a worker without a library: answers, and everything that can go wrong with a process."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.library import engine as module
from llm_inference.adapters.library.engine import LibraryEngine
from llm_inference.engine.supervisor import ChildState
from llm_inference.engine.types import ChatPrompt
from llm_inference.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    NotReadyError,
    ServiceError,
    StartupError,
)
from tests.adapters.generate_model import configuration, write_tokenizer
from tests.adapters.library.stub import MAX_MODEL_LEN, answer, make_engine, text, work
from tests.text.parsers.reading import tool


@pytest_asyncio.fixture
async def engine(tmp_path: Path, prompts: PromptSide) -> AsyncIterator[LibraryEngine]:
    made = make_engine(tmp_path, prompts, reject=2)
    await made.start()
    yield made
    await made.stop(0)


async def test_an_answer(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work("abc"))
    assert text(deltas) == "abc"
    last = deltas[-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", None)
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 4)
    assert last.timing is not None
    assert engine.info.precision == "stub"


async def test_a_chat_goes_through_our_template(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work(ChatPrompt(messages=({"role": "user", "content": "hi"},))))
    assert text(deltas) == "[user]hi[a]"


async def test_a_forced_call_is_read_out_of_the_text(tmp_path: Path) -> None:
    """The stub says its prompt again, which is a call here."""
    directory = write_tokenizer(tmp_path / "m", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    made = make_engine(tmp_path, PromptSide.load(configuration(directory, None, "onnx")))
    said = ChatPrompt(messages=({"role": "user", "content": '{"name": "f", "arguments": {}}'},), tools=(tool("f"),))
    await made.start()
    try:
        deltas = await answer(made, msgspec.structs.replace(work(said), tool_choice="required"))
        with pytest.raises(InvalidRequestError, match="chat template does not show tools"):
            await answer(made, work(said))
    finally:
        await made.stop(0)
    calls = [one for delta in deltas for one in delta.tool_calls]
    assert (calls[0].name, "".join(one.arguments for one in calls)) == ("f", "{}")
    assert (text(deltas), deltas[-1].finish_reason) == ("", "tool_calls")


async def test_lengths(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work("abc", max_tokens=2))
    assert (text(deltas), deltas[-1].finish_reason) == ("ab", "length")
    deltas = await answer(engine, work("abc", ignore_eos=True))
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == MAX_MODEL_LEN - 3


async def test_stop_strings_end_the_work(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work("abcabc", stop=("ca",)))
    assert (text(deltas), deltas[-1].stop_reason) == ("ab", "ca")
    await _idle(engine)


async def test_several_choices(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work("abc", n=3))
    assert [text(deltas, index) for index in range(3)] == ["abc"] * 3
    assert deltas[-1].usage is not None
    assert (deltas[-1].usage.prompt_tokens, deltas[-1].usage.completion_tokens) == (3, 12)


async def test_log_probabilities_have_their_texts(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work("ab", logprobs=1, max_tokens=2))
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [(entry.token, entry.logprob, entry.top[0][1], entry.text_offset) for entry in entries] == [
        ("a", -0.5, "a", 0),
        ("b", -0.5, "b", 1),
    ]


async def test_characters_of_several_tokens(engine: LibraryEngine) -> None:
    deltas = await answer(engine, work("a€😀"))
    assert text(deltas) == "a€😀"
    assert all("�" not in delta.text for delta in deltas)


async def test_what_is_refused(engine: LibraryEngine) -> None:
    for request, param in (
        (work("abc", max_tokens=0), "max_tokens"),
        (work("abc", stop_token_ids=(9999,)), "stop_token_ids"),
        (work("abc", min_tokens=9, max_tokens=8), "min_tokens"),
        (work("abc", n=9), "n"),
        (work("abc", logprobs=1, prompt_logprobs=1), "logprobs"),
        (work((2, 3)), "prompt"),  # by the worker
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await answer(engine, request)
        assert caught.value.param == param
    for request in (work("x" * MAX_MODEL_LEN), work("x" * 50, max_tokens=51)):
        with pytest.raises(ContextLengthError, match=str(MAX_MODEL_LEN)):
            await answer(engine, request)
    assert text(await answer(engine, work("abc"))) == "abc"


async def test_closing_aborts_within_a_step(engine: LibraryEngine) -> None:
    generator = engine.generate(work("abc", ignore_eos=True))
    await anext(generator)
    await generator.aclose()
    await _idle(engine)


async def test_tokenizing(engine: LibraryEngine) -> None:
    result = await engine.tokenize("ab", add_special_tokens=False)
    assert result.tokens == ("a", "b")
    assert await engine.detokenize(result.token_ids) == "ab"
    with pytest.raises(InvalidRequestError, match="tokens"):
        await engine.detokenize((9999,))


async def test_the_socket_is_private(engine: LibraryEngine, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "worker.sock").stat().st_mode) == 0o600


async def test_a_killed_worker_is_one_error_each_and_comes_back(engine: LibraryEngine) -> None:
    generators = [engine.generate(work("abc", ignore_eos=True)) for _ in range(3)]
    for generator in generators:
        await anext(generator)
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for generator in generators:
        with pytest.raises(EngineError, match="restarted"):
            async for _ in generator:
                pass
    health = await engine.health()
    assert (health.live, health.ready) == (True, False)
    with pytest.raises(NotReadyError):
        await answer(engine, work("abc"))
    await _ready(engine)
    assert text(await answer(engine, work("abc"))) == "abc"
    assert engine.stats().num_restarts == 1


async def test_stop_leaves_no_process(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts)
    await engine.start()
    pid = engine.pid
    assert pid is not None
    await engine.stop(0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_stop_waits_for_what_runs(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts)
    await engine.start()
    running = asyncio.create_task(answer(engine, work("abc", max_tokens=20, ignore_eos=True)))
    await asyncio.sleep(0.02)
    await engine.stop(5)
    assert (await running)[-1].finish_reason == "length"


async def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts, die=2)
    await engine.start()
    for _ in range(3):
        await _ready(engine)
        with pytest.raises(EngineError):
            await answer(engine, work("abc"))
    deadline = time.monotonic() + 60
    while (health := await engine.health()).live:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert "given up" in health.reason
    await engine.stop(0)


async def test_a_worker_that_hangs_is_not_progressing(
    tmp_path: Path, prompts: PromptSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALLED_AFTER_S", 0.1)
    engine = make_engine(tmp_path, prompts, hang=1)
    await engine.start()
    generator = engine.generate(work("abc"))
    assert (await anext(generator)).text == "a"
    waiting = asyncio.create_task(anext(generator))
    await asyncio.sleep(0.3)
    health = await engine.health()
    assert (health.live, health.ready, health.progressing) == (True, False, False)
    assert "no step" in health.reason
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await engine.stop(0)


async def test_a_step_that_fails_is_the_error_of_those_that_ran(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts, fail=2)
    await engine.start()
    with pytest.raises(EngineError, match="a step went wrong"):
        await answer(engine, work("abc"))
    assert text(await answer(engine, work("abc"))) == "abc"
    assert engine.stats().num_restarts == 0
    await engine.stop(0)


async def test_steps_that_keep_failing_end_the_process(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts, fail_always=True)
    await engine.start()
    for _ in range(3):
        with pytest.raises(EngineError):
            await answer(engine, work("abc"))
    deadline = time.monotonic() + 60
    while not engine.stats().num_restarts:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await engine.stop(0)


async def test_a_refused_configuration_is_said_once(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts, refuse="engine_args.x: is unknown")
    with pytest.raises(ConfigError, match=r"^engine_args\.x: is unknown$"):
        await engine.start()
    await engine.stop(0)


async def test_a_library_that_crashes_while_loading(tmp_path: Path, prompts: PromptSide) -> None:
    engine = make_engine(tmp_path, prompts, crash=True)
    with pytest.raises(StartupError, match="the library has crashed"):
        await engine.start()
    await engine.stop(0)


async def test_a_further_front_attaches_and_finds_the_worker_again(tmp_path: Path, prompts: PromptSide) -> None:
    owner = make_engine(tmp_path, prompts)
    other = make_engine(tmp_path, prompts, owns_worker=False)
    await owner.start()
    await other.start()
    assert text(await answer(other, work("abc"))) == "abc"
    assert other.pid is None
    generator = other.generate(work("abc", ignore_eos=True))
    await anext(generator)
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        async for _ in generator:
            pass
    await _ready(owner)
    await _ready(other)
    assert text(await answer(other, work("abc"))) == "abc"
    await other.stop(0)
    await _restarted(owner)
    await owner.stop(0)


async def test_the_work_of_a_front_that_goes_away_ends(tmp_path: Path, prompts: PromptSide) -> None:
    owner, other = make_engine(tmp_path, prompts), make_engine(tmp_path, prompts, owns_worker=False)
    await owner.start()
    await other.start()
    generator = other.generate(work("abc", ignore_eos=True))
    await anext(generator)
    await other._client.close()
    with pytest.raises(ServiceError):
        async for _ in generator:
            pass
    await answer(owner, work("abc"))
    await _idle(owner)
    await other.stop(0)
    await owner.stop(0)


async def _idle(engine: LibraryEngine) -> None:
    deadline = time.monotonic() + 60
    while engine.stats().num_running:
        assert time.monotonic() < deadline, "the work goes on without a reader"
        await asyncio.sleep(0.01)


async def _restarted(engine: LibraryEngine) -> None:
    """Others may have found the new worker before its owner has."""
    assert engine._child is not None
    deadline = time.monotonic() + 60
    while engine._child.state is not ChildState.READY:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert engine.stats().num_restarts == 1


async def _ready(engine: LibraryEngine) -> None:
    deadline = time.monotonic() + 60
    while not (await engine.health()).ready:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
