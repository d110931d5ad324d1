"""Grammars that eat or kill whoever compiles them: refused within limits, and the next one is checked as ever."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_inference.engine.types import Grammar
from llm_inference.errors import EngineError, InvalidRequestError
from llm_inference.native.grammar import GrammarCompiler
from llm_inference.native.grammar_guard import GrammarGuard, GuardLimits

CHAIN = 4000
BOMBS = {
    "cpu: divisors": Grammar("json_schema", json.dumps({"type": "integer", "multipleOf": 999983})),
    "cpu: intersections": Grammar("grammar", "start: X\nX: " + " & ".join(f"/.*a.{{{n}}}/" for n in range(200))),
    "stack: rules": Grammar(
        "grammar", "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(CHAIN)) + f'r{CHAIN}: "a"'
    ),
    "stack: references": Grammar(
        "json_schema",
        json.dumps(
            {
                "$defs": {
                    **{f"a{n}": {"items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(1500)},
                    "a1500": {"type": "integer"},
                },
                "$ref": "#/$defs/a0",
            }
        ),
    ),
}


@pytest.fixture(scope="module")
def compiler(default_model_dir: Path) -> GrammarCompiler:
    return GrammarCompiler((default_model_dir / "tokenizer.json").read_text(encoding="utf-8"), 49152, (2, 0))


@pytest.fixture(scope="module")
def guard(compiler: GrammarCompiler) -> Iterator[GrammarGuard]:
    guard = GrammarGuard(compiler, GuardLimits(cpu_s=1.0))
    yield guard
    guard.close()


def refusal(guard: GrammarGuard, grammar: Grammar, param: str | None = None) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        guard.check(grammar, param)
    return caught.value


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_and_the_next_is_checked(guard: GrammarGuard, name: str) -> None:
    error = refusal(guard, BOMBS[name])
    assert "make it simpler" in error.message
    is_lark = BOMBS[name].kind == "grammar"
    assert error.param == ("structured_outputs.grammar" if is_lark else "response_format.json_schema.schema")
    guard.check(Grammar("regex", f"[a-z]+{len(name)}"))


def test_a_bomb_is_not_tried_twice(guard: GrammarGuard) -> None:
    first = refusal(guard, BOMBS["cpu: divisors"])
    begun = time.monotonic()
    assert refusal(guard, BOMBS["cpu: divisors"], "tools").message == first.message.replace(str(first.param), "tools")
    assert time.monotonic() - begun < 5  # a try of it takes longer than that


def test_refusals_are_those_of_the_compiler(guard: GrammarGuard, compiler: GrammarCompiler) -> None:
    for grammar in (
        Grammar("json_schema", '{"type": "nope"}'),
        Grammar("regex", "(a"),
        Grammar("json_schema", '{"$ref": "#"}'),
        Grammar("choice", "[]"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            compiler.check(grammar)
        error = refusal(guard, grammar)
        assert (error.message, error.param) == (caught.value.message, caught.value.param)


def test_many_large_grammars_do_not_add_up(guard: GrammarGuard) -> None:
    """Each takes tens of megabytes; kept, they would soon end the process for want of memory."""
    guard.check(Grammar("regex", "warm"))
    process = guard._process
    for number in range(12):
        guard.check(Grammar("json_schema", json.dumps({"const": f"{number}" * 20_000})))
    assert guard._process is process
    assert process is not None
    resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096
    assert resident < 500 * 2**20


def test_a_dead_process_is_replaced(guard: GrammarGuard) -> None:
    guard.check(Grammar("regex", "before"))
    process = guard._process
    assert process is not None
    process.kill()
    process.wait()
    guard.check(Grammar("regex", "after"))
    assert guard._process is not process


def test_nothing_is_left_and_nothing_starts_after_the_end(compiler: GrammarCompiler) -> None:
    guard = GrammarGuard(compiler)
    guard.check(Grammar("regex", "a"))
    process = guard._process
    assert process is not None
    guard.close()
    assert process.poll() is not None
    with pytest.raises(EngineError, match="stopping"):
        guard.check(Grammar("regex", "b"))
