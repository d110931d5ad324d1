"""Every format's quoting against that format's own reader, with hostile texts."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_inference.deploy import quoting
from llm_inference.errors import ConfigError

#: Texts that have broken other generators.
HOSTILE = [
    "",
    " ",
    "yes",
    "No",
    "null",
    "~",
    "1",
    "1e3",
    "0x10",
    "1_000",
    "12:30",
    "2027-01-31",
    "true",
    "y",
    ".inf",
    "=",
    "<<",
    "a: b",
    "a #b",
    "# a",
    "- a",
    "[a]",
    "{a: b}",
    "&a",
    "*a",
    "!a",
    "%a",
    "@a",
    "`a`",
    "|",
    ">",
    "a\nb: c",
    "a\r\nb",
    "\u2028",
    "\x85",
    "\x00",
    "\x7f",
    "\ufeff",
    "\U0001f600",
    "${HOME}",
    "$(id)",
    "`id`",
    '"; rm -rf /; "',
    "'",
    '"',
    "\\",
    "\\n",
    "{{ .Values.x }}",
    "[[ 7 * 7 ]]",
    "[% for %]",
    "%n",
    "%%",
    "$$",
    "a,b",
    "-",
    "--x",
    "?",
    "a" * 500,
    "5s",
    "7Gi",
    '{a="b"}',
    'it\'s "quoted"',
]
texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


@given(values)
@settings(max_examples=400, deadline=None)
def test_yaml_reads_the_same_value(value: Any) -> None:
    for document in (f"key: {quoting.yaml_scalar(value)}  # comment\n", f"- {{key: {quoting.yaml_scalar(value)}}}\n"):
        read = yaml.safe_load(document)
        assert (read["key"] if isinstance(read, dict) else read[0]["key"]) == value
        assert "\n" not in document[:-1]


@pytest.mark.parametrize("value", HOSTILE)
def test_text_stays_text_in_yaml(value: str) -> None:
    assert yaml.safe_load(f"[{quoting.yaml_scalar(value)}]") == [value]


def test_half_a_character_becomes_the_replacement() -> None:
    assert yaml.safe_load(quoting.yaml_scalar("a\ud83d")) == "a\ufffd"


def test_words_and_quantities_stay_bare() -> None:
    assert [quoting.yaml_scalar(one) for one in ("llm-inference", "/cache", "5s", "7Gi")] == [
        "llm-inference", "/cache", "5s", "7Gi",
    ]  # fmt: skip
    assert quoting.yaml_scalar('a="b"') == "'a=\"b\"'"


@given(texts)
@settings(deadline=None)
def test_compose_fills_in_nothing(value: str) -> None:
    read = yaml.safe_load(quoting.compose_scalar(value))
    assert read.replace("$$", "") == value.replace("$", "")
    assert read.count("$") == 2 * value.count("$")


@pytest.mark.parametrize("quote", [quoting.dockerfile_text, quoting.systemd_text, quoting.nginx_text])
@given(value=texts)
@settings(deadline=None)
def test_lines_stay_lines(quote: Any, value: str) -> None:
    try:
        text = quote(value)
    except ConfigError:
        return  # refused is as good
    assert len(text.splitlines()) <= 1


@given(texts)
@settings(deadline=None)
def test_a_shell_word_reads_the_same(value: str) -> None:
    """A Dockerfile's double quotes are those of a shell, but for the back-tick, which it does not know."""
    try:
        quoted = quoting.dockerfile_text(value)
    except ConfigError:
        return
    assert [word.replace("\\$", "$") for word in shlex.split(quoted)] == [value]


def test_systemd_takes_percent_and_dollar_literally() -> None:
    assert quoting.systemd_text('50% of "$HOME"\\') == '"50%% of \\"$$HOME\\"\\\\"'


def test_nginx_refuses_what_it_would_interpret() -> None:
    with pytest.raises(ConfigError, match="variable"):
        quoting.nginx_text("$host")
    assert quoting.nginx_text('a b; "c"') == '"a b; \\"c\\""'


@given(texts)
@settings(deadline=None)
def test_comments_stay_on_their_line(value: str) -> None:
    assert len(quoting.comment_text(value).splitlines()) <= 1


def test_json() -> None:
    assert json.loads(quoting.json_text('a"b\n')) == 'a"b\n'
