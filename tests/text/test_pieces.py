from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from llm_inference.text.pieces import MAX_BYTE_RUN, PieceTable, byte_alphabet


def test_alphabet_is_the_library_s_own(byte_level: Tokenizer) -> None:
    from tokenizers import pre_tokenizers

    alphabet = byte_alphabet()
    assert sorted(alphabet) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    for character, byte in alphabet.items():
        if byte < 0x80:
            assert decoders.ByteLevel().decode([character]) == chr(byte)


@pytest.mark.parametrize("text", ["Hello, world!", "Grüße 日本語 😀", "a\n\tb", "\x00\x7f"])
def test_byte_level_bytes_join_to_the_text(byte_level: Tokenizer, text: str) -> None:
    pieces = PieceTable(byte_level)
    assert pieces.kind == "byte_level"
    assert b"".join(map(pieces.bytes_of, byte_level.encode(text).ids)) == text.encode()


def test_added_token_outside_the_alphabet_is_plain_text(byte_level: Tokenizer) -> None:
    pieces = PieceTable(byte_level)
    token_id = byte_level.token_to_id("<｜end▁of▁text｜>")
    assert pieces.bytes_of(token_id) == "<｜end▁of▁text｜>".encode()
    assert token_id in pieces.special_ids
    assert byte_level.token_to_id("日本") not in pieces.special_ids


@pytest.mark.parametrize("text", ["Hello, world!", "Grüße 日本語 😀", "a\nb"])
def test_sentencepiece_bytes_join_to_the_prefixed_text(llama_like: Tokenizer, text: str) -> None:
    pieces = PieceTable(llama_like)
    assert (pieces.kind, pieces.strip_left) == ("sentencepiece", 1)
    ids = llama_like.encode(text, add_special_tokens=False).ids
    assert b"".join(map(pieces.bytes_of, ids)) == (" " + text).encode()


def test_unknown_ids_stand_for_nothing(byte_level: Tokenizer, llama_like: Tokenizer) -> None:
    for backend in (byte_level, llama_like):
        pieces = PieceTable(backend)
        assert pieces.bytes_of(10**6) == b""
        assert pieces.bytes_of(-1) == b""


@pytest.mark.parametrize(
    ("decoder", "kind", "token", "data"),
    [
        (None, "other", "▁a", "▁a"),
        (decoders.Metaspace(), "other", "▁a", " a"),
        (decoders.WordPiece(), "other", "##a", "##a"),
        (decoders.Sequence([decoders.ByteLevel()]), "byte_level", "Ġa", " a"),
        (
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
            "sentencepiece",
            "▁a",
            " a",
        ),
        (
            decoders.Sequence([decoders.Replace("▁", "_"), decoders.ByteFallback(), decoders.Fuse()]),
            "other",
            "▁a",
            " a",
        ),
        (
            decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]
            ),
            "other",
            "▁a",
            " a",
        ),
    ],
)
def test_kind_is_read_from_the_decoder(decoder: decoders.Decoder | None, kind: str, token: str, data: str) -> None:
    backend = Tokenizer(models.WordLevel({token: 0}, unk_token=token))
    if decoder is not None:
        backend.decoder = decoder
    pieces = PieceTable(backend)
    assert pieces.kind == kind
    assert pieces.bytes_of(0) == data.encode()


@pytest.mark.parametrize(
    ("token", "byte"), [("<0x0A>", 10), ("<0xe2>", 0xE2), ("<0xGG>", None), ("<0x100>", None), ("0x0A", None)]
)
def test_raw_byte(llama_like: Tokenizer, token: str, byte: int | None) -> None:
    assert PieceTable(llama_like).raw_byte(token) == byte


def test_long_byte_runs_are_found(llama_like: Tokenizer) -> None:
    pieces = PieceTable(llama_like)
    byte, letter, special = (llama_like.token_to_id(token) for token in ("<0xF0>", "a", "</s>"))
    assert pieces.has_long_byte_run([byte] * (MAX_BYTE_RUN + 1), True)
    assert not pieces.has_long_byte_run([byte] * MAX_BYTE_RUN + [letter], True)
    assert not pieces.has_long_byte_run([byte] * MAX_BYTE_RUN + [letter, byte], True)
    assert pieces.has_long_byte_run([byte] * MAX_BYTE_RUN + [special, byte], True)
    assert not pieces.has_long_byte_run([byte] * MAX_BYTE_RUN + [special, byte], False)
