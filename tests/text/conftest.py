"""Tiny tokenizers of the families that matter, trained on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "Hello, world! How are you today? The quick brown fox jumps over the lazy dog.",
    "  Two leading spaces, a tab\tand a line\nbreak. def factorial(n): return 1 if n < 2 else n * factorial(n - 1)",
    "Grüße aus Köln, naïve café: no emoji here, so that theirs stay tokens of single bytes",
] * 8


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """GPT-2 style, with added tokens inside and outside of the byte alphabet, special and not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("日本"), AddedToken(" x y", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<｜end▁of▁text｜>")])
    return tokenizer


@pytest.fixture(scope="session")
def byte_level_odd(byte_level: Tokenizer) -> Tokenizer:
    """With an added token that the library itself decodes wrongly, since its characters lie in the alphabet."""
    tokenizer = Tokenizer.from_str(byte_level.to_str())
    tokenizer.add_tokens([AddedToken("¶é")])
    assert tokenizer.decode(tokenizer.encode("¶é").ids) == "\ufffd\ufffd"
    return tokenizer


@pytest.fixture(scope="session")
def llama_like() -> Tokenizer:
    """SentencePiece style: dummy prefix, byte fallback, the decoder that Llama's tokenizer.json carries."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=460, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], max_token_length=6
    )
    ascii_only = [line.encode("ascii", "ignore").decode() for line in CORPUS]
    tokenizer.train_from_iterator([line.replace(" ", "▁") for line in ascii_only], trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def write_model(
    directory: Path,
    tokenizer: Tokenizer | None = None,
    config: dict[str, Any] | None = None,
    **texts: str,
) -> Path:
    """A model directory as far as a tokenizer goes; `texts` are further files, `__` standing for a dot."""
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in texts.items():
        (directory / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return directory
