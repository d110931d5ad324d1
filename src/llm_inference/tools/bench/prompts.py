"""Prompts of a wanted number of tokens, made of random words or random token ids.

How many tokens a text has is asked of a `count` function, which may be the server's `/tokenize` or its usage; the
tokenizer itself is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

#: Plain words that common tokenizers mostly have as single tokens.
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education foot boy age policy music market sense road table river "
    "garden window letter summer winter apple stone bridge paper color animal bird fish tree island mountain ocean "
    "train station kitchen doctor machine green small large early young long little old great high different "
    "important public able good new first last bad own other same next few open simple common current single strong"
)
_WORDS = tuple(_VOCABULARY.split())

#: Ids that every vocabulary of a language model has, above the special and byte tokens at its beginning.
TOKEN_IDS = (1_000, 10_000)

#: Rounds of counting and mending per prompt.
_MAX_ROUNDS = 16
_CALIBRATION_WORDS = (8, 72)

#: Tokens of a prompt with this text, its template included; None: unknown.
Count = Callable[[str], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and how many tokens the server reads in it, as far as is known."""

    text: str
    num_tokens: int


def random_words(rng: np.random.Generator, count: int) -> list[str]:
    return [_WORDS[place] for place in rng.integers(0, len(_WORDS), size=count)]


def random_token_ids(rng: np.random.Generator, count: int) -> list[int]:
    return [int(value) for value in rng.integers(*TOKEN_IDS, size=count)]


@dataclass(frozen=True, slots=True)
class WordRate:
    """Tokens of a prompt of w words: about `base + per_word * w`. `base` is the template's part."""

    base: float
    per_word: float

    @classmethod
    async def measure(cls, count: Count) -> WordRate | None:
        """From two counts; None where `count` knows nothing."""
        rng = np.random.default_rng((0, 4))
        few, many = _CALIBRATION_WORDS
        first = await count(" ".join(random_words(rng, few)))
        second = await count(" ".join(random_words(rng, many)))
        if first is None or second is None or second <= first:
            return None
        per_word = (second - first) / (many - few)
        return cls(first - few * per_word, per_word)

    def words_for(self, num_tokens: float) -> int:
        """Words that make a prompt of about `num_tokens`; at least one."""
        return max(round((num_tokens - self.base) / self.per_word), 1)

    def tokens_of(self, num_words: int) -> int:
        return round(self.base + self.per_word * num_words)


def estimated_text(rng: np.random.Generator, rate: WordRate, num_tokens: int, prefix: str = "") -> Text:
    """A prompt of about `num_tokens` tokens, `prefix` included, without asking anybody."""
    num_prefix = len(prefix.split())
    words = random_words(rng, max(rate.words_for(num_tokens) - num_prefix, 1))
    return Text(_joined(prefix, words, 0), rate.tokens_of(num_prefix + len(words)))


async def fitted_text(
    rng: np.random.Generator, rate: WordRate, count: Count, num_tokens: int, prefix: str = ""
) -> Text:
    """A prompt of exactly `num_tokens` tokens, `prefix` included, or as near to it as a few rounds come.

    Words are added and taken away by what `count` says; a remainder too small for a word is made up of full stops,
    and where those merge into one token the last words are drawn anew. Raises `ValueError` when `count` stops
    answering.
    """
    words = random_words(rng, max(rate.words_for(num_tokens) - len(prefix.split()), 1))
    num_stops = 0
    # Where a word is several tokens, adding one is a leap in the dark: less than two words are filled with stops.
    fillable = rate.per_word if rate.per_word < 2 else 2 * rate.per_word
    best: Text | None = None
    for _ in range(_MAX_ROUNDS):
        text = _joined(prefix, words, num_stops)
        counted = await count(text)
        if counted is None:
            raise ValueError("tokens can no longer be counted")
        missing = num_tokens - counted
        if best is None or abs(missing) < abs(num_tokens - best.num_tokens):
            best = Text(text, counted)
        if missing == 0 or (missing < 0 and len(words) == 1 and num_stops == 0):
            break
        if missing > 0 and num_stops:
            num_stops = 0
            keep = max(len(words) - 3, 0)
            words[keep:] = random_words(rng, len(words) - keep)
        elif 0 < missing < fillable:
            num_stops = missing
        elif missing > 0:
            words += random_words(rng, max(int(missing / rate.per_word), 1))
        elif num_stops:
            num_stops = max(num_stops + missing, 0)
        else:
            del words[max(len(words) + min(int(missing / rate.per_word), -1), 1) :]
    assert best is not None
    return best


async def gathered(jobs: list[Awaitable[Text]], on_done: Callable[[], None], limit: int = 16) -> list[Text]:
    """All of `jobs`, at most `limit` at a time, in their order."""
    room = asyncio.Semaphore(limit)

    async def one(job: Awaitable[Text]) -> Text:
        async with room:
            text = await job
        on_done()
        return text

    return list(await asyncio.gather(*(one(job) for job in jobs)))


def _joined(prefix: str, words: list[str], num_stops: int) -> str:
    return (f"{prefix} " if prefix else "") + " ".join(words) + "." * num_stops
