"""Constrained output: which tokens may come next, for one choice at a time.

    front:  GrammarCompiler.check(grammar)      → 4xx before anything is sent; small memory, no torch
    core:   GrammarCompiler.start(grammar)      → GrammarState, one per choice
            GrammarMasks.fill(states, vocab)    → the masks of a step;  masks.apply(logits);  state.accept(token)

An end-of-sequence token is allowed exactly where the grammar may end; where it must end, nothing else is. So a choice
ends like any other, by its EOS. How this meets other parameters:

- `min_tokens`, `logit_bias` and other bans: the grammar outranks them. Where they have left no allowed token, `apply`
  frees what the grammar allows: an object that is complete ends, however many tokens were wanted.
- `ignore_eos`: the grammar's end cannot be ignored; whoever honours the field must end the choice when the state
  `is_finished`, since only EOS can follow.
- Stop token ids count as text: the grammar allows them only where it would allow their characters.

Compiling is lazy in the library (regular-expression derivatives), so it is cheap, and copies of a compiled grammar
share what they have learnt. They also share its limit: a state that meets it is compiled afresh, its tokens replayed.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from llm_inference.engine.types import Grammar
from llm_inference.errors import UnsupportedModelError
from llm_inference.native.grammar_masks import Bits, GrammarMasks, unpack
from llm_inference.native.grammar_source import FIELDS, invalid, to_library_grammar

__all__ = ["GrammarCompiler", "GrammarLimits", "GrammarMasks", "GrammarState"]

logger = logging.getLogger(__name__)

_MAX_MESSAGE_CHARS = 300
#: CPU seconds for the mask of one token. The library's fuel bounds its steps, not what a step costs.
_MAX_MASK_S = 0.5
_DUMP = re.compile(r"\n\s*(?:<|\d+ \|)")


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Bounds of compiling and of one mask. The library's fuel is about 14,000 to 50,000 units a millisecond."""

    initial_fuel: int = 1_000_000
    step_fuel: int = 200_000
    max_items_in_row: int = 2_000
    step_max_items: int = 50_000
    max_grammar_size: int = 200_000  # symbols
    max_lexer_states: int = 150_000  # of one compiled grammar with all its copies; some 300 bytes each
    cache_entries: int = 64
    cache_bytes: int = 8 * 1024 * 1024  # of grammars' sources
    cache_cpu_s: float = 4.0  # of compiling what is cached: the only measure of its memory, some 40 MB a second

    def to_library(self) -> Any:
        return LLParserLimits(
            max_items_in_row=self.max_items_in_row,
            initial_lexer_fuel=self.initial_fuel,
            step_lexer_fuel=self.step_fuel,
            step_max_items=self.step_max_items,
            max_lexer_states=self.max_lexer_states,
            max_grammar_size=self.max_grammar_size,
            verbose_errors=False,
        )


class GrammarCompiler:
    """One per process and model. Thread-safe. The full vocabulary is read only by `start` (or `warm_up`)."""

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        limits: GrammarLimits = GrammarLimits(),
    ) -> None:
        """`vocab_size`: ids at or above it are never allowed. `eos_token_ids`: at least one, all below it."""
        if not eos_token_ids or not all(0 <= token_id < vocab_size for token_id in eos_token_ids):
            raise UnsupportedModelError(
                f"constrained output needs an end-of-sequence token inside the vocabulary of {vocab_size}; "
                f"the model declares {list(eos_token_ids)}"
            )
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self._limits = limits
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._checking_tokenizer: Any = None
        self._compiled: OrderedDict[Grammar, Any] = OrderedDict()
        self._cost_s: dict[Grammar, float] = {}
        self._checked: OrderedDict[Grammar, None] = OrderedDict()

    def warm_up(self) -> None:
        """Read the vocabulary now: a fifth of a second and some 60 MB for 49,000 tokens.

        Raises `UnsupportedModelError` for a kind of tokenizer that the library cannot read.
        """
        with self._lock:
            self._full_tokenizer()

    def check(self, grammar: Grammar, param: str | None = None) -> None:
        """Raises `InvalidRequestError` naming `param` (default: the usual field) unless the grammar compiles.

        Compiles against single bytes and the special tokens only, so it needs neither memory nor the vocabulary.
        """
        field_name = param or FIELDS[grammar.kind]
        with self._lock:
            if grammar in self._checked:
                self._checked.move_to_end(grammar)
                return
            if self._checking_tokenizer is None:
                self._checking_tokenizer = self._bytes_tokenizer()
        matcher = self._compile(grammar, field_name, self._checking_tokenizer)
        matcher.compute_bitmask()
        if matcher.is_error():
            message = _in_short(matcher.get_error())
            raise invalid(field_name, "no text satisfies it" if message.startswith("NoExtension") else message)
        with self._lock:
            self._remember(self._checked, grammar, None)

    def start(self, grammar: Grammar) -> GrammarState:
        """A state at the beginning of the output. Raises `InvalidRequestError` like `check`."""
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
        if matcher is None:
            begun = time.thread_time()
            matcher = self._fresh(grammar)
            with self._lock:
                self._cost_s[grammar] = time.thread_time() - begun
                self._remember(self._compiled, grammar, matcher)
                self._forget_costly()
        return GrammarState(self, grammar, matcher.deep_copy())

    @property
    def tokenizer_json(self) -> str:
        return self._tokenizer_json

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def recompile(self, grammar: Grammar, spent: Any) -> Any:
        """A matcher that shares nothing with those before, because `spent`'s shared limits are used up."""
        with self._lock:
            self._compiled.pop(grammar, None)
        logger.info("a grammar was compiled again: %s", _in_short(spent.get_error()))
        return self._fresh(grammar)

    def _fresh(self, grammar: Grammar) -> Any:
        with self._lock:
            tokenizer = self._full_tokenizer()
        return self._compile(grammar, FIELDS[grammar.kind], tokenizer)

    def _compile(self, grammar: Grammar, param: str, tokenizer: Any) -> Any:
        source = to_library_grammar(grammar, param)
        matcher = LLMatcher(tokenizer, source, log_level=0, limits=self._limits.to_library())
        if matcher.is_error():
            raise invalid(param, _in_short(matcher.get_error()))
        return matcher

    def _remember(self, cache: OrderedDict[Grammar, Any], grammar: Grammar, value: Any) -> None:
        """Put into an LRU cache that is bounded in entries and in bytes of sources."""
        cache[grammar] = value
        cache.move_to_end(grammar)
        size = sum(len(known.source) for known in cache)
        while len(cache) > self._limits.cache_entries or (size > self._limits.cache_bytes and len(cache) > 1):
            oldest, _ = cache.popitem(last=False)
            size -= len(oldest.source)

    def _forget_costly(self) -> None:
        """Keep `_compiled` within `cache_cpu_s`, the newest at least."""
        self._cost_s = {known: cost for known, cost in self._cost_s.items() if known in self._compiled}
        total_s = sum(self._cost_s.values())
        while total_s > self._limits.cache_cpu_s and len(self._compiled) > 1:
            oldest, _ = self._compiled.popitem(last=False)
            total_s -= self._cost_s.pop(oldest)

    def _full_tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = self._build(self._vocab_size)
        return self._tokenizer

    def _build(self, num_tokens: int | None) -> Any:
        eos_token_ids = list(self._eos_token_ids)
        try:
            return LLTokenizer(self._tokenizer_json, n_vocab=num_tokens, eos_token=eos_token_ids)
        except ValueError as exc:
            if num_tokens is not None and "vocab size too small" in str(exc):
                return self._build(None)  # the model has fewer rows than its tokenizer; masks are cut
            raise UnsupportedModelError(
                f"constrained output is not possible with this model's tokenizer: {_in_short(str(exc))}"
            ) from exc

    def _special_tokens(self) -> list[_AddedToken]:
        try:
            known = msgspec.json.decode(self._tokenizer_json, type=_TokenizerFile)
        except msgspec.DecodeError as exc:
            raise UnsupportedModelError(f"the tokenizer is not in the format of tokenizer.json: {exc}") from exc
        return [token for token in known.added_tokens if token.special]

    def _bytes_tokenizer(self) -> Any:
        """256 single bytes, the special tokens under their own ids, and nothing at the ids in between."""
        special = {token.id: token.content.encode() for token in self._special_tokens()}
        size = max(self._vocab_size, max(special, default=0) + 1)
        tokens = [special.get(token_id, b"") for token_id in range(size)]
        tokens += [bytes([value]) for value in range(256)]
        return LLTokenizer(TokenizerWrapper(_Vocabulary(tokens, list(special), self._eos_token_ids[0])))


class GrammarState:
    """Where one choice stands in its grammar. Never raises once started: what goes wrong is in `failure`."""

    __slots__ = ("_compiler", "_ended", "_grammar", "_matcher", "_tokens", "failure")

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar, matcher: Any, tokens: Sequence[int] = ()) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._matcher = matcher
        self._tokens = list(tokens)
        self._ended = False
        #: Why this choice cannot go on; None: it can.
        self.failure: str | None = None

    @property
    def param(self) -> str:
        """The request field to blame for a failure."""
        return FIELDS[self._grammar.kind]

    @property
    def can_stop(self) -> bool:
        """The output so far satisfies the grammar: EOS is allowed."""
        return self._ended or bool(self._matcher.is_accepting())

    @property
    def is_finished(self) -> bool:
        """The output satisfies the grammar and nothing but EOS can follow."""
        return self._ended or bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def accept(self, token_id: int) -> None:
        """The choice goes on with this token. One that the grammar forbids sets `failure`."""
        if self._ended or self.failure is not None:
            return
        if token_id in self._compiler.eos_token_ids and self._matcher.is_accepting():
            self._ended = True
            return
        if not self._matcher.is_stopped() and self._matcher.consume_token(token_id):
            self._tokens.append(token_id)
        elif not self._recover() or not self._matcher.consume_token(token_id):
            reason = f" ({_in_short(self._matcher.get_error())})" if self._matcher.is_error() else ""
            self.failure = _too_complex(f"token {token_id} does not continue it{reason}")
        else:
            self._tokens.append(token_id)

    def fill_mask(self, row: Bits) -> None:
        """Set `row` (one bit a token, lowest first, `ceil(vocab / 32)` words) to the tokens that may come next.

        All zero, with `failure` set, when none may.
        """
        row[:] = 0
        if self.failure is not None:
            return
        if self.is_finished:
            words = _bits_of(self._compiler.eos_token_ids, len(row))
        else:
            begun = time.thread_time()
            words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
            if self._matcher.is_error() and self._recover():
                words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
            if self._matcher.is_error():
                self.failure = _too_complex(_in_short(self._matcher.get_error()))
                return
            if time.thread_time() - begun > _MAX_MASK_S:
                self.failure = _too_complex(f"one token took more than {_MAX_MASK_S:g} s")
                return
        shared = min(len(row), len(words))
        row[:shared] = words[:shared]
        _clear_from(row, self._compiler.vocab_size)
        if not row.any():
            self.failure = "no token of this model continues the output's grammar"

    def mask(self) -> npt.NDArray[np.bool_]:
        """The same as one bool a token, `[vocab_size]`."""
        row = np.zeros(-(-self._compiler.vocab_size // 32), dtype=np.int32)
        self.fill_mask(row)
        return unpack(row[None, :], self._compiler.vocab_size).reshape(-1)

    def fork(self) -> GrammarState:
        """A state of its own at the same place: for choices that share their beginning, and for beams."""
        twin = GrammarState(self._compiler, self._grammar, self._matcher.deep_copy(), self._tokens)
        twin._ended, twin.failure = self._ended, self.failure
        return twin

    def _recover(self) -> bool:
        """Compile again and replay, if it was a limit shared with other requests that stopped the matcher."""
        if not self._matcher.is_error() or "too many states" not in self._matcher.get_error():
            return False
        self._matcher = self._compiler.recompile(self._grammar, self._matcher)
        return not self._tokens or bool(self._matcher.consume_tokens(self._tokens))


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class _Vocabulary:
    """What the library asks of a tokenizer that is not a tokenizer.json."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id

    def __call__(self, text: bytes | str) -> list[int]:
        first = len(self.tokens) - 256
        return [first + value for value in (text if isinstance(text, bytes) else text.encode())]


def _too_complex(reason: str) -> str:
    return f"the output's grammar became too complex: {reason}"


def _bits_of(token_ids: Sequence[int], num_words: int) -> Bits:
    words = np.zeros(num_words, dtype=np.uint32)
    for token_id in token_ids:
        if token_id // 32 < num_words:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words.view(np.int32)


def _clear_from(row: Bits, token_id: int) -> None:
    """Forbid every token from `token_id` on."""
    word, bit = divmod(token_id, 32)
    if word < len(row):
        row[word] &= np.int32((1 << bit) - 1)
        row[word + 1 :] = 0


def _in_short(message: str) -> str:
    """The library's message on one line, without the dump of states and the source that it quotes behind it."""
    text = " ".join(_DUMP.split(message, maxsplit=1)[0].split()).rstrip(".")
    half = _MAX_MESSAGE_CHARS // 2
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:half]} … {text[-half:]}"
