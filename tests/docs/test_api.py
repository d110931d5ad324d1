"""docs/api.md against the code: routes, fields, refusals, errors."""

from __future__ import annotations

import re

import pytest

from llm_inference import errors
from llm_inference.errors import LLMInferenceError, RequestError, ServiceError, StartupError
from llm_inference.gateway.auth import OPEN_PATHS
from llm_inference.gateway.openai import protocol, sampling
from llm_inference.gateway.openai.fields import RequestFields, SamplingFields
from llm_inference.gateway.routes import all_routes
from llm_inference.native.capabilities import CAPABILITIES
from tests.docs.blocks import REPOSITORY, coded, section, table

DOCUMENT = REPOSITORY / "docs" / "api.md"
#: Where each name of the "On" column is.
KINDS: dict[str, type[SamplingFields]] = {
    "chat": protocol.ChatCompletionRequest,
    "completions": protocol.CompletionRequest,
    "batches": protocol.BatchCompletionRequest,
}


def fields_of(heading: str) -> set[str]:
    names = [name for row in table(section(DOCUMENT, heading)) for name in coded(row[0])]
    assert len(names) == len(set(names)), "a field is documented twice"
    return set(names)


def test_every_route_is_documented() -> None:
    documented = {coded(row[0])[0] for row in table(section(DOCUMENT, "Routes"))}
    routes = {f"{route.method} {route.path}" for route in all_routes("/v1")}
    at_the_root = {"POST /tokenize", "POST /detokenize"}  # said in the rows of their prefixed forms
    assert documented == {route.replace("{model_id:path}", "{id}") for route in routes - at_the_root}
    last = [coded(row[0])[0].split()[1] for row in table(section(DOCUMENT, "Routes"))][-len(OPEN_PATHS) :]
    assert set(last) == OPEN_PATHS, "the text below says that the last ones need no key"


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Chat fields", protocol.ChatCompletionRequest),
        ("Completion fields", protocol.CompletionRequest),
        ("Batch fields", protocol.BatchCompletionRequest),
    ],
)
def test_every_field_of_a_route_is_documented(heading: str, model: type[RequestFields]) -> None:
    assert fields_of(heading) == set(model.model_fields) - set(SamplingFields.model_fields)


def test_every_shared_field_is_documented() -> None:
    assert fields_of("Shared fields") == set(SamplingFields.model_fields)


def test_every_field_of_the_tokenizer_routes_is_documented() -> None:
    assert fields_of("Tokenizer fields") == set(protocol.TokenizeRequest.model_fields)
    assert set(protocol.DetokenizeRequest.model_fields) == {"model", "tokens"}


def test_every_refused_field_is_documented() -> None:
    documented: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for row in table(section(DOCUMENT, "Refused, and why")):
        for kind in KINDS if row[1] == "all" else row[1].split(", "):
            documented[kind].update(coded(row[0]))
    for kind, model in KINDS.items():
        assert documented[kind] == {*model.refused, *model.inert}, kind


def test_what_the_native_engine_refuses_is_documented() -> None:
    refused = {field for field in sampling.NEUTRAL if CAPABILITIES.support(field) == "refused"}
    assert fields_of("Refused by the native engine") == refused


def classes(root: type[LLMInferenceError]) -> set[type[LLMInferenceError]]:
    return {root, *(below for child in root.__subclasses__() for below in classes(child))}


def test_every_error_is_documented_with_its_public_face() -> None:
    rows = {coded(row[0])[0]: row for row in table(section(DOCUMENT, "Errors"))}
    wanted = (classes(RequestError) | classes(ServiceError)) - {RequestError, ServiceError}
    assert set(rows) == {error.__name__ for error in wanted}
    for name, row in rows.items():
        error = getattr(errors, name)
        assert int(row[1]) == error.status, name
        assert coded(row[2]) == [error.type], name
        assert (error.code or "null") in row[3], name


def test_every_start_up_error_is_documented() -> None:
    text = section(DOCUMENT, "Errors").split("These end the process", 1)[1]
    rows = {coded(row[0])[0]: coded(row[1])[0] for row in table(text)}
    assert rows == {error.__name__: error.code for error in classes(StartupError) - {StartupError}}


def test_codes_of_single_errors_are_documented() -> None:
    source = "\n".join(path.read_text() for path in (REPOSITORY / "src").rglob("*.py"))
    codes = set(re.findall(r'\bcode="([a-z_]+)"', source))
    assert "unknown_parameter" in codes
    assert codes <= set(coded(section(DOCUMENT, "Errors")))
