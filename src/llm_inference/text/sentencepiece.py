"""`tokenizer.model` (SentencePiece) as a `tokenizers.Tokenizer`, read without the sentencepiece package.

A SentencePiece file is one protocol buffer; the few fields that matter are read here straight from the wire format,
so that no further package is needed. Field numbers are those of sentencepiece_model.proto:

    ModelProto      1 pieces {1 piece, 2 score, 3 type}   2 trainer_spec   3 normalizer_spec
    TrainerSpec     3 model_type (1 unigram, 2 bpe)   35 byte_fallback   40-43 unk, bos, eos, pad id
    NormalizerSpec  2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces   5 escape_whitespaces

Knows nothing of tokenizer_config.json: BOS and EOS are added by whoever loads the tokenizer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.text.pieces import SPACE_MARK


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: int


@dataclass(slots=True)
class SentencePieceModel:
    """What the file says; the defaults are the format's own."""

    pieces: list[Piece] = field(default_factory=list)
    model_type: int = 1
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True

    def text_of(self, piece_id: int) -> str | None:
        return self.pieces[piece_id].text if 0 <= piece_id < len(self.pieces) else None


def read_model(path: Path) -> SentencePieceModel:
    """Raises `SourceError` if the file cannot be read or is no SentencePiece model."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot read the SentencePiece model: {error.strerror}") from error
    try:
        model = _parse(data)
    except (ValueError, IndexError, struct.error, TypeError) as error:
        raise SourceError(f"{path}: not a SentencePiece model, or cut short ({error})") from error
    if not model.pieces:
        raise SourceError(f"{path}: a SentencePiece model without pieces")
    return model


def convert(model: SentencePieceModel, *, legacy: bool = True) -> tokenizers.Tokenizer:
    """The same segmentation from the tokenizers library.

    `legacy`: the dummy prefix space is put before every stretch of text between special tokens (as
    `legacy: true` of tokenizer_config.json says, the default); otherwise only at the start of the text.
    Raises `UnsupportedModelError` for model types other than unigram and BPE.
    """
    user_defined = [piece.text for piece in model.pieces if piece.type == PieceType.USER_DEFINED]
    unk = model.text_of(model.unk_id)
    if model.model_type == 1:
        engine: models.Model
        vocab = [(piece.text, piece.score) for piece in model.pieces]
        engine = models.Unigram(vocab, unk_id=model.unk_id, byte_fallback=model.byte_fallback)
    elif model.model_type == 2:
        ids = {piece.text: index for index, piece in enumerate(model.pieces)}
        engine = models.BPE(
            vocab=ids,
            merges=_merges(model),
            unk_token=unk,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
            ignore_merges=bool(user_defined),  # a user-defined piece is one token, though no merge makes it
        )
    else:
        raise UnsupportedModelError(
            f"SentencePiece model type {model.model_type} (word or char) is not supported; unigram and BPE are"
        )
    backend = tokenizers.Tokenizer(engine)
    backend.normalizer = _normalizer(model, legacy)
    splits: list[pre_tokenizers.PreTokenizer] = []
    if model.add_dummy_prefix and not legacy:
        splits.append(pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="first", split=False))
    if user_defined:
        longest_first = sorted(map(re.escape, user_defined), key=len, reverse=True)
        splits.append(pre_tokenizers.Split(tokenizers.Regex("|".join(longest_first)), behavior="isolated"))
    if splits:
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(piece.text, normalized=False, special=True)
            for piece in model.pieces
            if piece.type in (PieceType.CONTROL, PieceType.UNKNOWN)
        ]
    )
    return backend


def _normalizer(model: SentencePieceModel, legacy: bool) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    if model.add_dummy_prefix and legacy:
        steps.append(normalizers.Prepend(" "))
    if model.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE_MARK))
    return normalizers.Sequence(steps)


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """Every way to join two normal pieces into a third, best score first: the order in which SentencePiece merges."""
    normal = {piece.text: (-piece.score, i) for i, piece in enumerate(model.pieces) if piece.type == PieceType.NORMAL}
    ranked = [
        (rank, text[:cut], text[cut:])
        for text, rank in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    ranked.sort()
    return [(left, right) for _, left, right in ranked]


def _parse(data: bytes) -> SentencePieceModel:
    model = SentencePieceModel()
    for number, value in _fields(data):
        if number == 1:
            model.pieces.append(_piece(_bytes(value)))
        elif number == 2:
            for key, item in _fields(_bytes(value)):
                if key == 3:
                    model.model_type = _int(item)
                elif key == 35:
                    model.byte_fallback = bool(_int(item))
                elif key == 40:
                    model.unk_id = _int(item)
                elif key == 41:
                    model.bos_id = _int(item)
                elif key == 42:
                    model.eos_id = _int(item)
                elif key == 43:
                    model.pad_id = _int(item)
        elif number == 3:
            for key, item in _fields(_bytes(value)):
                if key == 2:
                    model.precompiled_charsmap = _bytes(item)
                elif key == 3:
                    model.add_dummy_prefix = bool(_int(item))
                elif key == 4:
                    model.remove_extra_whitespaces = bool(_int(item))
                elif key == 5:
                    model.escape_whitespaces = bool(_int(item))
    return model


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(data):
        if number == 1:
            text = _bytes(value).decode()
        elif number == 2:
            (score,) = struct.unpack("<f", _bytes(value))
        elif number == 3:
            kind = _int(value)
    return Piece(text, score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of one message: an int for varints, the raw bytes for everything else."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        value: int | bytes
        if wire_type == 0:
            value, position = _varint(data, position)
        else:
            if wire_type == 2:
                length, position = _varint(data, position)
            elif wire_type in (1, 5):
                length = 8 if wire_type == 1 else 4
            else:
                raise ValueError(f"wire type {wire_type} at byte {position}")
            value = data[position : position + length]
            if len(value) != length:
                raise ValueError(f"field {number} needs {length} bytes at {position}")
            position += length
        yield number, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError(f"a number without end at byte {position}")


def _int(value: int | bytes) -> int:
    """A varint as int32 (negative numbers are stored as 64-bit two's complement)."""
    if not isinstance(value, int):
        raise TypeError("a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("bytes were expected")
    return value
