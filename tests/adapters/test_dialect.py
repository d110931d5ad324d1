from __future__ import annotations

import json
import re

import pytest

from llm_inference.adapters.dialect import Dialect, capability_table, logprob, refuse_lark, schema_or_regex
from llm_inference.adapters.lightllm import LightLLMDialect
from llm_inference.adapters.mii import MIIDialect
from llm_inference.adapters.ollama_native import OllamaDialect
from llm_inference.adapters.sglang_generate import SGLangDialect
from llm_inference.adapters.tgi_generate import TGIDialect
from llm_inference.adapters.triton import TritonDialect
from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.sampling import NEUTRAL

DIALECTS: list[Dialect] = [
    LightLLMDialect(),
    MIIDialect({}),
    OllamaDialect(),
    SGLangDialect(),
    TGIDialect(),
    TritonDialect({}),
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_field_is_supported_or_refused_with_a_reason(dialect: Dialect) -> None:
    table = dialect.capabilities
    assert set(table.fields) <= set(NEUTRAL)
    unexplained = [name for name in NEUTRAL if table.support(name) == "refused" and not table.reasons.get(name)]
    assert unexplained == []
    assert not set(table.fields) & set(table.reasons)


def test_a_refusal_goes_before_what_is_common_to_all() -> None:
    table = capability_table(enforced=("seed",), refused={"echo": "no"})
    assert (table.support("seed"), table.support("n"), table.support("echo")) == ("enforced", "emulated", "refused")
    assert table.reasons["echo"] == "no"


def test_only_lark_is_refused() -> None:
    for harmless in (None, Grammar("regex", "a+"), Grammar("json_object", "")):
        refuse_lark("sglang", harmless)
    with pytest.raises(InvalidRequestError, match=r"sglang.*EBNF") as caught:
        refuse_lark("sglang", Grammar("grammar", "start: 'a'"))
    assert caught.value.param == "structured_outputs"
    with pytest.raises(InvalidRequestError, match="schemas only"):
        refuse_lark("tgi", Grammar("grammar", "start: 'a'"), "it takes schemas only")


def test_grammars_as_schemas_and_expressions() -> None:
    assert schema_or_regex(Grammar("json_object", "")) == ("json_schema", '{"type": "object"}')
    assert schema_or_regex(Grammar("json_schema", "{}")) == ("json_schema", "{}")
    assert schema_or_regex(Grammar("regex", "a+")) == ("regex", "a+")
    texts = ("a.b", "(c|d)", "e f", "[g]{2}^$*+?\\")
    kind, expression = schema_or_regex(Grammar("choice", json.dumps(texts)))
    assert kind == "regex"
    assert all(re.fullmatch(expression, text) for text in texts)
    assert re.fullmatch(expression, "axb") is None


def test_alternatives_are_sorted() -> None:
    entry = logprob(1, "é", -1.0, [(2, "b", -3.0), (3, "c", -2.0)])
    assert entry.token_bytes == "é".encode()
    assert [token_id for token_id, *_ in entry.top] == [3, 2]
