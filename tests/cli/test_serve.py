from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from llm_inference.cli import serve as serve_command
from llm_inference.config.schema import ServerConfig
from llm_inference.errors import ConfigError
from tests.cli.conftest import Invoke
from tests.cli.fakes import FakeServe


@pytest.fixture
def served(serve: FakeServe, monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    configs: list[ServerConfig] = []

    def run(config: ServerConfig, read: object) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr(sys.modules["llm_inference.serve"], "run", run, raising=False)
    return configs


def test_no_arguments_serve_the_default(served: list[ServerConfig], invoke: Invoke) -> None:
    assert invoke("serve") == (0, "", "")
    assert served == [ServerConfig()]


def test_flags_reach_the_config(served: list[ServerConfig], invoke: Invoke) -> None:
    flags = (
        "serve org/m --host 0.0.0.0 --port 0 --api-key a --api-key b --name n --engine native --precision int8 "
        "--max-model-len 64 --max-num-seqs 4 --max-num-batched-tokens 128 --no-prefix-caching --workers 2 "
        "--log-level debug --log-format json --kv-cache-memory 1GiB --cors-origin * --log-prompts --no-warmup"
    )
    assert invoke(*flags.split()) == (0, "", "")
    (config,) = served
    (model,) = config.models
    assert [key.get_secret_value() for key in config.api.api_keys] == ["a", "b"]
    assert (config.api.host, config.api.port, config.api.workers, config.api.cors_origins) == ("0.0.0.0", 0, 2, ("*",))
    assert (config.api.log_level, config.api.log_format, config.api.log_prompts) == ("debug", "json", True)
    assert (model.model, model.name, model.engine, model.precision) == ("org/m", "n", "native", "int8")
    assert (model.max_model_len, model.max_num_seqs, model.max_num_batched_tokens) == (64, 4, 128)
    assert (model.enable_prefix_caching, model.kv_cache_memory, model.warmup) == (False, 2**30, ())


def test_flags_go_before_the_file(served: list[ServerConfig], invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("api: {port: 1, workers: 3}\nmodel: m\n")
    assert invoke("serve", "--config", str(file), "--port", "2")[0] == 0
    assert (served[0].api.port, served[0].api.workers, served[0].models[0].model) == (2, 3, "m")


def test_a_refusal_comes_before_anything_starts(served: list[ServerConfig], invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("modle: m\n")
    code, out, err = invoke("serve", "--config", str(file))
    assert (code, out) == (2, "")
    assert err == f'error: {file}:1: modle: unknown key; did you mean "model"?\n'
    assert served == []


def test_contradicting_flags_are_refused(served: list[ServerConfig], invoke: Invoke) -> None:
    code, _, err = invoke("serve", "--precision", "fp16", "--quantization", "awq")
    assert code == 2
    assert "`precision: float16` and `quantization: awq` contradict each other" in err
    assert served == []


def test_a_reload_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    """What `--config <(…)` gives can be read once; opened again it would hold the reload, and the server's end."""
    path = tmp_path / "c.yaml"
    path.write_text("engine: fake\nmodel: m\n")
    args = argparse.ArgumentParser()
    serve_command.add_arguments(args)
    given = args.parse_args(["--config", str(path)])
    assert serve_command.read_again(given).models[0].engine == "fake"
    path.unlink()
    with pytest.raises(ConfigError, match="there is no config file"):
        serve_command.read_again(given)
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="no file that can be read again"):
        serve_command.read_again(given)
