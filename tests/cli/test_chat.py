from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from llm_inference.cli.chat import Chat
from llm_inference.cli.conversation import EngineTalker
from llm_inference.cli.loop_thread import LoopThread
from llm_inference.engine.types import SamplingParams
from tests.cli.conftest import Invoke
from tests.cli.fakes import EchoEngine, FakeServe


def test_a_piped_conversation_remembers_its_turns(serve: FakeServe, invoke: Invoke) -> None:
    code, out, _ = invoke("chat", "--system", "brief", stdin="one\n\ntwo\n")
    assert code == 0
    assert out.splitlines() == [
        "system:brief|user:one",
        "system:brief|user:one|assistant:system:brief|user:one|user:two",
    ]
    assert serve.closed == 1


def test_clear_forgets_and_exit_ends(serve: FakeServe, invoke: Invoke) -> None:
    code, out, err = invoke("chat", stdin="one\n/clear\ntwo\n/exit\nthree\n")
    assert (code, out.splitlines()) == (0, ["user:one", "user:two"])
    assert "(forgotten)" in err


def test_a_failed_turn_is_forgotten_and_told(serve: FakeServe, invoke: Invoke) -> None:
    code, out, err = invoke("chat", stdin="overlong\ntwo\n")
    assert (code, out) == (1, "user:two\n")
    assert "error: the prompt has 99 tokens, the model takes 64; /clear begins anew\n" in err


def test_flags_without_effect_are_refused(serve: FakeServe, invoke: Invoke) -> None:
    code, _, err = invoke("chat", "--url", "http://127.0.0.1:1", "--precision", "int8")
    assert (code, err) == (
        2,
        "error: --precision is for a model started here; it has no effect on the server at --url\n",
    )
    code, _, err = invoke("chat", "--api-key", "k")
    assert code == 2
    assert "--api-key is the key of the server at --url" in err


class Interrupting:
    """A stdout on which Ctrl-C comes with the first text."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        self.text += text
        if len(self.text) == len(text):
            raise KeyboardInterrupt
        return len(text)

    def flush(self) -> None:
        """Nothing to flush."""


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_stops_the_answer_and_only_that(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EchoEngine()
    monkeypatch.setattr(sys, "stdout", Interrupting())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal, raising=False)
    with LoopThread() as loop:
        chat = Chat(EngineTalker(engine), loop, SamplingParams(), None)
        talk: Callable[[], Any] = lambda: chat.talk(iter_lines("one", "/exit"))  # noqa: E731
        if terminal:
            assert talk() == 0
            assert [message["role"] for message in chat.messages] == ["user", "assistant"]
        else:
            with pytest.raises(KeyboardInterrupt):
                talk()


def iter_lines(*lines: str) -> Callable[[], str]:
    remaining = list(lines)

    def read() -> str:
        if not remaining:
            raise EOFError
        return remaining.pop(0)

    return read
