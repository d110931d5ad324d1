from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import ChatPrompt, GenerationDefaults
from llm_inference.errors import ConfigError, ContextLengthError, InvalidRequestError, SourceError
from llm_inference.text.chat import encode_chat
from tests.adapters.generate_model import write_tokenizer
from tests.adapters.replay import chat, request


def text_of(prompts: PromptSide, ids: tuple[int, ...]) -> str:
    return prompts.tokenizer.decode(ids, skip_special_tokens=False)


def test_a_text_is_what_it_is(prompts: PromptSide) -> None:
    prepared = prompts.prepare(request("Hé"), 100)
    assert (prepared.text, prepared.raw_text, prepared.shown) == ("Hé", "Hé", "Hé")
    assert prepared.add_special_tokens
    assert text_of(prompts, prepared.token_ids) == "<s>Hé"


def test_a_chat_has_one_bos(prompts: PromptSide) -> None:
    prepared = prompts.prepare(request(chat("Hi")), 100)
    assert text_of(prompts, prepared.token_ids) == "<s>[user]Hi[a]"
    assert (prepared.raw_text, prepared.add_special_tokens) == ("<s>[user]Hi[a]", False)
    # What the engine's tokenizer makes of `text` is exactly the prompt.
    assert tuple(prompts.tokenizer.encode(prepared.text)) == prepared.token_ids


def test_token_ids_become_the_text_that_gives_them_again(prompts: PromptSide) -> None:
    ids = tuple(prompts.tokenizer.encode("Hé</s>x"))
    prepared = prompts.prepare(request(ids), 100)
    assert prepared.token_ids == ids
    assert tuple(prompts.tokenizer.encode(prepared.text)) == ids
    assert prepared.shown == "Héx"


@pytest.mark.parametrize("prompt", ["", ()])
def test_an_empty_prompt(prompts: PromptSide, prompt: str | tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        prompts.prepare(request(prompt), 100)


@pytest.mark.parametrize("token_id", [-1, 258, 10**12])
def test_token_ids_outside_the_vocabulary(prompts: PromptSide, token_id: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(token_id)) as caught:
        prompts.prepare(request((5, token_id)), 100)
    assert caught.value.param == "prompt"


def test_what_does_not_fit(prompts: PromptSide) -> None:
    assert prompts.prepare(request("abc", max_tokens=6), 10).token_ids[0] == 0
    with pytest.raises(ContextLengthError, match="at most 6") as caught:
        prompts.prepare(request("abc", max_tokens=7), 10)
    assert caught.value.param == "max_tokens"
    with pytest.raises(ContextLengthError, match="length is 10 tokens; the prompt has 12") as caught:
        prompts.prepare(request(chat("Hi")), 10)
    assert caught.value.param == "messages"


def test_a_hopeless_text_is_refused_before_it_is_tokenized(prompts: PromptSide) -> None:
    with pytest.raises(ContextLengthError, match="10000 characters") as caught:
        prompts.prepare(request("x" * 10_000), 10)
    assert caught.value.param == "prompt"


def test_counts_are_of_the_text_alone(prompts: PromptSide) -> None:
    assert (prompts.count(""), prompts.count("é")) == (0, 2)


def test_limits_and_defaults_come_from_the_models_files(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model")
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 77}))
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 0.3, "top_k": 9}))
    side = PromptSide.load(ModelConfig(model=str(directory), generation={"top_k": 5}))
    assert side.max_model_len == 77
    assert side.defaults == GenerationDefaults(temperature=0.3, top_k=5)


def test_a_tokenizer_beside_the_model(tmp_path: Path, tokenizer_dir: Path) -> None:
    plain = write_tokenizer(tmp_path / "plain", template=False)
    side = PromptSide.load(
        ModelConfig(model="served-name", tokenizer=str(plain / "tokenizer.json"), chat_template="{{ 1 }}")
    )
    assert side.prepare(request(chat("Hi")), 100).text == "1"
    # The model's own template belongs to whatever tokenizer is named.
    both = PromptSide.load(ModelConfig(model=str(tokenizer_dir), tokenizer=str(plain)))
    assert both.prepare(request(chat("Hi")), 100).raw_text == "<s>[user]Hi[a]"


def test_without_template_chats_are_refused(tmp_path: Path) -> None:
    side = PromptSide.load(ModelConfig(model=str(write_tokenizer(tmp_path / "plain", template=False))))
    with pytest.raises(InvalidRequestError, match="no chat template"):
        side.prepare(request(chat("Hi")), 100)


@pytest.mark.parametrize("model", ["ensemble", "no/where/at/all"])
def test_no_tokenizer_is_known(model: str) -> None:
    with pytest.raises(ConfigError, match="set `tokenizer:`") as caught:
        PromptSide.load(ModelConfig(model=model))
    assert isinstance(caught.value.__cause__, SourceError)


def test_a_real_models_chat_is_the_native_engines(default_model_dir: Path) -> None:
    side = PromptSide.load(ModelConfig(model=str(default_model_dir)))
    wanted = request(chat("What is the capital of France?", "And of Italy? 🙂"))
    prepared = side.prepare(wanted, 8192)
    assert isinstance(wanted.prompt, ChatPrompt)
    assert list(prepared.token_ids) == encode_chat(side.tokenizer, wanted.prompt)
    assert side.tokenizer.encode(prepared.text) == list(prepared.token_ids)
    assert side.max_model_len == 8192
