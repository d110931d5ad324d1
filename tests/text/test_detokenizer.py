from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from llm_inference.text.pieces import MAX_BYTE_RUN
from llm_inference.text.tokenizer import Tokenizer
from tests.text.conftest import CORPUS

EMOJI = "x 👩‍👩‍👧 日本 😀😀 é ñ"

#: Fixtures of the whole session are safe to share between examples.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)


def stream(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = (), skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip)
    return [*(detokenizer.add([token_id]) for token_id in ids), detokenizer.flush()]


def ids_of(backend: Backend) -> st.SearchStrategy[list[int]]:
    """Any ids, some of them unknown."""
    size = backend.get_vocab_size()
    return st.lists(st.integers(0, size + 3), max_size=40)


@shared
@given(data=st.data(), skip=st.booleans())
def test_byte_level_equals_the_library_s_decode(byte_level_odd: Backend, data: st.DataObject, skip: bool) -> None:  # T1
    backend = byte_level_odd
    ids = data.draw(ids_of(backend))
    assert "".join(stream(Tokenizer(backend), ids, skip=skip)) == backend.decode(ids, skip_special_tokens=skip)


@shared
@given(data=st.data(), skip=st.booleans())
def test_sentencepiece_equals_the_library_s_decode(llama_like: Backend, data: st.DataObject, skip: bool) -> None:  # T2
    # Bytes are over-represented, so that runs of them are long and often broken.
    some_bytes = st.lists(st.sampled_from([llama_like.token_to_id(f"<0x{b:02X}>") for b in (0x20, 0xE2, 0x82, 0xAC)]))
    parts = data.draw(st.lists(st.one_of(ids_of(llama_like), some_bytes), max_size=3))
    ids = [token_id for part in parts for token_id in part][:MAX_BYTE_RUN]
    assert "".join(stream(Tokenizer(llama_like), ids, skip=skip)) == llama_like.decode(ids, skip_special_tokens=skip)


@shared
@given(text=st.text(max_size=20), prompt=st.text(max_size=10))
def test_text_goes_on_from_the_prompt(byte_level: Backend, llama_like: Backend, text: str, prompt: str) -> None:
    for backend in (byte_level, llama_like):
        prompt_ids = backend.encode(prompt).ids
        ids = backend.encode(text, add_special_tokens=False).ids
        before = backend.decode(prompt_ids)
        joined = "".join(stream(Tokenizer(backend), ids, prompt_ids))
        assert before + joined == backend.decode(prompt_ids + ids)


@pytest.mark.parametrize("together", [1, 2, 3, 100])
def test_no_piece_shows_half_a_character(byte_level: Backend, llama_like: Backend, together: int) -> None:  # T1
    for backend in (byte_level, llama_like):
        tokenizer = Tokenizer(backend)
        ids = tokenizer.encode(EMOJI, add_special_tokens=False)
        assert len(ids) > len(EMOJI)  # characters of several tokens
        detokenizer = tokenizer.detokenizer()
        pieces = [detokenizer.add(ids[i : i + together]) for i in range(0, len(ids), together)]
        pieces.append(detokenizer.flush())
        assert "".join(pieces) == EMOJI
        assert not any("\ufffd" in piece for piece in pieces)


def test_eight_streams_at_once_do_not_mix(byte_level: Backend) -> None:  # T1
    tokenizer = Tokenizer(byte_level)
    texts = [EMOJI[i:] + str(i) for i in range(8)]
    rows = [tokenizer.encode(text) for text in texts]
    streams = [tokenizer.detokenizer() for _ in rows]
    sent = [""] * 8
    for step in range(max(map(len, rows))):
        for i, row in enumerate(rows):
            sent[i] += streams[i].add(row[step : step + 1])
            assert "\ufffd" not in sent[i]
    assert [text + one.flush() for text, one in zip(sent, streams, strict=True)] == texts


def test_cut_inside_a_character_ends_as_decode_does(byte_level: Backend, llama_like: Backend) -> None:  # T1
    for backend in (byte_level, llama_like):
        ids = backend.encode("ok 😀", add_special_tokens=False).ids
        for end in range(len(ids)):
            pieces = stream(Tokenizer(backend), ids[:end])
            assert "".join(pieces) == backend.decode(ids[:end])
            assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_first_token_after_the_prompt_keeps_its_space(llama_like: Backend) -> None:  # T2
    tokenizer = Tokenizer(llama_like)
    world = llama_like.encode("dog", add_special_tokens=False).ids
    assert llama_like.id_to_token(world[0]).startswith("▁")
    assert "".join(stream(tokenizer, world)) == "dog"
    assert "".join(stream(tokenizer, world, tokenizer.encode("the"))) == " dog"
    assert "".join(stream(tokenizer, world, [tokenizer.token_id("<s>")])) == "dog"  # a prompt without text
    assert "".join(stream(tokenizer, world, [tokenizer.token_id("<s>")], skip=False)) == " dog"


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_character_begun_in_the_prompt_is_finished(byte_level: Backend, llama_like: Backend, kept: int) -> None:
    for backend in (byte_level, llama_like):
        ids = backend.encode("so 😀 on", add_special_tokens=False).ids
        pieces = Tokenizer(backend)
        start = next(i for i, token_id in enumerate(ids) if b"\xf0" in pieces.token_bytes(token_id))
        if len(pieces.token_bytes(ids[start])) != 1:
            pytest.fail("the corpus taught this tokenizer emoji; choose a rarer character")
        assert "".join(stream(pieces, ids[start + kept :], ids[: start + kept])) == "😀 on"


def test_endless_invalid_bytes_stay_cheap_and_flow(byte_level: Backend, llama_like: Backend) -> None:
    for backend, token in ((byte_level, "Ģ"), (llama_like, "<0x80>")):  # a continuation byte with nothing to continue
        tokenizer = Tokenizer(backend)
        bad = backend.token_to_id(token)
        assert tokenizer.token_bytes(bad) == b"\x80"
        detokenizer = tokenizer.detokenizer()
        started = time.process_time()
        sent = sum(len(detokenizer.add([bad])) for _ in range(20_000))
        assert sent == 20_000
        assert detokenizer.flush() == ""
        assert time.process_time() - started < 5  # quadratic work would take minutes


def test_long_run_of_byte_tokens_keeps_streaming(llama_like: Backend) -> None:
    tokenizer = Tokenizer(llama_like)
    text = "😀" * 100
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text == tokenizer.decode(ids)
    assert max(map(len, pieces)) <= MAX_BYTE_RUN // 4 + 1
    broken = [*ids, tokenizer.token_id("<0xFF>"), *ids[1:2]]
    assert "".join(stream(tokenizer, broken)) == tokenizer.decode(broken)
    assert tokenizer.decode(broken).startswith("😀" * (100 - MAX_BYTE_RUN // 4))


def test_special_tokens_are_shown_only_if_asked(byte_level: Backend) -> None:  # T4
    tokenizer = Tokenizer(byte_level)
    ids = tokenizer.encode("Hello<|im_end|> world<｜end▁of▁text｜>")
    assert "".join(stream(tokenizer, ids)) == "Hello world"
    assert "".join(stream(tokenizer, ids, skip=False)) == "Hello<|im_end|> world<｜end▁of▁text｜>"


def trained(decoder: decoders.Decoder, kind: str) -> Backend:
    if kind == "unigram":
        backend = Backend(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer: trainers.Trainer = trainers.UnigramTrainer(
            vocab_size=120, show_progress=False, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
        )
    else:
        backend = Backend(models.WordPiece(unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(vocab_size=200, show_progress=False, special_tokens=["[UNK]", "[SEP]"])
    backend.decoder = decoder
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.mark.parametrize(
    ("decoder", "kind"), [(decoders.Metaspace(), "unigram"), (decoders.WordPiece(cleanup=False), "wordpiece")]
)
@pytest.mark.parametrize("skip", [True, False])
def test_any_other_decoder_goes_through_the_library(decoder: decoders.Decoder, kind: str, skip: bool) -> None:
    backend = trained(decoder, kind)
    tokenizer = Tokenizer(backend)
    special = "</s>" if kind == "unigram" else "[SEP]"
    ids = [*backend.encode(CORPUS[0]).ids, backend.token_to_id(special), 10**6, *backend.encode(CORPUS[1]).ids]
    pieces = stream(tokenizer, ids, skip=skip)
    assert "".join(pieces) == backend.decode(ids, skip_special_tokens=skip)
    assert all(len(piece) < 20 for piece in pieces)
    prompt = backend.encode("Hello world").ids
    rest = backend.encode("lazy dog").ids
    assert backend.decode(prompt) + "".join(stream(tokenizer, rest, prompt)) == backend.decode(prompt + rest)


def test_replacement_character_in_the_vocabulary_waits_only_a_little() -> None:
    backend = Backend(models.WordLevel({"\ufffd": 0, "a": 1}, unk_token="a"))
    backend.decoder = decoders.Fuse()
    pieces = stream(Tokenizer(backend), [0] * 30 + [1])
    assert "".join(pieces) == "\ufffd" * 30 + "a"
    assert any(pieces[:10])
