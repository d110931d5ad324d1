"""What is deployed loads to what was said; secrets are nowhere in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from llm_inference.config.load import load_config
from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.config_file import deployed_config
from llm_inference.deploy.facts import compute_facts
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.errors import ConfigError
from tests.deploy.cases import CASES, CPU_NEEDS, FAKE_NEEDS, REMOTE_NEEDS
from tests.deploy.test_quoting import texts


def facts_of(config: ServerConfig, *needs: ModelNeeds):  # type: ignore[no-untyped-def]
    return compute_facts(config, needs, Choices())


def reload(text: str, folder: Path, **environ: str) -> ServerConfig:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, environ=environ).config


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", ["container", "host"])
def test_it_loads_with_its_secrets(case: str, place: Any, tmp_path: Path) -> None:
    facts = CASES[case]()
    deployed = deployed_config(facts, place)
    config = reload(deployed.text(), tmp_path, **{secret.name: "user:value" for secret in deployed.secrets})
    assert [model.name for model in config.models] == [model.name for model in facts.config.models]
    assert [key.get_secret_value() for key in config.api.api_keys] == ["user:value"]
    assert config.api.host == ("0.0.0.0" if place == "container" else "127.0.0.1")
    assert "not-in-any-file" not in deployed.text()


@pytest.mark.parametrize("case", CASES)
def test_with_an_empty_secret_nothing_starts(case: str, tmp_path: Path) -> None:
    deployed = deployed_config(CASES[case](), "container")
    with pytest.raises(ConfigError):
        reload(deployed.text(), tmp_path, **{secret.name: "" for secret in deployed.secrets})
    with pytest.raises(ConfigError, match="LLM_INFERENCE_API_KEYS_1 is not set"):
        reload(deployed.text(), tmp_path)


def test_an_empty_secret_of_the_key_store_opens_nothing(tmp_path: Path) -> None:
    """The address stays: a store without its password fails to open, and no keys would mean no lock."""
    config = ServerConfig(api=ApiConfig(key_store="postgresql://llm:secret@db/llm"))
    deployed = deployed_config(facts_of(config, CPU_NEEDS), "container")
    assert [secret.name for secret in deployed.secrets] == ["LLM_INFERENCE_KEY_STORE"]
    assert reload(deployed.text(), tmp_path, LLM_INFERENCE_KEY_STORE="").api.key_store == "postgresql://@db/llm"
    assert reload(deployed.text(), tmp_path, LLM_INFERENCE_KEY_STORE="a:b").api.key_store == "postgresql://a:b@db/llm"


def test_every_section_that_was_said_is_deployed(tmp_path: Path) -> None:
    """Also those that come to be: each is said with its own defaults."""
    names = set(ServerConfig.model_fields) - {"api", "models"}
    said = {name: getattr(ServerConfig(), name).model_dump(mode="json") for name in names}
    said["admission"]["max_queue_requests"] = 7
    config = ServerConfig.model_validate({**said, "models": ({"kv_cache_memory": 2**30},)})
    loaded = reload(deployed_config(facts_of(config, CPU_NEEDS), "container").text(), tmp_path)
    for name in names:
        assert getattr(loaded, name) == getattr(config, name), name
        assert getattr(loaded, name).model_fields_set == getattr(config, name).model_fields_set, name
    assert loaded.admission.max_queue_requests == 7


def test_secrets_in_every_place(tmp_path: Path) -> None:
    model = ModelConfig(
        name="m",
        model="m",
        engine="vllm",
        url="http://u:s3cret@h1:1/v1,https://v:s3cret@h2",
        engine_args={"hf_token": "s3cret", "env": {"API_KEY": "s3cret", "A": "b"}, "max_tokens": 3, "list": [{"a": 1}]},
    )
    keyed = ModelConfig(name="n", model="n", engine="vllm", url="http://h3", api_key=SecretStr("s3cret"))
    keys = ({"name": "ci", "key": SecretStr("s3cret")}, {"name": "hashed", "key_hash": "0" * 64})
    api = ApiConfig.model_validate({"keys": keys, "limits_store": "redis://:s3cret@r/0"})
    config = ServerConfig(api=api, models=(model, keyed))
    deployed = deployed_config(facts_of(config, REMOTE_NEEDS, REMOTE_NEEDS), "container")
    assert "s3cret" not in deployed.text()
    assert [secret.name for secret in deployed.secrets] == [
        "LLM_INFERENCE_KEYS_1_KEY",
        "LLM_INFERENCE_LIMITS_STORE",
        "LLM_INFERENCE_MODELS_1_URL",
        "LLM_INFERENCE_MODELS_1_URL_2",
        "LLM_INFERENCE_MODELS_1_ENGINE_ARGS_HF_TOKEN",
        "LLM_INFERENCE_MODELS_1_ENGINE_ARGS_ENV_API_KEY",
        "LLM_INFERENCE_MODELS_2_API_KEY",
    ]
    config = reload(deployed.text(), tmp_path, **{secret.name: "x:y" for secret in deployed.secrets})
    assert config.models[0].url == "http://x:y@h1:1/v1,https://x:y@h2"
    assert config.models[0].engine_args["max_tokens"] == 3
    assert [key.name for key in config.api.keys] == ["ci", "hashed"]


def test_a_secret_behind_the_question_mark_is_refused() -> None:
    config = ServerConfig(api=ApiConfig(ledger="postgresql://db/llm?user=a&password=s3cret"))
    with pytest.raises(ConfigError, match=r"api\.ledger: the address holds a secret behind its"):
        deployed_config(facts_of(config, CPU_NEEDS), "container")


def test_what_is_not_said_is_not_written() -> None:
    deployed = deployed_config(facts_of(ServerConfig(), CPU_NEEDS), "container")
    assert deployed.data["api"] == {"host": "0.0.0.0", "port": 8000, "log_format": "json"}
    assert set(deployed.data["models"][0]) == {
        "name", "model", "engine", "device", "kv_cache_memory", "generation",
    }  # fmt: skip


def test_the_cache_is_pinned_with_its_reason() -> None:
    text = deployed_config(facts_of(ServerConfig(), CPU_NEEDS), "container").text()
    assert f"kv_cache_memory: {CPU_NEEDS.kv_bytes}  # pinned: the memory limit was computed with it" in text


def test_paths_are_those_of_the_place() -> None:
    need = dataclasses.replace(CPU_NEEDS, local_path="/srv/models/m", download_bytes=0, chat_template="{{ x }}\n")
    facts = facts_of(ServerConfig(models=(ModelConfig(model="/srv/models/m", chat_template="t.jinja"),)), need)
    assert deployed_config(facts, "container").data["models"][0]["model"] == "/models/0/m"
    assert deployed_config(facts, "host").data["models"][0]["model"] == "/srv/models/m"
    assert deployed_config(facts, "host").data["models"][0]["chat_template"] == "{{ x }}\n"


def test_a_host_keeps_its_socket() -> None:
    facts = facts_of(ServerConfig(api=ApiConfig(uds="/run/llm/s.sock")), CPU_NEEDS)
    assert deployed_config(facts, "host").data["api"] == {"uds": "/run/llm/s.sock", "log_format": "json"}


#: The loader takes no other ones.
sayable = texts.filter(lambda text: text != "" and "\0" not in text)


@given(sayable, st.floats(0, 10), sayable)
@settings(deadline=None)
def test_hostile_texts_come_back_as_they_were(name: str, temperature: float, alias: str) -> None:
    import tempfile

    if name == alias:
        return
    model = ModelConfig.model_validate(
        {
            "name": name,
            "aliases": [alias],
            "model": "m",
            "engine": "fake",
            "engine_args": {"x": [name, {"y": alias}]},
            "generation": {"temperature": temperature},
            "warmup": False,
        }
    )
    deployed = deployed_config(facts_of(ServerConfig(models=(model,)), FAKE_NEEDS), "container")
    with tempfile.TemporaryDirectory() as folder:
        again = reload(deployed.text(), Path(folder)).models[0]
    assert (again.name, again.aliases, again.warmup) == (name, (alias,), ())
    assert again.engine_args == {"x": [name, {"y": alias}]}
    assert again.generation.temperature == temperature


def test_its_text_is_its_data() -> None:
    for make in CASES.values():
        deployed = deployed_config(make(), "container")
        assert yaml.safe_load(deployed.text()) == deployed.data
