from __future__ import annotations

import pytest

from llm_inference.adapters import llamacpp
from llm_inference.adapters.launch import Plan
from llm_inference.adapters.llamacpp import PROFILE, arguments, grammar_fields
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError


def test_what_its_grammars_can_say() -> None:
    assert grammar_fields(Grammar("choice", '["Rome", "say \\"Oslo\\""]')) == {
        "grammar": 'root ::= "Rome" | "say \\"Oslo\\""'
    }
    assert grammar_fields(Grammar("json_object", "")) == {"response_format": {"type": "json_object"}}
    for kind in ("regex", "grammar"):
        with pytest.raises(InvalidRequestError, match="GBNF") as caught:
            grammar_fields(Grammar(kind, "x"))  # type: ignore[arg-type]
        assert caught.value.param == f"structured_outputs.{kind}"
    assert PROFILE.support("structured_outputs") == "enforced"


def test_every_slot_has_the_whole_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "available_cpus", lambda: 3)
    model = ModelConfig(name="n", model="m", max_model_len=100, max_num_seqs=4)
    argv = arguments(Plan(model=model, source="m.gguf", port=5))
    flags = dict(zip(argv[::2], argv[1::2], strict=False))
    assert (flags["--ctx-size"], flags["--parallel"], flags["--threads"]) == ("400", "4", "3")
    assert "--parallel" not in arguments(Plan(model=ModelConfig(model="m"), source="m.gguf", port=5))
