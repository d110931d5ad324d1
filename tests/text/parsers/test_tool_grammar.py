"""What the grammars force, the parsers read: random walks, judged by each tool's own schema."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers

from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError
from llm_inference.native.grammar import GrammarCompiler
from llm_inference.text.parsers.registry import make_parser
from llm_inference.text.parsers.tool_grammar import (
    MAX_PARALLEL_CALLS,
    allowed_tools,
    forced_parser,
    forces_call,
    tool_grammar,
    tool_schema,
)
from tests.text.parsers.reading import Reading, read, tool

WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
    strict=True,
)
ROUTE = tool(
    "route",
    {
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
                            "additionalProperties": False}},
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/point"}},
        "required": ["to"],
        "additionalProperties": False,
    },
)  # fmt: skip
TIME = tool("get_time")
TOOLS = [WEATHER, ROUTE, TIME]
SCHEMAS = {item["function"]["name"]: item["function"].get("parameters") for item in TOOLS}
PARSERS = ["hermes", "llama3_json", "mistral", "pythonic", "json", None]


@pytest.fixture(scope="module")
def tokenizer_json(default_model_dir: Path) -> str:
    return (default_model_dir / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def compiler(tokenizer_json: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer_json, 49152, (2,))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_json: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json)


def walk(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer, grammar: Grammar, seed: int, patience: int) -> str:
    """Random allowed tokens; past `patience` the shortest way out."""
    compiler.check(grammar, "tools")
    chooser = random.Random(seed)
    state, token_ids = compiler.start(grammar), []
    closers = [tokenizer.token_to_id(text) for text in ("}", "]", '"', "</", "0")]
    while not state.is_finished:
        allowed = state.mask()
        choices = np.flatnonzero(allowed)
        if len(token_ids) > patience:
            choices = np.array([2]) if allowed[2] else np.array([i for i in closers if allowed[i]] or choices)
        token_id = int(chooser.choice(choices))
        state.accept(token_id)
        assert state.failure is None
        if token_id == 2:
            break
        token_ids.append(token_id)
        assert len(token_ids) < 900
    return str(tokenizer.decode(token_ids, skip_special_tokens=False))


def read_forced(parser_name: str | None, text: str, reasoning: str | None = None) -> Reading:
    parser = make_parser(forced_parser(parser_name), reasoning, tools=TOOLS, starts_in_reasoning=reasoning is not None)
    return read(parser, text)


def check_calls(reading: Reading) -> None:
    for name, arguments in reading.calls:
        schema = SCHEMAS[name]
        if schema is None:
            assert json.loads(arguments) == {}
        else:
            jsonschema.validate(json.loads(arguments), schema)


@pytest.mark.parametrize("parser_name", PARSERS)
def test_required_calls_are_valid_calls(
    parser_name: str | None, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    grammar = tool_grammar(TOOLS, "required", parser_name)
    assert grammar is not None
    names: set[str] = set()
    counts: set[int] = set()
    for seed in range(24):
        reading = read_forced(parser_name, walk(compiler, tokenizer, grammar, seed, patience=60))
        assert reading.text == ""
        assert 1 <= len(reading.calls) <= MAX_PARALLEL_CALLS
        check_calls(reading)
        names.update(reading.names)
        counts.add(len(reading.calls))
    assert names == set(SCHEMAS)
    assert max(counts) > 1


@pytest.mark.parametrize("parser_name", PARSERS)
def test_without_parallel_calls_there_is_one(
    parser_name: str | None, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    grammar = tool_grammar(TOOLS, "required", parser_name, parallel=False)
    assert grammar is not None
    for seed in range(4):
        reading = read_forced(parser_name, walk(compiler, tokenizer, grammar, seed, patience=200))
        assert len(reading.calls) == 1
        check_calls(reading)


@pytest.mark.parametrize("parser_name", PARSERS)
def test_a_named_function_is_called_once(
    parser_name: str | None, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    choice = {"type": "function", "function": {"name": "route"}}
    grammar = tool_grammar(TOOLS, choice, parser_name)
    assert grammar is not None
    for seed in range(3):
        reading = read_forced(parser_name, walk(compiler, tokenizer, grammar, seed, patience=200))
        assert reading.names == ["route"]
        check_calls(reading)


ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "allowed_tools", "allowed_tools": ALLOWED},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
    ],
)
def test_required_allowed_tools(
    choice: dict[str, Any], compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    assert allowed_tools(TOOLS, choice) == (TIME,)
    assert forces_call(choice)
    grammar = tool_grammar(TOOLS, choice, "hermes")
    assert grammar is not None
    assert set(read_forced("hermes", walk(compiler, tokenizer, grammar, 0, patience=40)).names) == {"get_time"}


def test_reasoning_comes_first_where_the_prompt_has_opened_it(
    compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    grammar = tool_grammar(TOOLS, "required", "hermes", parallel=False, in_reasoning=True)
    assert grammar is not None
    compiler.check(grammar)
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    for text, is_right in {
        f"Hm, a <b> </thin k>.\n</think>\n\n{call}": True,
        f"</think>{call}": True,
        f"Hm.</think>no {call}": False,
        call: False,
    }.items():
        state = compiler.start(grammar)
        for token_id in tokenizer.encode(text).ids:
            state.accept(token_id)
        assert (state.failure is None and state.is_finished) == is_right, text
        if is_right:
            assert read_forced("hermes", text, "think").calls == [("get_time", "{}")]


@pytest.mark.parametrize(
    "choice", [None, "auto", "none", {"type": "allowed_tools", "allowed_tools": {**ALLOWED, "mode": "auto"}}]
)
def test_nothing_is_forced_otherwise(choice: Any) -> None:
    assert tool_grammar(TOOLS, choice, "hermes") is None


def test_who_may_be_called() -> None:
    assert allowed_tools(TOOLS, None) == tuple(TOOLS)
    assert allowed_tools(TOOLS, "auto") == tuple(TOOLS)
    assert allowed_tools(TOOLS, "none") == ()
    assert allowed_tools(TOOLS, {"type": "function", "name": "route"}) == (ROUTE,)


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([], "required", "tool_choice"),
        (TOOLS, "always", "tool_choice"),
        (TOOLS, {"type": "custom"}, "tool_choice"),
        (TOOLS, {"type": "function"}, "tool_choice"),
        (TOOLS, {"type": "function", "function": {"name": "other"}}, "tool_choice"),
        (TOOLS, {"type": "function", "function": {"name": 5}}, "tool_choice"),
        (TOOLS, {"type": "allowed_tools", "allowed_tools": 5}, "tool_choice"),
        (TOOLS, {"type": "allowed_tools", "mode": "any", "tools": []}, "tool_choice.allowed_tools.mode"),
        (TOOLS, {"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.allowed_tools.tools"),
        (TOOLS, {"type": "allowed_tools", "mode": "auto", "tools": [5]}, "tool_choice.allowed_tools.tools[0]"),
        ([tool("f") | {"function": {"name": "f", "parameters": 5}}], "required", "tools"),
    ],
)
def test_wrong_choices_name_their_field(tools: list[Any], choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        tool_grammar(tools, choice, "hermes")
    assert caught.value.param == param
    assert param in caught.value.message


def test_strict_tools_are_enforced_or_refused_others_as_far_as_possible(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    lenient = tool_grammar([tool("f", schema)], "required", "hermes")
    strict = tool_grammar([tool("f", schema, strict=True)], "required", "hermes")
    assert lenient is not None
    assert strict is not None
    compiler.check(lenient, "tools")
    with pytest.raises(InvalidRequestError, match="uniqueItems") as caught:
        compiler.check(strict, "tools")
    assert caught.value.param == "tools"


def test_names_and_schemas_are_quoted(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    odd = tool('a"b\\{}', {"type": "object", "properties": {'k"\n': {"const": "%json {"}}, "required": ['k"\n']})
    for name in PARSERS:
        grammar = tool_grammar([odd], "required", name, parallel=False)
        assert grammar is not None
        text = walk(compiler, tokenizer, grammar, 0, patience=10)
        reading = read(make_parser(forced_parser(name), tools=[odd]), [text])
        assert reading.names == ['a"b\\{}']
        assert json.loads(reading.arguments[0])['k"\n'] == "%json {"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "route"}}])
def test_a_schema_takes_one_call_and_nothing_else(choice: Any) -> None:
    """With each tool's references still pointing where they did."""
    grammar = tool_schema(TOOLS, choice)
    assert grammar is not None
    assert grammar.kind == "json_schema"
    validator = jsonschema.Draft202012Validator(json.loads(grammar.source))
    route = {"name": "route", "arguments": {"to": {"x": 1}}}
    assert validator.is_valid(route)
    assert not validator.is_valid({**route, "arguments": {"to": {"x": "one"}}})
    assert not validator.is_valid({**route, "more": 1})
    assert not validator.is_valid([route])
    others = [{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Paris"}}]
    assert [validator.is_valid(other) for other in others] == [choice == "required"] * 2
    assert not validator.is_valid({"name": "get_weather", "arguments": {"to": {"x": 1}}})
    parser = make_parser("json", tools=TOOLS, parallel=False)
    parsed = parser.add(json.dumps(route, indent=2)) + parser.finish()
    assert [call.name for call in parsed.tool_calls] == ["route"]


def test_a_schema_where_there_is_nothing_to_force() -> None:
    assert tool_schema(TOOLS, "auto") is None
    for tools, choice in (([], "required"), (TOOLS, {"type": "function", "function": {"name": "nobody"}})):
        with pytest.raises(InvalidRequestError):
            tool_schema(tools, choice)
    with pytest.raises(InvalidRequestError, match="must be a JSON Schema object"):
        tool_schema([tool("f", [])], "required")  # type: ignore[arg-type]
