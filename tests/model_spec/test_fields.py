from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.errors import SourceError
from llm_inference.model_spec.fields import JsonFields


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "must hold a JSON object, not list"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        JsonFields.read(path)
    assert str(path) in str(caught.value)


def test_absent_file_and_directory_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is missing"):
        JsonFields.read(tmp_path / "config.json")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(SourceError, match="cannot be read"):
        JsonFields.read(tmp_path / "config.json")


def test_values_keep_their_types() -> None:
    fields = JsonFields(Path("c.json"), {"i": 3, "f": 2.5, "b": False, "s": "x", "l": ["a"], "ids": [1, 2], "id": 7})
    assert (fields.integer("i"), fields.number("i"), fields.number("f")) == (3, 3.0, 2.5)
    assert (fields.boolean("b", True), fields.text("s"), fields.texts("l")) == (False, "x", ("a",))
    assert (fields.token_ids("ids"), fields.token_ids("id"), fields.token_ids("none")) == ((1, 2), (7,), ())
    assert (fields.optional_integer("none"), fields.optional_number("none"), fields.section("none")) == (None,) * 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", [1]])
def test_numbers_are_finite_numbers(value: object) -> None:
    with pytest.raises(SourceError, match=r"c\.json: 'rope\.factor' must be a finite number"):
        JsonFields(Path("c.json"), {"factor": value}, "rope.").number("factor")


@pytest.mark.parametrize("value", [[1, "2"], [True], -1, "5", [[1]]])
def test_token_ids_are_ids(value: object) -> None:
    with pytest.raises(SourceError, match="must be a token id or a list of them"):
        JsonFields(Path("c.json"), {"eos_token_id": value}).token_ids("eos_token_id")
