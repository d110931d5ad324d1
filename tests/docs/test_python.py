"""docs/python.md against the code: every field of `SamplingParams` with its default, every example."""

from __future__ import annotations

import dataclasses

import msgspec

from llm_inference import SamplingParams
from llm_inference.llm import Completion, RequestOutput
from tests.docs.blocks import REPOSITORY, coded, section, table

DOCUMENT = REPOSITORY / "docs" / "python.md"


def test_every_sampling_parameter_is_documented_with_its_default() -> None:
    documented = {coded(row[0])[0]: coded(row[1])[0] for row in table(section(DOCUMENT, "SamplingParams"))}
    true = {field.name: repr(field.default) for field in msgspec.structs.fields(SamplingParams)}
    assert documented == true
    assert list(documented) == list(true)


def test_the_fields_of_an_output_are_documented() -> None:
    text = section(DOCUMENT, "generate")
    for kind in (RequestOutput, Completion):
        assert {field.name for field in dataclasses.fields(kind)} <= set(coded(text)), kind.__name__


def test_every_example_is_listed() -> None:
    text = section(DOCUMENT, "Examples") + (REPOSITORY / "docs" / "benchmarking.md").read_text()
    assert [path.name for path in (REPOSITORY / "examples").glob("*.py") if path.name not in text] == []
