"""What every contender is given: five workloads of fixed prompts and fixed output lengths, the same for all of them.

    W1  one stream                                        64 tokens in, 128 out
    W2  64 requests, 16 at a time                         16–512 in, 16–256 out
    W3  32 requests that share 512 tokens, 8 at a time    528 in, 32 out
    W4  eight streams; beside them two long prompts       4,096 in; what counts is the streams' gaps
    W5  editing, one stream: the answer repeats the text  about 155 in, 128 out

A prompt is a text whose tokens are counted here with the model's own tokenizer, so that it is the same for a server
that takes token ids and for one that takes text. Knows nothing of who answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from llm_inference.errors import ConfigError
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.bench.lengths import Lengths
from llm_inference.tools.bench.prompts import random_words
from llm_inference.tools.compare.passages import PASSAGES, editing_prompt

NAMES = ("W1", "W2", "W3", "W4", "W5")
#: Seed, and streams of it, of `bench serve`, so that W2 has its lengths.
_SEED, _INPUT, _OUTPUT = 1, 0, 1
_MAX_TRIES = 8


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`token_ids` are those of `text`; None where no tokenizer is known, and then a word is taken for a token."""

    text: str
    token_ids: tuple[int, ...] | None
    num_tokens: int
    max_tokens: int


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` in their order, at most `concurrency` at a time.

    With `late` the requests are streams that all run, and once each has answered a few tokens the late ones come one
    after the other; the end of the last ends the workload.
    """

    name: str
    title: str
    requests: tuple[Request, ...]
    concurrency: int
    late: tuple[Request, ...] = ()


class Suite(msgspec.Struct, frozen=True):
    """`warmup` is not measured; its prompts are others. `max_model_len`: tokens of the longest request."""

    warmup: tuple[Request, ...]
    workloads: tuple[Workload, ...]

    @property
    def max_model_len(self) -> int:
        requests = [*self.warmup, *(one for work in self.workloads for one in (*work.requests, *work.late))]
        return max(one.num_tokens + one.max_tokens for one in requests)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How large the workloads are; the numbers of the module's table, or next to nothing for a trial."""

    w1: tuple[int, int, int] = (3, 64, 128)  # requests, in, out
    w2: tuple[int, str, str, int] = (64, "16:512", "16:256", 16)  # requests, in, out, at a time
    w3: tuple[int, int, int, int, int] = (32, 512, 16, 32, 8)  # requests, shared, own, out, at a time
    w4: tuple[int, int, int, int, int] = (8, 16, 1500, 2, 4096)  # streams, in, out, late ones, in
    w5: tuple[int, int] = (6, 128)  # requests, out
    warmup: tuple[tuple[int, int], ...] = ((64, 16), (256, 16), (128, 32))


_QUICK = _Sizes(
    w1=(1, 16, 8),
    w2=(6, "4:24", "4:8", 3),
    w3=(4, 32, 8, 4, 2),
    w4=(2, 8, 400, 1, 64),
    w5=(1, 12),
    warmup=((8, 4),),
)


class PromptMaker:
    """Texts of random common words, of an exact number of tokens where a tokenizer is given."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def request(self, text: str, max_tokens: int) -> Request:
        if self._tokenizer is None:
            return Request(text=text, token_ids=None, num_tokens=len(text.split()), max_tokens=max_tokens)
        ids = tuple(self._tokenizer.encode(text))
        return Request(text=text, token_ids=ids, num_tokens=len(ids), max_tokens=max_tokens)

    def words(self, rng: np.random.Generator, num_tokens: int, before: str = "") -> str:
        """A text of `num_tokens` tokens that begins with `before`; a token more or less where no try comes out even."""
        tokenizer = self._tokenizer
        lead = f"{before} " if before else ""
        if tokenizer is None:
            return lead + " ".join(random_words(rng, max(num_tokens - len(before.split()), 1)))
        text = ""
        for _ in range(_MAX_TRIES):
            ids = tokenizer.encode(lead + " ".join(random_words(rng, num_tokens)))
            text = tokenizer.decode(ids[:num_tokens])
            if len(tokenizer.encode(text)) == num_tokens and text.startswith(before):
                break
        return text


def make_suite(tokenizer: Tokenizer | None, names: Sequence[str] = NAMES, *, quick: bool = False) -> Suite:
    """The workloads `names`. Raises `ConfigError` for a name that is none."""
    maker = PromptMaker(tokenizer)
    sizes = _QUICK if quick else _Sizes()
    builders = {"W1": _w1, "W2": _w2, "W3": _w3, "W4": _w4, "W5": _w5}
    for name in names:
        if name not in builders:
            raise ConfigError(f"--workloads: {name!r} is none; there are {', '.join(builders)}")
    rng = _rng(0)
    warmup = tuple(maker.request(maker.words(rng, length), output) for length, output in sizes.warmup)
    return Suite(warmup, tuple(builders[name](maker, sizes) for name in NAMES if name in names))


def _rng(number: int) -> np.random.Generator:
    return np.random.default_rng((_SEED, 100 + number))


def _w1(maker: PromptMaker, sizes: _Sizes) -> Workload:
    count, length, output = sizes.w1
    rng = _rng(1)
    requests = tuple(maker.request(maker.words(rng, length), output) for _ in range(count))
    return Workload(name="W1", title=f"one stream, {length} in, {output} out", requests=requests, concurrency=1)


def _w2(maker: PromptMaker, sizes: _Sizes) -> Workload:
    count, inputs, outputs, concurrency = sizes.w2
    lengths = Lengths.parse(inputs).draw(count, _SEED, _INPUT)
    rng = _rng(2)
    requests = tuple(
        maker.request(maker.words(rng, length), output)
        for length, output in zip(lengths, Lengths.parse(outputs).draw(count, _SEED, _OUTPUT), strict=True)
    )
    title = f"{count} requests, {_range(inputs)} in, {_range(outputs)} out, {concurrency} at a time"
    return Workload(name="W2", title=title, requests=requests, concurrency=concurrency)


def _w3(maker: PromptMaker, sizes: _Sizes) -> Workload:
    count, shared, own, output, concurrency = sizes.w3
    rng = _rng(3)
    prefix = maker.words(rng, shared)
    requests = tuple(maker.request(maker.words(rng, shared + own, prefix), output) for _ in range(count))
    title = f"{count} requests that share {shared} tokens, {output} out, {concurrency} at a time"
    return Workload(name="W3", title=title, requests=requests, concurrency=concurrency)


def _w4(maker: PromptMaker, sizes: _Sizes) -> Workload:
    count, length, output, num_late, late_length = sizes.w4
    rng = _rng(4)
    return Workload(
        name="W4",
        title=f"{count} streams, meanwhile prompts of {late_length:,} tokens ({num_late})",
        requests=tuple(maker.request(maker.words(rng, length), output) for _ in range(count)),
        concurrency=count,
        late=tuple(maker.request(maker.words(rng, late_length), 1) for _ in range(num_late)),
    )


def _w5(maker: PromptMaker, sizes: _Sizes) -> Workload:
    count, output = sizes.w5
    requests = tuple(maker.request(editing_prompt(PASSAGES[place]), output) for place in range(count))
    return Workload(name="W5", title=f"editing, one stream, {output} out", requests=requests, concurrency=1)


def _range(lengths: str) -> str:
    return lengths.replace(":", "–")
