"""GGUF vocabulary → tokenizer.json, tokenizer_config.json and chat_template.jinja.

Two kinds of vocabulary: "gpt2" (byte-level BPE with its merges) and "llama" (SentencePiece BPE, whose merges follow
from the scores). The ids must equal those of the tokenizer that the file was made from. Knows nothing of weights.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, Final

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.sources.gguf.pretokenizers import PreTokenizer, find_pre_tokenizer
from llm_inference.sources.gguf.reader import GgufModel

_log = logging.getLogger(__name__)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE: Final = "\u2581"
#: Rows that only pad the embedding matrix; the original vocabulary has no such tokens.
_PADDING_ROW: Final = re.compile(r"^\[PAD\d+\]$")


def write_tokenizer(model: GgufModel, directory: Path) -> None:
    """Write the tokenizer's files into `directory`. Raises `UnsupportedModelError` or `SourceError`."""
    vocabulary = _Vocabulary(model)
    vocabulary.build().save(str(directory / "tokenizer.json"))
    config = vocabulary.config()
    template = model.get("tokenizer.chat_template", str, None)
    if template is not None:
        config["chat_template"] = template
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    for key, value in model.metadata.items():
        name = key.removeprefix("tokenizer.chat_template.")
        if name != key and re.fullmatch(r"\w+", name) and isinstance(value, str):
            (directory / "additional_chat_templates").mkdir(exist_ok=True)
            (directory / "additional_chat_templates" / f"{name}.jinja").write_text(value, encoding="utf-8")
    content = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(content, encoding="utf-8")


class _Vocabulary:
    """The tokenizer part of a file's metadata, checked."""

    def __init__(self, model: GgufModel) -> None:
        self._model = model
        self._kind = model.require("tokenizer.ggml.model", str)
        if self._kind not in ("gpt2", "llama"):
            raise UnsupportedModelError(
                f"{model.path}: the vocabulary kind {self._kind!r} cannot be converted; gpt2 and llama can. "
                "Use the model's original directory with its tokenizer.json instead"
            )
        self._tokens: list[str] = self._strings("tokenizer.ggml.tokens")
        self._types: list[int] = model.get("tokenizer.ggml.token_type", list, [_NORMAL] * len(self._tokens))
        if len(self._types) != len(self._tokens):
            raise SourceError(f"{model.path}: {len(self._tokens)} tokens but {len(self._types)} token types")
        self._ids: dict[str, int] = {}
        for index, token in enumerate(self._tokens):
            if not _PADDING_ROW.match(token) or self._types[index] not in (_UNUSED, _USER_DEFINED):
                self._ids.setdefault(token, index)
        self._pre = self._pre_tokenizer() if self._kind == "gpt2" else None

    def build(self) -> Any:
        """The whole `tokenizers.Tokenizer`, BOS and EOS as the file wants them added."""
        from tokenizers import AddedToken, processors

        tokenizer = self._byte_level() if self._pre is not None else self._sentencepiece()
        added = [
            AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
            for token, kind in zip(self._tokens, self._types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN) and token in self._ids and token
        ]
        # One call: each call rebuilds the matcher of all added tokens.
        tokenizer.add_tokens(added)
        first = [self._named("bos")] if self._adds("bos") else []
        last = [self._named("eos")] if self._adds("eos") else []
        if first or last:
            single = [*first, "$A", *last]
            pair = [*single, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)]
            specials = [(token, self._ids[token]) for token in dict.fromkeys([*first, *last])]
            tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)
        return tokenizer

    def config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json but for the chat template."""
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self._adds("bos"),
            "add_eos_token": self._adds("eos"),
            "clean_up_tokenization_spaces": False,
        }
        length = self._model.get(f"{self._model.architecture}.context_length", int, None)
        if length:
            config["model_max_length"] = length
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            if self._id(key) is not None:
                config[f"{name}_token"] = self._named(key)
        if "eos_token" in config:
            config.setdefault("pad_token", config["eos_token"])
        return config

    def _byte_level(self) -> Any:
        from tokenizers import Tokenizer, decoders, models, normalizers

        assert self._pre is not None
        merges = []
        for number, merge in enumerate(self._strings("tokenizer.ggml.merges")):
            # A space inside a pair parts it; a first character that is a space belongs to the left side.
            left, _, right = merge[1:].partition(" ")
            left = merge[:1] + left
            if left not in self._ids or right not in self._ids or left + right not in self._ids:
                raise SourceError(f"{self._model.path}: merge {number} ({merge!r}) is not between known tokens")
            merges.append((left, right))
        tokenizer = Tokenizer(models.BPE(self._ids, merges, ignore_merges=self._pre.ignore_merges))
        if self._pre.nfc:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = self._pre.build()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self) -> Any:
        from tokenizers import Tokenizer, decoders, models, normalizers

        prefix = self._model.get("tokenizer.ggml.add_space_prefix", bool, True)
        unknown = self._named("unknown") if self._id("unknown") is not None else None
        tokenizer = Tokenizer(
            models.BPE(self._ids, self._score_merges(), unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
        strip = [decoders.Strip(" ", 1, 0)] if prefix else []
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return tokenizer

    def _score_merges(self) -> list[tuple[str, str]]:
        """Every way to make a token of two tokens, best score of the result first (SentencePiece's own order)."""
        scores = self._model.require("tokenizer.ggml.scores", list)
        if len(scores) != len(self._tokens):
            raise SourceError(f"{self._model.path}: {len(self._tokens)} tokens but {len(scores)} scores")
        mergeable = {
            token for token, kind in zip(self._tokens, self._types, strict=True) if kind in (_NORMAL, _UNUSED) and token
        }
        found: list[tuple[float, int, int, str, str]] = []
        for token in mergeable:
            score = scores[self._ids[token]]
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in mergeable and right in mergeable:
                    found.append((-score, self._ids[left], self._ids[right], left, right))
        found.sort()
        return [(left, right) for *_, left, right in found]

    def _pre_tokenizer(self) -> PreTokenizer:
        name = self._model.get("tokenizer.ggml.pre", str, None)
        if name is None:
            _log.warning(
                "%s does not name its pre-tokenizer (tokenizer.ggml.pre); the default one is used, which may cut text "
                "differently from the original",
                self._model.path,
            )
            name = "default"
        try:
            return find_pre_tokenizer(name)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{self._model.path}: {error.message}") from error

    def _adds(self, key: str) -> bool:
        """Whether the file wants `key` (bos or eos) around each text; without a word of it, the kind's habit."""
        habit = key == "bos" and (self._pre.add_bos if self._pre is not None else True)
        return bool(self._model.get(f"tokenizer.ggml.add_{key}_token", bool, habit)) and self._id(key) is not None

    def _id(self, key: str) -> int | None:
        value: int | None = self._model.get(f"tokenizer.ggml.{key}_token_id", int, None)
        if value is None and self._kind == "llama":
            # SentencePiece's own numbering, which old files leave unsaid.
            value = {"unknown": 0, "bos": 1, "eos": 2}.get(key)
        if value is not None and not 0 <= value < len(self._tokens):
            raise SourceError(
                f"{self._model.path}: tokenizer.ggml.{key}_token_id is {value}, of {len(self._tokens)} tokens"
            )
        return value

    def _named(self, key: str) -> str:
        index = self._id(key)
        assert index is not None
        return self._tokens[index]

    def _strings(self, key: str) -> list[str]:
        values = self._model.require(key, list)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise SourceError(f"{self._model.path}: {key}[{index}] is no text")
            if not value.isascii() and any(0xDC80 <= ord(letter) <= 0xDCFF for letter in value):
                raise SourceError(f"{self._model.path}: {key}[{index}] is not UTF-8; the file is corrupt")
        return list(values)
