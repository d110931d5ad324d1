"""What is sent: the calls of a benchmark, warm-up included, all encoded before the first measured one leaves.

How prompts get their length, in this order: text that the server's `/tokenize` counts, token ids (completions), words
at a rate that the usage of two small requests shows. Lengths count the chat template's tokens, as usage does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from llm_inference.errors import ConfigError, EngineError
from llm_inference.tools.bench.api import Api, Call, ModelCard
from llm_inference.tools.bench.dataset import DatasetRow, read_dataset
from llm_inference.tools.bench.dialect import Dialect, prompt_field
from llm_inference.tools.bench.prompts import (
    Count,
    Text,
    WordRate,
    estimated_text,
    fitted_text,
    gathered,
    random_token_ids,
)
from llm_inference.tools.bench.settings import BenchSettings

#: Streams of one seed; arrivals are number 3, the measurement of words 4.
_INPUT, _OUTPUT, _WORDS, _PREFIX = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Workload:
    """`source` says where the prompts and their lengths come from; `notes` what did not come out as asked."""

    warmup: tuple[Call, ...]
    calls: tuple[Call, ...]
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Prompts:
    contents: list[Any]
    num_tokens: list[int | None]
    source: str
    notes: list[str]


class WorkloadBuilder:
    """`progress(done, total)` is called while prompts are made."""

    def __init__(
        self,
        api: Api,
        settings: BenchSettings,
        model: ModelCard,
        dialect: Dialect,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._model = model
        self._dialect = dialect
        self._progress = progress

    async def build(self, count: int | None) -> Workload:
        """`count` measured calls (None: all rows of the dataset) after `settings.warmup` others.

        Raises `ConfigError` when the dataset is too small, or requests exceed the context that the server tells.
        """
        settings = self._settings
        if settings.dataset is not None:
            rows = read_dataset(settings.dataset, settings.endpoint)
            prompts, outputs = self._from_dataset(rows, count)
        else:
            assert count is not None
            # The measured ones first: another --warmup leaves them as they are.
            lengths = settings.input_len.draw(count + settings.warmup, settings.seed, _INPUT)
            outputs = settings.output_len.draw(count + settings.warmup, settings.seed, _OUTPUT)
            prompts = await self._synthetic([settings.prefix_len + length for length in lengths])
        self._check_context(prompts, outputs)
        calls = [
            Call(
                body=msgspec.json.encode(self._dialect.body(self._model.id, settings.endpoint, content, max_tokens)),
                index=index,
                planned_input_tokens=num_tokens,
                max_tokens=max_tokens,
            )
            for index, (content, num_tokens, max_tokens) in enumerate(
                zip(prompts.contents, prompts.num_tokens, outputs, strict=True)
            )
        ]
        num_measured = len(calls) - settings.warmup
        return Workload(tuple(calls[num_measured:]), tuple(calls[:num_measured]), prompts.source, tuple(prompts.notes))

    def _from_dataset(self, rows: list[DatasetRow], count: int | None) -> tuple[_Prompts, list[int]]:
        settings = self._settings
        count = len(rows) if count is None else count
        if count > len(rows):
            raise ConfigError(
                f"{settings.dataset} has {len(rows)} prompts, {count} are wanted (--num-prompts, or --request-rate × "
                "--duration); none is sent twice, as a prefix cache would answer it"
            )
        notes = []
        warmup = (rows[count:] or rows)[: settings.warmup]
        if count + settings.warmup > len(rows) and settings.warmup:
            notes.append("the warm-up repeats prompts of the dataset; a prefix cache may remember them")
        while len(warmup) < settings.warmup:
            warmup.append(rows[len(warmup) % len(rows)])
        chosen = rows[:count] + warmup
        drawn = settings.output_len.draw(len(chosen), settings.seed, _OUTPUT)
        outputs = [
            length if row.max_tokens is None else row.max_tokens for row, length in zip(chosen, drawn, strict=True)
        ]
        contents = [row.content for row in chosen]
        return _Prompts(contents, [None] * len(contents), "dataset", notes), outputs

    async def _synthetic(self, lengths: list[int]) -> _Prompts:
        settings = self._settings
        rate = await WordRate.measure(self._tokenize)
        if rate is not None:
            texts = await self._texts(lengths, rate, self._tokenize)
            return self._of_texts(texts, lengths, "words, counted by the server's /tokenize")
        if settings.endpoint == "completions" and await self._takes_token_ids():
            prefix = random_token_ids(np.random.default_rng((settings.seed, _PREFIX)), settings.prefix_len)
            ids = [
                prefix + random_token_ids(self._rng(index), length - len(prefix))
                for index, length in enumerate(lengths)
            ]
            return _Prompts(list(ids), list(lengths), "random token ids (the server has no /tokenize)", [])
        rate = await WordRate.measure(self._usage)
        source = "words, their number worked out from the usage of two small requests (the server has no /tokenize)"
        if rate is None:
            rate, source = WordRate(0, 1), "words, one taken for one token (the server has no /tokenize and no usage)"
        texts = await self._texts(lengths, rate, None)
        return _Prompts([text.text for text in texts], [text.num_tokens for text in texts], source, [])

    async def _texts(self, lengths: list[int], rate: WordRate, count: Count | None) -> list[Text]:
        """One text per length; exact where `count` is given. The shared prefix is made once."""
        settings = self._settings
        prefix = ""
        if settings.prefix_len:
            rng = np.random.default_rng((settings.seed, _PREFIX))
            wanted = settings.prefix_len + max(round(rate.base), 0)
            prefix = (await self._text(rng, rate, count, wanted, "")).text
        done = 0

        def one_more() -> None:
            nonlocal done
            done += 1
            self._progress(done, len(lengths))

        jobs = [self._text(self._rng(index), rate, count, length, prefix) for index, length in enumerate(lengths)]
        return await gathered(list(jobs), one_more)

    @staticmethod
    async def _text(
        rng: np.random.Generator, rate: WordRate, count: Count | None, num_tokens: int, prefix: str
    ) -> Text:
        if count is None:
            return estimated_text(rng, rate, num_tokens, prefix)
        try:
            return await fitted_text(rng, rate, count, num_tokens, prefix)
        except ValueError as error:
            raise EngineError("the server's /tokenize worked, and then failed while prompts were made") from error

    @staticmethod
    def _of_texts(texts: list[Text], lengths: list[int], source: str) -> _Prompts:
        notes = []
        longer = [text.num_tokens for text, length in zip(texts, lengths, strict=True) if text.num_tokens > length]
        shorter = sum(text.num_tokens < length for text, length in zip(texts, lengths, strict=True))
        if longer:
            notes.append(
                f"{len(longer)} of {len(texts)} prompts (warm-up included) are longer than was drawn for them, "
                f"{max(longer)} tokens at most: none can be shorter than the chat template and one word"
            )
        if shorter:
            notes.append(f"{shorter} of {len(texts)} prompts (warm-up included) are shorter than was drawn for them")
        return _Prompts([text.text for text in texts], [text.num_tokens for text in texts], source, notes)

    def _check_context(self, prompts: _Prompts, outputs: list[int]) -> None:
        context = self._model.max_model_len
        if context is None:
            return
        totals = [(count or 0) + output for count, output in zip(prompts.num_tokens, outputs, strict=True)]
        over = sum(total > context for total in totals)
        if over:
            raise ConfigError(
                f"{over} of {len(totals)} requests need more than the {context} tokens of {self._model.id}'s context "
                f"(up to {max(totals)}); lower --input-len, --output-len or --prefix-len"
            )

    def _rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng((self._settings.seed, _WORDS, index))

    async def _tokenize(self, text: str) -> int | None:
        return await self._api.count_tokens({"model": self._model.id, **prompt_field(self._settings.endpoint, text)})

    async def _usage(self, text: str) -> int | None:
        timeline = await self._api.stream(self._call(text))
        return timeline.input_tokens if timeline.ok else None

    async def _takes_token_ids(self) -> bool:
        return (await self._api.stream(self._call(random_token_ids(self._rng(0), 8)))).ok

    def _call(self, content: Any) -> Call:
        return Call(body=msgspec.json.encode(self._dialect.body(self._model.id, self._settings.endpoint, content, 1)))
