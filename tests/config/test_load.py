from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_inference.config.load import LoadedConfig, Override, load_config
from llm_inference.config.schema import ServerConfig
from llm_inference.errors import ConfigError

Load = Callable[..., LoadedConfig]
Refuse = Callable[..., str]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def run(text: str, environ: Mapping[str, str] | None = None, flags: Sequence[Override] = ()) -> LoadedConfig:
        Path("f.yaml").write_text(text)
        return load_config("f.yaml", flags, environ or {})

    return run


@pytest.fixture
def refuse(load: Load) -> Refuse:
    def run(*args: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            load(*args)
        return caught.value.message

    return run


def test_no_file_is_the_default() -> None:
    loaded = load_config()
    assert loaded.config == ServerConfig()
    assert set(loaded.provenance.values()) == {"default", "default (from model)", "default (for the default model)"}


def test_values_of_the_file_are_honoured(load: Load) -> None:
    """Case O5."""
    loaded = load(
        "api:\n  port: 0\n  cors_origins: ['*']\n  log_prompts: true\n"
        "model: m\nenable_prefix_caching: false\naliases: [a, b]\nwarmup: false\n"
    )
    (model,) = loaded.config.models
    assert loaded.config.api.port == 0
    assert loaded.config.api.cors_origins == ("*",)
    assert loaded.config.api.log_prompts is True
    assert (model.enable_prefix_caching, model.aliases, model.warmup) == (False, ("a", "b"), ())


def test_the_short_form_means_the_same(load: Load) -> None:
    short = load("api: {port: 1}\nmodel: m\nmax_model_len: 8\n")
    long = load("api: {port: 1}\nmodels:\n  - model: m\n    max_model_len: 8\n")
    assert short.config == long.config
    assert set(short.provenance) == set(long.provenance)
    assert short.provenance["models[0].max_model_len"] == "file f.yaml:3"
    assert long.provenance["models[0].max_model_len"] == "file f.yaml:4"


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "api:\n", "api:\ngeneration:\nengine_args:\n"])
def test_an_empty_file_is_the_default(load: Load, text: str) -> None:
    assert load(text).config == ServerConfig()


def test_schema_key_is_for_editors(load: Load) -> None:
    assert load('{"$schema": "./schema.json", "model": "m"}').config.models[0].model == "m"


def test_provenance_names_file_line_flag_and_variable(load: Load) -> None:
    loaded = load(
        "api:\n  host: ${HOST:-0.0.0.0}\n  api_keys: ['${KEY}']\nmodel: m\ngeneration:\n  top_k: 5\n"
        "engine_args:\n  deep: {x: 1}\n",
        {"KEY": "k"},
        [Override(("api", "port"), 0, "--port"), Override(("model", "precision"), "int8", "--precision")],
    )
    assert {key: value for key, value in loaded.provenance.items() if value != "default"} == {
        "api.host": "environment variable HOST via file f.yaml:2",
        "api.api_keys": "environment variable KEY via file f.yaml:3",
        "api.port": "flag --port",
        "models[0].name": "default (from model)",
        "models[0].model": "file f.yaml:4",
        "models[0].precision": "flag --precision",
        "models[0].generation.top_k": "file f.yaml:6",
        "models[0].engine_args.deep.x": "file f.yaml:8",
    }


def test_flags_go_before_the_file(load: Load) -> None:
    flags = [
        Override(("api", "port"), 0, "--port"),
        Override(("model", "model"), "other", "MODEL"),
        Override(("model", "enable_prefix_caching"), False, "--no-prefix-caching"),
    ]
    for text in ("api: {port: 1}\nmodel: m\n", "api: {port: 1}\nmodels: [{model: m}]\n"):
        config = load(text, {}, flags).config
        assert (config.api.port, config.models[0].model, config.models[0].enable_prefix_caching) == (0, "other", False)
    assert load_config(None, flags).config.models[0].name == "other"


def test_a_models_flag_needs_one_model(refuse: Refuse) -> None:
    flag = Override(("model", "precision"), "int8", "--precision")
    message = refuse("models: [{model: a}, {model: b}]", {}, [flag])
    assert message.startswith("--precision means one model, but f.yaml has 2 models")
    assert "f.yaml:1: api: must be a mapping" in refuse("api: 3", {}, [Override(("api", "port"), 1, "--port")])


def test_a_wrong_flag_is_named(refuse: Refuse) -> None:
    message = refuse("model: m", {}, [Override(("model", "precision"), "fp9", "--precision")])
    assert message.startswith("--precision: must be 'auto', 'float32'")


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("port: ${P}", {"P": "81"}, 81),
        ("port: '${P}'", {"P": "81"}, 81),
        ("port: ${P:-82}", {}, 82),
    ],
)
def test_variables_fill_numbers(load: Load, text: str, environ: dict[str, str], value: int) -> None:
    assert load(f"api:\n  {text}\n", environ).config.api.port == value


def test_variables_fill_text_that_looks_like_something_else(load: Load) -> None:
    config = load("api:\n  api_keys:\n  - ${K}\nmodel: ${M}\nname: '${M}'\n", {"K": "1234", "M": "true"}).config
    assert config.api.api_keys[0].get_secret_value() == "1234"
    assert (config.models[0].model, config.models[0].name) == ("true", "true")


def test_variables_fill_booleans_and_empty_ones_mean_nothing(load: Load) -> None:
    config = load("model: m\ncompile: '${C}'\ntokenizer: '${T:-}'\n", {"C": "true"}).config
    assert config.models[0].compile is True
    assert config.models[0].tokenizer is None


def test_the_environment_changes_nothing_by_itself(load: Load) -> None:
    environ = {"PORT": "1", "API_PORT": "1", "LLM_INFERENCE_PORT": "1", "api.port": "1"}
    assert load("model: m", environ).config.api.port == 8000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models:\n- model: m\n  max_model_len: '8'", "f.yaml:3: models[0].max_model_len: must be a whole number, "
         'not "8" (write it without quotes)'),
        ("model: m\nmax_model_len: true", "f.yaml:2: max_model_len: must be a whole number, not true"),
        ("enable_prefix_caching: yes", 'f.yaml:1: enable_prefix_caching: must be true or false, not "yes" '
         "(write true without quotes)"),
        ("model: 7", "f.yaml:1: model: must be text, not 7 (put it in quotes)"),
        ("max_num_seqs: 0", "f.yaml:1: max_num_seqs: must be greater than or equal to 1, not 0"),
        ("aliases: one", 'f.yaml:1: aliases: must be a list, not "one"'),
        ("model:", "f.yaml:1: model: must be text, not empty"),
        ("precision: int9", "f.yaml:1: precision: must be 'auto', 'float32', 'float16', 'bfloat16', 'int8' or 'int4', "
         'not "int9"; did you mean "int8"?'),
        ("api: []", "f.yaml:1: api: must be a mapping, not a list"),
        ("models: {}", "f.yaml:1: models: must be a list, not a mapping"),
        ("models: [m]", 'f.yaml:1: models[0]: must be a mapping, not "m"'),
        ("models: []", "f.yaml:1: models: must not be empty; without the key the default model is served"),
        ("kv_cache_memory: 2G", "f.yaml:1: kv_cache_memory: must be a number of bytes or a size with its unit, "
         'such as "2GiB" or "512MB"'),
        ("api:\n  api_prefix: v1", "f.yaml:2: api.api_prefix: must match ^(/[A-Za-z0-9._~-]+)*$, not \"v1\""),
        ("max_model_le: 8", 'f.yaml:1: max_model_le: unknown key; did you mean "max_model_len"?'),
        ("api:\n  prot: 8", 'f.yaml:2: api.prot: unknown key; did you mean "port"?'),
        ("models:\n- modle: m", 'f.yaml:2: models[0].modle: unknown key; did you mean "model"?'),
        ("generation:\n  temprature: 1", 'f.yaml:2: generation.temprature: unknown key; did you mean "temperature"?'),
        ("port: 80", "f.yaml:1: port: unknown key; it belongs under `api:`"),
        ("top_k: 80", "f.yaml:1: top_k: unknown key; it belongs under `generation:`"),
        ("api:\n  model: m", "f.yaml:2: api.model: unknown key; it belongs under a model"),
        ("max_seq_len: 8", "f.yaml:1: max_seq_len: this key is called max_model_len here"),
        ("max_tokens: 8", "f.yaml:1: max_tokens: this key is called max_model_len (prompt and answer together) or "
         "generation.max_tokens (the answer alone) here"),
        ("model_path: m", "f.yaml:1: model_path: this key is called model here"),
        ("tp: 2", "f.yaml:1: tp: this key is called tensor_parallel_size here"),
        ("gpu_memory: 1", "f.yaml:1: gpu_memory: this key is called gpu_memory_utilization here"),
        ("prefix_caching: true", "f.yaml:1: prefix_caching: this key is called enable_prefix_caching here"),
        ("batch_size: 8", "f.yaml:1: batch_size: this key is called max_batch_size here"),
        ("load_in_8bit: true", "f.yaml:1: load_in_8bit: this key is called `precision: int8` here"),
        ("server: {}", "f.yaml:1: server: this key is called api here"),
        ("api: {prefix: /v1}", "f.yaml:1: api.prefix: this key is called api_prefix here"),
        ("a: 1\na: 2", "f.yaml:2: a: duplicate key (first in line 1); keep one"),
        ("- m", "f.yaml: must be a mapping of keys such as `model:` and `api:`"),
        ("models: [{model: m}]\ndtype: fp16", "f.yaml:2: dtype: one model's key beside `models:`; "
         "move it into an entry of `models:`"),
        ("models:\n- model: m\n  precision: fp16\n  dtype: bf16", "f.yaml:2: models[0]: `precision: float16` and "
         "`dtype: bfloat16` contradict each other; keep one of the two"),
        ("api_key: x", "f.yaml: `api_key` is the key for `url`; the keys that clients must send are `api.api_keys`"),
    ],
)  # fmt: skip
def test_one_clear_message(refuse: Refuse, text: str, message: str) -> None:
    assert refuse(text) == message


def test_every_problem_is_told_in_the_files_order(refuse: Refuse) -> None:
    lines = refuse("max_num_seqs: 0\nfoo_bar: 1\napi:\n  port: x\n").splitlines()
    assert [line.split(" ")[0] for line in lines] == ["f.yaml:1:", "f.yaml:2:", "f.yaml:4:"]


def test_no_secret_is_shown(refuse: Refuse) -> None:
    message = refuse("api:\n  port: ${KEY}\n  api_keys: hush-too\n", {"KEY": "hush-hush"})
    assert "hush" not in message
    assert "(filled from the environment variable KEY)" in message


def test_a_missing_variable_is_an_error(refuse: Refuse) -> None:
    assert "api.port: the environment variable NOWHERE is not set" in refuse("api:\n  port: ${NOWHERE}\n")
