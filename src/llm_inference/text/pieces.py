"""What one token stands for: the exact bytes behind an id, read from the tokenizer's own decoder.

Three families, told apart by the decoder that the tokenizer carries:

    byte_level      GPT-2's alphabet: every character of a token stands for one byte; text is their lossy UTF-8
    sentencepiece   "▁" stands for a space, `<0xNN>` for a byte; a run of byte tokens is text only as a whole
    other           anything else (WordPiece, Metaspace, …): only the library knows; bytes are a best effort

Knows nothing of streams, files or chat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import tokenizers

DecoderKind = Literal["byte_level", "sentencepiece", "other"]

#: A run of byte tokens that is longer than this becomes text character by character, not as a whole; see `detokenizer`.
MAX_BYTE_RUN = 64

SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x(\+?[0-9A-Fa-f]+)>")


def byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in sorted(printable)}
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(b for b in range(256) if b not in printable)})
    return alphabet


class PieceTable:
    """Bytes of tokens for one `tokenizers.Tokenizer`. Immutable, keeps no per-token cache (a vocabulary is large)."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._alphabet = byte_alphabet()
        self.special_ids: frozenset[int] = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.kind: DecoderKind = "other"
        #: How many leading spaces the decoder takes off the whole text (sentencepiece only).
        self.strip_left = 0
        self._marks_space = False
        self._classify(_state(backend.decoder))

    def _classify(self, decoder: dict[str, Any] | None) -> None:
        if decoder is None:
            return
        steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        names = [step["type"] for step in steps]
        if names == ["ByteLevel"]:
            self.kind = "byte_level"
            return
        self._marks_space = "Metaspace" in names or any(
            step["type"] == "Replace" and step["pattern"] == {"String": SPACE_MARK} for step in steps
        )
        if names not in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
            return
        if steps[0]["pattern"] != {"String": SPACE_MARK} or steps[0]["content"] != " ":
            return
        if len(steps) == 4:
            if steps[3]["content"] != " " or steps[3]["stop"] != 0:
                return
            self.strip_left = steps[3]["start"]
        self.kind = "sentencepiece"

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for an id that the vocabulary does not have."""
        if token_id < 0:
            return None
        token: str | None = self._backend.id_to_token(token_id)
        return token

    def raw_byte(self, token: str) -> int | None:
        """The byte that a `<0xNN>` token stands for, None for any other token."""
        if len(token) != 6 or token[0] != "<":
            return None
        match = _BYTE_TOKEN.fullmatch(token)
        return int(match[1], 16) if match else None

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that this token contributes to the text; empty for an id that the vocabulary does not have.

        A token is taken by itself: the space that a decoder strips from the start of a text is kept here.
        """
        token = self.token(token_id)
        if token is None:
            return b""
        if self.kind == "byte_level":
            alphabet = self._alphabet
            try:
                return bytes([alphabet[character] for character in token])
            except KeyError:  # an added token outside the alphabet is plain text
                return token.encode()
        if self.kind == "sentencepiece":
            byte = self.raw_byte(token)
            if byte is not None:
                return bytes((byte,))
        if self._marks_space:
            token = token.replace(SPACE_MARK, " ")
        return token.encode()

    def has_long_byte_run(self, token_ids: Sequence[int], skip_special_tokens: bool) -> bool:
        """Whether more than `MAX_BYTE_RUN` byte tokens follow each other (sentencepiece only)."""
        if self.kind != "sentencepiece" or len(token_ids) <= MAX_BYTE_RUN:
            return False
        run = 0
        for token in self.visible_tokens(token_ids, skip_special_tokens):
            run = run + 1 if self.raw_byte(token) is not None else 0
            if run > MAX_BYTE_RUN:
                return True
        return False

    def visible_tokens(self, token_ids: Iterable[int], skip_special_tokens: bool) -> Iterable[str]:
        """The tokens that a decoder gets to see: known ids, without the special ones if they are to be skipped."""
        for token_id in token_ids:
            if skip_special_tokens and token_id in self.special_ids:
                continue
            token = self.token(token_id)
            if token is not None:
                yield token


def _state(component: Any) -> dict[str, Any] | None:
    """A tokenizers component (decoder, post-processor) as the JSON that tokenizer.json holds for it."""
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state
