"""From requests to core requests: lengths, limits, ids, beams, grammars; each refusal names its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.engine.types import ChatPrompt, GenerateRequest, GenerationDefaults, Grammar, Prompt, SamplingParams
from llm_inference.errors import ContextLengthError, InvalidRequestError
from llm_inference.native.grammar import GrammarCompiler
from llm_inference.native.prepare import Limits, Preparer
from llm_inference.native.request import CoreRequest
from llm_inference.text.parsing import ModelFormats
from llm_inference.text.tokenizer import Tokenizer

MAX_MODEL_LEN = 64
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def preparer(default_model_dir: Path) -> Preparer:
    tokenizer = Tokenizer.load(default_model_dir)
    return Preparer(
        tokenizer=tokenizer,
        defaults=GenerationDefaults(temperature=0.3, max_tokens=50),
        eos_token_ids=(2,),
        limits=Limits(MAX_MODEL_LEN, 8, tokenizer.vocab_size),
        formats=ModelFormats.choose("auto", "auto", tokenizer),
        grammars=GrammarCompiler(tokenizer.to_json(), tokenizer.vocab_size, (2,)),
    )


def prepare(preparer: Preparer, prompt: Prompt, *, echo: bool = False, **sampling: Any) -> CoreRequest:
    request = GenerateRequest(request_id="r", model="m", prompt=prompt, sampling=SamplingParams(**sampling), echo=echo)
    return preparer.prepare(request, "core-1").core_request


def refusal(preparer: Preparer, prompt: Prompt, **options: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        prepare(preparer, prompt, **options)
    return caught.value


def test_defaults_fill_what_the_request_leaves_open(preparer: Preparer) -> None:
    core = prepare(preparer, "Hello")
    assert core.request_id == "core-1"
    assert core.sampling.temperature == 0.3
    assert core.sampling.max_tokens == 50
    assert core.sampling.top_p == 1.0
    assert prepare(preparer, "Hello", temperature=0.0).sampling.temperature == 0.0


def test_the_default_length_shrinks_to_the_room_that_is_left(preparer: Preparer) -> None:
    assert prepare(preparer, (5,) * 60).sampling.max_tokens == 4


def test_a_prompt_that_is_exactly_full(preparer: Preparer) -> None:
    assert prepare(preparer, (5,) * 63).sampling.max_tokens == 1
    error = refusal(preparer, (5,) * 64)
    assert isinstance(error, ContextLengthError)
    assert "64 tokens" in error.message
    assert prepare(preparer, (5,) * 64, echo=True, max_tokens=0).sampling.max_tokens == 0


def test_what_was_asked_for_does_not_fit(preparer: Preparer) -> None:
    error = refusal(preparer, (5,) * 60, max_tokens=5)
    assert isinstance(error, ContextLengthError)
    assert (error.param, error.public_code) == ("max_tokens", "context_length_exceeded")
    assert "60 in the prompt and 5 to generate" in error.message
    assert "at most 4" in error.message


@pytest.mark.parametrize("where", ["prompt", "messages"])
def test_a_hopeless_text_is_refused_without_tokenizing(
    preparer: Preparer, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("the text was tokenized"))
    text = "x" * (preparer.tokenizer.max_token_chars * MAX_MODEL_LEN + 1)
    chat = ChatPrompt(messages=({"role": "user", "content": [{"type": "text", "text": text}]},))
    error = refusal(preparer, text if where == "prompt" else chat)
    assert isinstance(error, ContextLengthError)
    assert error.param == where


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"stop_token_ids": (49152,)}, "stop_token_ids"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"min_tokens": 60}, "min_tokens"),
        ({"n": 9}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"num_beams": 9}, "num_beams"),
        ({"num_beams": 2, "n": 3}, "n"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature"),
        ({"num_beams": 2, "seed": 1}, "seed"),
        ({"num_beams": 2, "length_penalty": 1e308}, "length_penalty"),
        ({"num_beams": 2, "length_penalty": -21.0}, "length_penalty"),
        ({"num_beams": 8, "stop_token_ids": tuple(range(64))}, "num_beams"),
        ({"num_beams": 2, "max_tokens": 0, "echo": True}, "num_beams"),
        ({"num_beams": 2, "logprobs": 1}, "logprobs"),
        ({"num_beams": 2, "grammar": Grammar("json_object", "")}, "num_beams"),
        ({"grammar": Grammar("regex", "("), "temperature": 0.0}, "structured_outputs"),
        ({"grammar": Grammar("json_object", ""), "ignore_eos": True}, "ignore_eos"),
        ({"grammar": Grammar("json_object", ""), "min_tokens": 3}, "min_tokens"),
    ],
)
def test_refusals_name_the_field(preparer: Preparer, options: dict[str, Any], param: str) -> None:
    error = refusal(preparer, "Hello", **options)
    assert error.param is not None
    assert error.param.startswith(param)


@pytest.mark.parametrize("bad", [-1, 49152, 10**12])
def test_token_ids_outside_the_vocabulary(preparer: Preparer, bad: int) -> None:
    error = refusal(preparer, (5, bad))
    assert error.param == "prompt"
    assert str(bad) in error.message


def test_best_of_samples_more_choices_and_their_probabilities(preparer: Preparer) -> None:
    sampling = prepare(preparer, "Hello", n=2, best_of=5).sampling
    assert (sampling.n, sampling.logprobs) == (5, 0)


def test_tools_without_effect_are_refused_and_a_forced_call_is_not(preparer: Preparer) -> None:
    """The default model's template shows no tools."""
    chat = ChatPrompt(messages=({"role": "user", "content": "hi"},), tools=(TOOL,))
    assert refusal(preparer, chat).param == "tools"
    request = GenerateRequest(request_id="r", model="m", prompt=chat, tool_choice="required")
    assert preparer.prepare(request, "c").core_request.sampling.grammar is not None
    with_format = GenerateRequest(
        request_id="r",
        model="m",
        prompt=chat,
        tool_choice="required",
        sampling=SamplingParams(grammar=Grammar("json_object", "")),
    )
    with pytest.raises(InvalidRequestError, match="response_format"):
        preparer.prepare(with_format, "c")
