from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import AutoTokenizer

from llm_inference.errors import InvalidRequestError, SourceError
from llm_inference.text.tokenizer import Tokenizer
from tests.text.conftest import CORPUS, write_model
from tests.text.test_sentencepiece import train

LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEXTS = ["Hello, world!", "  two", "Grüße 日本語 😀", "a</s>b", "", "line\nbreak"]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_equal_transformers(tmp_path: Path, llama_like: Backend, byte_level: Backend, text: str) -> None:
    for name, backend, config in (
        ("llama", llama_like, LLAMA),
        ("bytes", byte_level, {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}),
    ):
        directory = write_model(tmp_path / name, backend, config)
        ours, theirs = Tokenizer.load(directory), AutoTokenizer.from_pretrained(directory)
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs(text, add_special_tokens=special).input_ids
            assert ours.decode(ids, skip_special_tokens=special) == theirs.decode(ids, skip_special_tokens=special)


@pytest.mark.parametrize(
    ("tokenizer_class", "flag", "processor"),
    [*itertools.product(["LlamaTokenizerFast", "PreTrainedTokenizerFast"], [None, True, False], [True, False])],
)
def test_bos_where_flags_and_post_processor_disagree(
    tmp_path: Path, llama_like: Backend, tokenizer_class: str, flag: bool | None, processor: bool
) -> None:
    state = json.loads(llama_like.to_str())
    if not processor:
        state["post_processor"] = None
    config: dict[str, Any] = {**LLAMA, "tokenizer_class": tokenizer_class}
    if flag is not None:
        config |= {"add_bos_token": flag, "add_eos_token": flag}
    directory = write_model(tmp_path, config=config, tokenizer__json=json.dumps(state), config__json="{}")
    ids = Tokenizer.load(directory).encode("Hello")
    assert ids == AutoTokenizer.from_pretrained(directory)("Hello").input_ids
    assert (ids[0] == 1) == processor


def test_special_ids_and_sizes(tmp_path: Path, byte_level: Backend) -> None:
    config = {
        "eos_token": "<|im_end|>",
        "bos_token": "<|im_start|>",
        "additional_special_tokens": ["日本", "Ġa", "<absent>"],
    }
    directory = write_model(tmp_path, byte_level, config)
    tokenizer = Tokenizer.load(directory)
    theirs = AutoTokenizer.from_pretrained(directory)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)
    assert tokenizer.pad_token_id == 2  # EOS stands in
    assert tokenizer.vocab_size == max(byte_level.get_vocab().values()) + 1
    assert {1, 2, tokenizer.token_id("Ġa")} <= tokenizer.special_token_ids
    assert tokenizer.token_id("日本") not in tokenizer.special_token_ids  # it was an added token without that mark
    assert tokenizer.token_id("<absent>") is None  # an id of its own would lie beyond the embeddings
    assert tokenizer.decode(tokenizer.encode("a日本b")) == theirs.decode(
        theirs("a日本b").input_ids, skip_special_tokens=True
    )


def test_pad_token(tmp_path: Path, llama_like: Backend) -> None:
    assert Tokenizer.load(write_model(tmp_path / "a", llama_like, {**LLAMA, "pad_token": "<unk>"})).pad_token_id == 0
    assert Tokenizer.load(write_model(tmp_path / "b", llama_like, {**LLAMA, "pad_token": "<pad>"})).pad_token_id == 2
    assert Tokenizer.load(write_model(tmp_path / "c", llama_like)).pad_token_id == 0
    assert Tokenizer.load(tmp_path / "c").eos_token_id is None


def test_declared_tokens_keep_their_ids(tmp_path: Path, llama_like: Backend) -> None:
    size = llama_like.get_vocab_size()
    table = {
        "1": {"content": "<s>", "special": True},
        str(size + 2): {"content": "<late>", "special": True},
        str(size + 3): {"content": "word", "special": False},
        "5": {"content": "<renamed>", "special": True},  # tokenizer.json has another name for 5
    }
    tokenizer = Tokenizer.load(write_model(tmp_path, llama_like, {**LLAMA, "added_tokens_decoder": table}))
    assert tokenizer.token_id("<late>") == size + 2
    assert tokenizer.token_id("word") == size + 3
    assert tokenizer.vocab_size == size + 4
    assert size + 2 in tokenizer.special_token_ids
    assert size + 3 not in tokenizer.special_token_ids
    assert tokenizer.token_id("<renamed>") is None
    table = {str(size + 100_000): {"content": "<far>", "special": True}}
    with pytest.raises(SourceError, match=r"<far>.*do not belong together"):
        Tokenizer.load(write_model(tmp_path, llama_like, {**LLAMA, "added_tokens_decoder": table}))


def test_nothing_is_cut_or_padded_in_silence(tmp_path: Path, llama_like: Backend) -> None:
    backend = Backend.from_str(llama_like.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    ids = Tokenizer.load(write_model(tmp_path, backend, LLAMA)).encode(CORPUS[0])
    assert ids == llama_like.encode(CORPUS[0]).ids
    assert len(ids) > 4


@pytest.mark.parametrize("variant", [{}, {"add_dummy_prefix": False}, {"model_type": "unigram", "vocab_size": 335}])
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
def test_sentencepiece_file_alone(tmp_path: Path, variant: dict[str, Any], flags: dict[str, bool]) -> None:
    reference = train(tmp_path / "tokenizer.model", **variant)
    tokenizer = Tokenizer.load(write_model(tmp_path, config=flags))
    adds_bos = flags.get("add_bos_token", variant.get("model_type") != "unigram")
    adds_eos = flags.get("add_eos_token", False)
    for text in ("Hello, world!", " a  b", "日本 😀"):
        assert tokenizer.encode(text) == [*[1] * adds_bos, *reference.encode(text), *[2] * adds_eos]
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.vocab_size == reference.get_piece_size()
    assert {0, 1, 2} <= tokenizer.special_token_ids
    assert Backend.from_str(tokenizer.to_json()).encode("Hello").ids == tokenizer.encode("Hello")


def test_sentencepiece_file_with_renamed_and_added_tokens(tmp_path: Path) -> None:
    reference = train(tmp_path / "tokenizer.model", user_defined_symbols=["[control_8]"])
    size, renamed = reference.get_piece_size(), reference.piece_to_id("[control_8]")
    table = {str(renamed): {"content": "[TOOL]", "special": True}, str(size): {"content": "<|end|>", "special": True}}
    tokenizer = Tokenizer.load(write_model(tmp_path, config={"added_tokens_decoder": table, "eos_token": "<|end|>"}))
    assert tokenizer.token_id("[TOOL]") == renamed
    assert tokenizer.eos_token_id == size
    assert tokenizer.encode("Hello<|end|>") == [1, *reference.encode("Hello"), size]


def test_tokenizer_json_wins_over_the_sentencepiece_file(tmp_path: Path, llama_like: Backend) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"never read")
    assert Tokenizer.load(write_model(tmp_path, llama_like, LLAMA)).encode("a") == llama_like.encode("a").ids


def test_tokenizer_from_elsewhere(tmp_path: Path, llama_like: Backend, byte_level: Backend) -> None:
    model = write_model(tmp_path / "model", byte_level, {"eos_token": "<|im_end|>", "chat_template": "MODEL"})
    other = write_model(tmp_path / "other", llama_like, LLAMA)
    for place in (other, other / "tokenizer.json"):
        tokenizer = Tokenizer.load(model, tokenizer=place)
        assert tokenizer.eos_token_id == 2
        assert tokenizer.encode("Hello") == llama_like.encode("Hello").ids
        assert tokenizer.chat_template is not None
        assert tokenizer.chat_template.source == "MODEL"  # the other place has none


def test_which_chat_template(tmp_path: Path, llama_like: Backend) -> None:
    named = [
        {"name": "default", "template": "D"},
        {"name": "tool_use", "template": "T"},
        {"name": "rag", "template": "R"},
    ]
    directory = write_model(tmp_path / "m", llama_like, {**LLAMA, "chat_template": named})
    (tmp_path / "mine.jinja").write_text("MINE {{ eos_token }}")

    def sources(wanted: str | Path | None) -> tuple[str, str | None]:
        template = Tokenizer.load(directory, chat_template=wanted).chat_template
        assert template is not None
        return template.source, template.tool_source

    assert sources(None) == ("D", "T")
    assert sources("rag") == ("R", None)
    assert sources("{{ messages }}") == ("{{ messages }}", None)
    assert sources(tmp_path / "mine.jinja") == ("MINE {{ eos_token }}", None)
    assert sources(str(tmp_path / "mine.jinja")) == ("MINE {{ eos_token }}", None)
    template = Tokenizer.load(directory, chat_template=tmp_path / "mine.jinja").chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "MINE </s>"
    with pytest.raises(SourceError, match=r"nowhere.*default, rag, tool_use"):
        sources("nowhere")
    assert Tokenizer.load(write_model(tmp_path / "n", llama_like)).chat_template is None


def test_errors_name_the_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"tokenizer\.json and tokenizer\.model"):
        Tokenizer.load(tmp_path)
    with pytest.raises(SourceError, match="absent"):
        Tokenizer.load(tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    with pytest.raises(SourceError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_token_bytes_and_text(byte_level: Backend, llama_like: Backend) -> None:
    for backend in (byte_level, llama_like):
        tokenizer = Tokenizer(backend)
        ids = tokenizer.encode("Hi 😀", add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).lstrip() == "Hi 😀".encode()
        assert tokenizer.token_text(ids[-1]) == "bytes:\\x80"
        assert tokenizer.token_text(10**6) == ""
    tokenizer = Tokenizer(byte_level)
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(tokenizer.token_id("Ġa") or -1) == " a"
    assert Tokenizer(llama_like).token_text(llama_like.token_to_id("▁a")) == " a"


def test_left_padding(llama_like: Backend) -> None:
    tokenizer = Tokenizer(llama_like, special_tokens=LLAMA)
    assert tokenizer.pad_batch([[5], [6, 7, 8], []]) == (
        [[2, 2, 5], [6, 7, 8], [2, 2, 2]],
        [[0, 0, 1], [1, 1, 1], [0, 0, 0]],
    )
    assert tokenizer.pad_batch([]) == ([], [])


def test_half_a_surrogate_pair_is_no_crash(byte_level: Backend) -> None:
    tokenizer = Tokenizer(byte_level)
    assert tokenizer.decode(tokenizer.encode("a\ud83d b")) == "a\ufffd b"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"


def test_negative_ids_are_a_request_error(byte_level: Backend) -> None:
    tokenizer = Tokenizer(byte_level)
    with pytest.raises(InvalidRequestError, match="Token ids"):
        tokenizer.decode([-1])
    assert tokenizer.decode([10**6]) == ""


def test_encodes_in_many_threads_and_lets_others_run(byte_level: Backend) -> None:
    tokenizer = Tokenizer(byte_level)
    expected = [tokenizer.encode(text) for text in CORPUS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, CORPUS * 8)) == expected * 8
    worker = threading.Thread(target=tokenizer.encode, args=("Hello, world! " * 200_000,))
    worker.start()
    turns = 0
    while worker.is_alive():
        worker.join(0.001)
        turns += 1
    assert turns > 5  # a call that held the GIL would have let this loop turn only once or twice


def test_post_processors_other_than_bos(tmp_path: Path, llama_like: Backend) -> None:
    backend = Backend.from_str(llama_like.to_str())
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    assert Tokenizer.load(write_model(tmp_path, backend, LLAMA)).encode("a")[-1] == 2


def test_default_model_as_transformers(default_model_dir: Path) -> None:
    tokenizer = Tokenizer.load(default_model_dir)
    reference = AutoTokenizer.from_pretrained(default_model_dir)
    assert tokenizer.eos_token_id == reference.eos_token_id
    assert tokenizer.vocab_size == len(reference)
    special = {i for i, token in reference.added_tokens_decoder.items() if token.special}
    assert tokenizer.special_token_ids == special | set(reference.all_special_ids)
    for text in [*TEXTS, *CORPUS[:3], "<|im_start|>user\nhi<|im_end|>"]:
        ids = tokenizer.encode(text)
        assert ids == reference(text).input_ids
        stream = tokenizer.detokenizer()
        pieces = [stream.add([token_id]) for token_id in ids]
        assert "".join(pieces) + stream.flush() == reference.decode(ids, skip_special_tokens=True)
        assert not any("\ufffd" in piece for piece in pieces)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
