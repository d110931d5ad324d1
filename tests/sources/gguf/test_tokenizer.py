"""Case O3: a tokenizer read from GGUF gives the same ids as the original."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.sources.gguf.reader import open_gguf
from llm_inference.sources.gguf.tokenizer import write_tokenizer
from tests.sources.gguf.files import MERGES, TOKENS, TYPES, add_byte_level_tokenizer, write_tiny_llama

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\t\n \r\n  x",
    "Hello, world! How're you?",
    "DON'T I'LL we've",
    "in 2024, 12345678 x 3.14159",
    "naïve façade Ärger ßtraße",
    "你好，世界。今天天气很好！",
    "こんにちは 世界 カタカナ",
    "안녕하세요 세계",
    "Привет, мир",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "مرحبا بالعالم ١٢٣",
    "שלום עולם",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "e\u0301 vs \u00e9",
    "²³ ½ Ⅷ １２３",
    "def f(x):\n    return x ** 2  # ok\n\n\n",
    "a" * 100,
    "   leading and trailing   ",
    "tabs\t\tand  double  spaces",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start",
    "<s> </s> <unk>",
    "\x00\x01\x7f",
    "\u200b\u00a0\u3000x",
    "https://example.org/a?b=c&d=%20",
    "$100 & 5% (of) [all] {x}",
    "…—–“”‘’",
]


def converted(path: Path, directory: Path) -> Tokenizer:
    directory.mkdir(exist_ok=True)
    write_tokenizer(open_gguf(path), directory)
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def ids(tokenizer: Tokenizer, text: str, **options: Any) -> list[int]:
    return list(tokenizer.encode(text, **options).ids)


def settings(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "tokenizer_config.json").read_text())


def test_the_default_tokenizer_equals_its_definition(default_model_dir: Path, default_gguf: Path) -> None:
    """SmolLM2's original: digits one by one, then GPT-2's own words, put together from `tokenizers`' own parts."""
    fields = gguf.GGUFReader(default_gguf).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    original = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    original.decoder = decoders.ByteLevel()
    original.add_special_tokens(
        [AddedToken(token, special=True) for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    )
    ours = Tokenizer.from_file(str(default_model_dir / "tokenizer.json"))
    for text in TEXTS:
        assert ids(ours, text) == ids(original, text), text
        assert ours.decode(ids(ours, text), skip_special_tokens=False) == text
    assert ours.get_vocab(with_added_tokens=True) == original.get_vocab(with_added_tokens=True)


def test_the_default_tokenizer_equals_transformers_reading(default_model_dir: Path, default_gguf: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(default_gguf.parent, gguf_file=default_gguf.name)
    ours = transformers.AutoTokenizer.from_pretrained(default_model_dir)
    for text in TEXTS:
        # Its reading leaves out that every numeral stands alone; the test above has the original's rule.
        if not any(letter.isnumeric() for letter in text):
            assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    assert ours.special_tokens_map == {
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>",
    }  # fmt: skip
    assert ours.chat_template == theirs.chat_template
    messages = [{"role": "user", "content": "Hi"}]
    rendered = ours.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered == theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_the_chat_template_arrives_in_both_places(tmp_path: Path, default_model_dir: Path, default_gguf: Path) -> None:
    template = open_gguf(default_gguf).metadata["tokenizer.chat_template"]
    assert (default_model_dir / "chat_template.jinja").read_text() == template
    assert settings(default_model_dir)["chat_template"] == template

    def named(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template([{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])

    converted(write_tiny_llama(tmp_path / "m.gguf", metadata=named), tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "D"
    assert (tmp_path / "out" / "additional_chat_templates" / "tool_use.jinja").read_text() == "T"
    converted(write_tiny_llama(tmp_path / "n.gguf"), tmp_path / "none")
    assert "chat_template" not in settings(tmp_path / "none")


def trained_sentencepiece(prefix: bool) -> Tokenizer:
    """A small Llama-style tokenizer: byte fallback, merges learnt from the texts."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, limit_alphabet=120,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
    )  # fmt: skip
    tokenizer.train_from_iterator([text for text in TEXTS if "<" not in text] * 3, trainer)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary_gives_its_originals_ids(tmp_path: Path, prefix: bool) -> None:
    original = trained_sentencepiece(prefix)
    content = json.loads(original.to_str())
    # The trainer holds byte tokens for special; to decode them both sides must hold them for bytes.
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < 3]
    vocabulary = sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
    order = {"".join(merge): number for number, merge in reversed(list(enumerate(content["model"]["merges"])))}
    original = Tokenizer.from_str(json.dumps(content))

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([token for token, _ in vocabulary])
        # SentencePiece scores: minus the order in which pieces were learnt; single characters have no merge.
        writer.add_token_scores([-float(order.get(token, 10_000)) for token, _ in vocabulary])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(vocabulary) - 259))
        writer.add_add_space_prefix(prefix)

    ours = converted(write_tiny_llama(tmp_path / "m.gguf", tokenizer=add), tmp_path / "out")
    for text in TEXTS:
        assert ids(ours, text, add_special_tokens=False) == ids(original, text), text
        assert ours.decode(ids(original, text)) == original.decode(ids(original, text))
    # Without a word in the file, Llama's habit: BOS before, nothing after, SentencePiece's own numbering.
    assert ids(ours, "x")[0] == 1
    assert ids(ours, "x")[1:] == ids(original, "x")
    assert {settings(tmp_path / "out")[f"{name}_token"] for name in ("unk", "bos", "eos", "pad")} == {
        "<unk>", "<s>", "</s>",
    }  # fmt: skip


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("pre", "steps", "nfc"),
    [
        ("gpt-2", [pre_tokenizers.ByteLevel(add_prefix_space=False)], False),
        ("olmo", [pre_tokenizers.ByteLevel(add_prefix_space=False)], True),
        ("starcoder", [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)], False),
        ("command-r", [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)], True),
        ("llama-bpe", [pre_tokenizers.Split(Regex(LLAMA3), "isolated")], False),
        ("qwen2", [pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated")], True),
    ],
)
def test_words_are_cut_as_the_original_families_cut_them(tmp_path: Path, pre: str, steps: list[Any], nfc: bool) -> None:
    """With a vocabulary without merges the ids hide the cuts, so the pre-tokenizer itself is compared."""
    path = write_tiny_llama(tmp_path / "m.gguf", tokenizer=lambda writer: add_byte_level_tokenizer(writer, pre))
    ours = converted(path, tmp_path / "out")
    if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
        steps = [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    original = pre_tokenizers.Sequence(steps)
    for text in TEXTS:
        got = [word for word, _ in ours.pre_tokenizer.pre_tokenize_str(text)]
        assert got == [word for word, _ in original.pre_tokenize_str(text)], text
    assert (ids(ours, "e\u0301") == ids(ours, "\u00e9")) == nfc


def test_bos_and_eos_are_added_as_the_file_says(tmp_path: Path) -> None:
    def tokenizer(pre: str, **flags: bool) -> Callable[[gguf.GGUFWriter], None]:
        def add(writer: gguf.GGUFWriter) -> None:
            add_byte_level_tokenizer(writer, pre)
            for name, value in flags.items():
                getattr(writer, f"add_add_{name}_token")(value)

        return add

    def encoded(pre: str, **flags: bool) -> list[int]:
        return ids(converted(write_tiny_llama(tmp_path / "m.gguf", tokenizer=tokenizer(pre, **flags)), tmp_path), "h")

    letter = TOKENS.index("h")
    assert encoded("smollm") == [letter]
    assert encoded("smollm", bos=True) == [1, letter]
    assert encoded("smollm", bos=True, eos=True) == [1, letter, 2]
    assert encoded("llama-bpe") == [1, letter]
    assert encoded("llama-bpe", bos=False) == [letter]
    both = converted(
        write_tiny_llama(tmp_path / "m.gguf", tokenizer=tokenizer("smollm", bos=True, eos=True)), tmp_path
    ).encode("h", "e")  # fmt: skip
    assert both.ids == [1, letter, 2, 1, TOKENS.index("e"), 2]


def test_merges_special_and_padding_tokens(tmp_path: Path) -> None:
    tokens = [*TOKENS, "<tool>", "[PAD265]", "[PAD266]"]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([*TYPES, 4, 5, 5])
        writer.add_token_merges(MERGES)
        writer.add_eos_token_id(2)

    ours = converted(write_tiny_llama(tmp_path / "m.gguf", tokenizer=add), tmp_path)
    assert ours.encode("hello w<tool><|im_end|>").tokens == ["hello", "Ġw", "<tool>", "<|im_end|>"]
    assert ours.decode(ids(ours, "hello<tool><|im_end|>")) == "hello<tool>"
    assert ours.get_vocab_size() == len(tokens) - 2
    assert ours.token_to_id("[PAD265]") is None
    assert "bos_token" not in settings(tmp_path)
    assert settings(tmp_path)["pad_token"] == "<|im_end|>"
    assert settings(tmp_path)["model_max_length"] == 128


def test_ignore_merges_takes_whole_words(tmp_path: Path) -> None:
    """Llama 3 takes a word that is a token even where no chain of merges leads to it."""

    def add(pre: str) -> Callable[[gguf.GGUFWriter], None]:
        def tokenizer(writer: gguf.GGUFWriter) -> None:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_list([*TOKENS, "xyz"])
            writer.add_token_types([*TYPES, 1])
            writer.add_token_merges(MERGES)
            writer.add_add_bos_token(False)

        return tokenizer

    for pre, expected in (("llama-bpe", ["xyz"]), ("qwen2", ["x", "y", "z"])):
        ours = converted(write_tiny_llama(tmp_path / "m.gguf", tokenizer=add(pre)), tmp_path)
        assert ours.encode("xyz").tokens == expected


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda w: w.add_tokenizer_model("bert"), UnsupportedModelError, "vocabulary kind 'bert'"),
        (lambda w: w.add_tokenizer_model("gpt2"), SourceError, "'tokenizer.ggml.merges' is missing"),
        (lambda w: w.add_tokenizer_model("llama"), SourceError, "'tokenizer.ggml.scores' is missing"),
        (lambda w: (w.add_tokenizer_model("llama"), w.add_token_scores([0.0])), SourceError, "but 1 scores"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("x")), UnsupportedModelError, "pre is 'x'"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_token_types([1])), SourceError, "but 1 token types"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_token_merges(["h é!"])), SourceError, "merge 0"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_token_merges(["h"])), SourceError, "merge 0"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_token_merges([b"\xff x"])), SourceError, "not UTF-8"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_array("tokenizer.ggml.merges", [1])), SourceError, "no text"),
        (
            lambda w: (
                w.add_tokenizer_model("llama"),
                w.add_token_scores([0.0] * len(TOKENS)),
                w.add_unk_token_id(9999),
            ),
            SourceError,
            "unknown_token_id is 9999",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: Any, error: type[Exception], message: str) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(TOKENS)
        change(writer)

    path = write_tiny_llama(tmp_path / "m.gguf", tokenizer=add)
    with pytest.raises(error, match=message) as caught:
        converted(path, tmp_path)
    assert str(path) in str(caught.value)


def test_a_file_without_a_pre_tokenizer_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(TOKENS)
        writer.add_token_merges(MERGES)

    with caplog.at_level(logging.WARNING):
        ours = converted(write_tiny_llama(tmp_path / "m.gguf", tokenizer=add), tmp_path)
    assert "does not name its pre-tokenizer" in caplog.text
    assert ours.encode("hello").tokens == ["hello"]
