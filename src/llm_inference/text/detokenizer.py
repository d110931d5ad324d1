"""Token ids to text, piece by piece: joined, the pieces are exactly the text of all tokens decoded at once.

No piece ever shows U+FFFD for a character that later tokens may complete. Work and memory per token are bounded,
whatever the model emits. One hard invariant, by family of decoder (see `pieces`):

    byte_level      lossy UTF-8 of the joined bytes; at most three bytes wait for the rest of their character
    sentencepiece   a run of `<0xNN>` tokens is valid UTF-8 as a whole, or each of its bytes is one U+FFFD:

                    ▁ok  <0xE2> <0x82> <0xAC>  ▁then           ▁ok  <0xE2> <0x82> <0xAC> <0xFF>  ▁then
                         └── held ────────┘ "€" at its end          └── "�" four times ───────┘

                    so a run waits for its end. To keep a long run (a sentence of emoji) streaming, one of more than
                    `MAX_BYTE_RUN` bytes is given out as far as it is valid, and goes on as a new run.
                    `Tokenizer.decode` follows the same rule.
    other           the library decodes a short window twice, with and without the new tokens; the difference is new

Knows nothing of stop strings, requests or logprobs.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

import tokenizers

from llm_inference.text.pieces import MAX_BYTE_RUN, SPACE_MARK, PieceTable

_REPLACEMENT = "\ufffd"
#: Tokens of the prompt that the window of the `other` family sees before the first new token.
_CONTEXT_TOKENS = 6
#: New tokens that may wait in the window for the rest of a character.
_MAX_PENDING_TOKENS = 8


class IncrementalDetokenizer:
    """One sequence's text. Not thread-safe; cheap to make (a few prompt tokens are looked at, not all of them).

    With `prompt_ids`, the text goes on from the prompt: the leading space of the first new token stays, and a
    character that the prompt left unfinished is finished. Joined pieces are then what decoding prompt and output
    together has after the prompt's (complete) text. Without, joined pieces equal `Tokenizer.decode(all ids)`.
    """

    __slots__ = ("_stream",)

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        pieces: PieceTable,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._stream: _Stream
        if pieces.kind == "byte_level":
            self._stream = _ByteLevelStream(pieces, prompt_ids, skip_special_tokens)
        elif pieces.kind == "sentencepiece":
            self._stream = _SentencePieceStream(pieces, prompt_ids, skip_special_tokens)
        else:
            self._stream = _WindowStream(backend, pieces, prompt_ids, skip_special_tokens)

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now; may be empty. Ids outside the vocabulary are skipped, as decoding does."""
        return self._stream.push(token_ids)

    def flush(self) -> str:
        """The rest, as decoding everything at once shows it: an unfinished character is U+FFFD. Call once, last."""
        return self._stream.finish()


class _Stream(Protocol):
    def push(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class _ByteLevelStream:
    __slots__ = ("_pieces", "_skip", "_utf8")

    def __init__(self, pieces: PieceTable, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._pieces = pieces
        self._skip = pieces.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # Four bytes are enough to know which character is unfinished: UTF-8 synchronises itself.
        tail = b""
        for token_id in reversed(prompt_ids):
            if len(tail) >= 4:
                break
            if token_id not in self._skip:
                tail = pieces.bytes_of(token_id) + tail
        self._utf8.decode(tail)

    def push(self, token_ids: Sequence[int]) -> str:
        bytes_of, skip = self._pieces.bytes_of, self._skip
        return self._utf8.decode(b"".join([bytes_of(token_id) for token_id in token_ids if token_id not in skip]))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _SentencePieceStream:
    """`_run_text` and `_run_bytes` are the held run of byte tokens; `_run_broken` once it can no longer be text."""

    __slots__ = ("_pieces", "_run_broken", "_run_bytes", "_run_text", "_skip", "_strip", "_utf8")

    def __init__(self, pieces: PieceTable, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._pieces = pieces
        self._skip = skip_special_tokens
        self._strip = pieces.strip_left
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")
        self._run_text = ""
        self._run_bytes = 0
        self._run_broken = False
        self._enter(prompt_ids)

    def _enter(self, prompt_ids: Sequence[int]) -> None:
        """Take over where the prompt ended: its text was not empty, and it may end inside a character."""
        tail: list[int] = []
        for token in self._pieces.visible_tokens(reversed(prompt_ids), self._skip):
            self._strip = 0
            byte = self._pieces.raw_byte(token)
            if byte is None:
                break
            tail.append(byte)
            if byte & 0xC0 != 0x80 or len(tail) == 4:  # the byte that begins a character, or no character at all
                break
        if tail:
            self._feed(bytes(reversed(tail)))
            if self._run_broken or not self._utf8.getstate()[0]:
                self._reset_run()

    def push(self, token_ids: Sequence[int]) -> str:
        parts: list[str] = []
        for token in self._pieces.visible_tokens(token_ids, self._skip):
            byte = self._pieces.raw_byte(token)
            if byte is not None:
                parts.append(self._feed(bytes((byte,))))
            else:
                parts.append(self._end_run())
                parts.append(token.replace(SPACE_MARK, " "))
        return self._strip_start("".join(parts))

    def finish(self) -> str:
        return self._strip_start(self._end_run())

    def _feed(self, data: bytes) -> str:
        if self._run_broken:
            return _REPLACEMENT * len(data)
        self._run_bytes += len(data)
        try:
            self._run_text += self._utf8.decode(data)
        except UnicodeDecodeError:
            self._run_broken = True
            return _REPLACEMENT * self._run_bytes
        if self._run_bytes <= MAX_BYTE_RUN:
            return ""
        text, self._run_text = self._run_text, ""
        self._run_bytes = len(self._utf8.getstate()[0])
        return text

    def _end_run(self) -> str:
        if not self._run_bytes:
            return ""
        if self._run_broken:
            text = ""  # already given out
        elif self._utf8.getstate()[0]:
            text = _REPLACEMENT * self._run_bytes
        else:
            text = self._run_text
        self._reset_run()
        return text

    def _reset_run(self) -> None:
        self._run_text = ""
        self._run_bytes = 0
        self._run_broken = False
        self._utf8.reset()

    def _strip_start(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
            else:
                self._strip -= 1
                text = text[1:]
        return text


class _WindowStream:
    """`_ids[:_read]` has been given out, `_ids[_read:]` waits; the window begins early enough for the decoder."""

    __slots__ = ("_backend", "_ids", "_pieces", "_read", "_skip")

    def __init__(
        self, backend: tokenizers.Tokenizer, pieces: PieceTable, prompt_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._backend = backend
        self._pieces = pieces
        self._skip = skip_special_tokens
        context: list[int] = []
        for token_id in reversed(prompt_ids):
            if len(context) == _CONTEXT_TOKENS:
                break
            if self._is_visible(token_id):
                context.append(token_id)
        self._ids = context[::-1]
        self._read = len(self._ids)

    def push(self, token_ids: Sequence[int]) -> str:
        parts: list[str] = []
        for token_id in token_ids:
            if self._is_visible(token_id):
                self._ids.append(token_id)
                parts.append(self._advance(final=False))
        return "".join(parts)

    def finish(self) -> str:
        return self._advance(final=True)

    def _is_visible(self, token_id: int) -> bool:
        if self._skip and token_id in self._pieces.special_ids:
            return False
        return self._pieces.token(token_id) is not None

    def _advance(self, final: bool) -> str:
        before: str = self._backend.decode(self._ids[: self._read], skip_special_tokens=False)
        after: str = self._backend.decode(self._ids, skip_special_tokens=False)
        pending = len(self._ids) - self._read
        if not final and after.endswith(_REPLACEMENT) and pending < _MAX_PENDING_TOKENS:
            return ""
        if len(after) <= len(before) and pending < _MAX_PENDING_TOKENS and not final:
            return ""
        text = after[len(before) :]
        # Keep what was just read as the next window's context.
        del self._ids[: max(0, min(self._read, len(self._ids) - _CONTEXT_TOKENS))]
        self._read = len(self._ids)
        return text
