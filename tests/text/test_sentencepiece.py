from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.text.sentencepiece import PieceType, convert, read_model
from llm_inference.text.tokenizer import Tokenizer
from tests.text.conftest import CORPUS

TEXTS = [
    "Hello, world!",
    " leading",
    "  two  spaces  ",
    "a\nb\tc",
    "",
    " ",
    "Grüße 日本語 😀 ok",
    "factorial(n) <sep> quick",
    "ﬁ ½ Å",
    "the quick brown fox " * 20,
]


def train(path: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """Llama's settings, unless `options` say otherwise; the trained model is written to `path`."""
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 400,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "character_coverage": 0.99,
        "minloglevel": 2,
    }
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, **{**settings, **options}
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma": {"add_dummy_prefix": False},
    "no bytes": {"byte_fallback": False, "vocab_size": 300},
    "user-defined": {"user_defined_symbols": ["<sep>", "ick"]},
    "normalizing": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    "unigram": {"model_type": "unigram", "vocab_size": 335},
    "unigram, as T5": {
        "model_type": "unigram",
        "vocab_size": 75,
        "byte_fallback": False,
        "normalization_rule_name": "nmt_nfkc",
        "remove_extra_whitespaces": True,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_segments_as_sentencepiece_does(tmp_path: Path, variant: str) -> None:
    path = tmp_path / "tokenizer.model"
    reference = train(path, **VARIANTS[variant])
    backend = convert(read_model(path))
    assert backend.get_vocab_size() == reference.get_piece_size()
    for text in TEXTS:
        assert backend.encode(text, add_special_tokens=False).ids == reference.encode(text), text


@pytest.mark.parametrize("variant", ["llama", "gemma", "unigram"])
def test_decodes_as_sentencepiece_does(tmp_path: Path, variant: str) -> None:
    path = tmp_path / "tokenizer.model"
    reference = train(path, **VARIANTS[variant])
    tokenizer = Tokenizer(convert(read_model(path)))
    for text in TEXTS:
        assert tokenizer.decode(reference.encode(text)) == text


def test_reads_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    reference = train(path, pad_id=3, user_defined_symbols=["<sep>"], add_dummy_prefix=False)
    model = read_model(path)
    assert [(p.text, p.score) for p in model.pieces] == [
        (reference.id_to_piece(i), reference.get_score(i)) for i in range(reference.get_piece_size())
    ]
    assert (model.unk_id, model.bos_id, model.eos_id, model.pad_id) == (0, 1, 2, 3)
    assert (model.model_type, model.byte_fallback, model.add_dummy_prefix) == (2, True, False)
    assert (model.remove_extra_whitespaces, model.escape_whitespaces) == (False, True)
    types = {p.text: p.type for p in model.pieces}
    assert types["<unk>"] == PieceType.UNKNOWN
    assert types["</s>"] == PieceType.CONTROL
    assert types["<sep>"] == PieceType.USER_DEFINED
    assert types["<0x0A>"] == PieceType.BYTE
    no_pad = tmp_path / "no_pad.model"
    train(no_pad)
    assert read_model(no_pad).pad_id == -1


def test_prefix_before_every_stretch_or_only_the_first(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    reference = train(path)
    hello, quick = reference.encode("Hello"), reference.encode("quick")
    text = "Hello</s>quick"
    assert convert(read_model(path), legacy=True).encode(text).ids == [*hello, 2, *quick]
    ids = convert(read_model(path), legacy=False).encode(text).ids
    assert ids[: len(hello) + 1] == [*hello, 2]
    assert ids != [*hello, 2, *quick]


@pytest.mark.parametrize("model_type", ["word", "char"])
def test_other_types_are_refused(tmp_path: Path, model_type: str) -> None:
    path = tmp_path / "tokenizer.model"
    train(path, model_type=model_type, vocab_size=20 if model_type == "char" else 12, byte_fallback=False)
    with pytest.raises(UnsupportedModelError, match="unigram and BPE"):
        convert(read_model(path))


def test_cut_or_foreign_files_are_source_errors(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    train(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"not a model at all", b"\xff" * 40, b"", b"\x0a\x03\x0b\x0b\x0b"):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"tokenizer\.model"):
            read_model(path)
    with pytest.raises(SourceError, match="cannot read"):
        read_model(tmp_path / "absent.model")
