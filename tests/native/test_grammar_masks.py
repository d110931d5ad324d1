"""Masks on logits: what is allowed stays, nothing else does, and never NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import torch

from llm_inference.engine.types import Grammar
from llm_inference.errors import EngineError, InvalidRequestError
from llm_inference.native.grammar import GrammarCompiler, GrammarLimits
from llm_inference.native.grammar_masks import GrammarMasks, apply, expand

EOS = (2, 0)
WIDTH = 49152 + 9  # padded logits: the last ids stand for nothing


@pytest.fixture(scope="module")
def tokenizer_json(default_model_dir: Path) -> str:
    return (default_model_dir / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_json: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json)


@pytest.fixture(scope="module")
def compiler(tokenizer_json: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer_json, WIDTH, EOS)


def test_too_complex_at_run_time_is_a_failure_of_the_one_choice(tokenizer_json: str) -> None:
    compiler = GrammarCompiler(tokenizer_json, WIDTH, EOS, GrammarLimits(max_lexer_states=40))
    hard = compiler.start(Grammar("regex", ".{0,5000}x.{0,5000}y"))
    easy = compiler.start(Grammar("regex", "ab?"))
    masks = GrammarMasks.fill([hard, None, easy], WIDTH)
    assert list(masks.failures) == [0]
    assert isinstance(masks.failures[0], InvalidRequestError)  # the client's own, a 400
    assert masks.failures[0].param == "structured_outputs.regex"
    assert "too complex" in masks.failures[0].message
    logits = torch.randn(3, WIDTH)
    original = logits.clone()
    masks.apply(logits)
    assert torch.equal(logits[:2], original[:2])
    assert torch.isfinite(logits[2]).sum() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masks_leave_what_is_allowed_and_nothing_else(dtype: torch.dtype, compiler: GrammarCompiler) -> None:
    states = [None, compiler.start(Grammar("regex", "[ab]")), None, compiler.start(Grammar("json_object", "{}"))]
    masks = GrammarMasks.fill(states, WIDTH)
    assert masks.rows == [1, 3]
    assert masks.failures == {}
    logits = torch.randn(4, WIDTH).to(dtype)
    original = logits.clone()
    apply(logits, masks)
    for row, state in enumerate(states):
        allowed = torch.ones(WIDTH, dtype=torch.bool) if state is None else torch.from_numpy(state.mask())
        assert torch.equal(logits[row][allowed], original[row][allowed])
        assert (logits[row][~allowed] == float("-inf")).all()
    assert not torch.isnan(torch.softmax(logits.float(), dim=-1)).any()


def test_unpacking_on_the_device_equals_unpacking_here(compiler: GrammarCompiler) -> None:
    states = [compiler.start(Grammar("regex", "(?s:.*)")), compiler.start(Grammar("json_object", "{}"))]
    masks = GrammarMasks.fill(states, WIDTH)
    assert torch.equal(expand(torch.from_numpy(masks.bits), WIDTH), torch.from_numpy(masks.allowed()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grammar_outranks_min_tokens(
    dtype: torch.dtype, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    """EOS was banned (`min_tokens`), but nothing else can follow: EOS it is, and never NaN."""
    state = compiler.start(Grammar("choice", '["a"]'))
    state.accept(tokenizer.token_to_id("a"))
    logits = torch.randn(2, WIDTH).to(dtype)
    logits[:, list(EOS)] = float("-inf")
    other = logits[0].clone()
    GrammarMasks.fill([None, state], WIDTH).apply(logits)
    probabilities = torch.softmax(logits.float(), dim=-1)
    assert not torch.isnan(probabilities).any()
    assert probabilities[1, list(EOS)].sum() == pytest.approx(1.0)
    assert torch.equal(logits[0], other)


@torch.inference_mode()
def test_rows_of_a_view_are_masked_in_place(compiler: GrammarCompiler) -> None:
    whole = torch.randn(4, WIDTH)
    GrammarMasks.fill([compiler.start(Grammar("regex", "[ab]")), None], WIDTH).apply(whole[::2])
    assert torch.isfinite(whole).all(dim=1).tolist() == [False, True, True, True]


def test_nothing_to_mask_and_wrong_widths(compiler: GrammarCompiler) -> None:
    logits = torch.randn(2, WIDTH)
    original = logits.clone()
    GrammarMasks.fill([None, None], WIDTH).apply(logits)
    assert torch.equal(logits, original)
    masks = GrammarMasks.fill([compiler.start(Grammar("json_object", "{}"))], WIDTH)
    with pytest.raises(EngineError, match=str(WIDTH)):
        masks.apply(torch.randn(1, 100))
