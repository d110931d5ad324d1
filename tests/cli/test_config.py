from __future__ import annotations

import json
from pathlib import Path

from llm_inference.config.json_schema import json_schema
from tests.cli.conftest import Invoke


def test_it_prints_values_and_where_they_came_from(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("model: m\nmax_num_seqs: 4\n")
    code, out, err = invoke("config", "--config", str(file), "--port", "0", "--api-key", "hush")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "port: 0 # flag --port" in lines
    assert f"max_num_seqs: 4 # file {file}:2" in lines
    assert "workers: 1 # default" in lines
    assert 'api_keys: ["**********"] # flag --api-key' in lines
    assert "hush" not in out


def test_it_prints_the_schema(invoke: Invoke) -> None:
    code, out, _ = invoke("config", "--schema")
    assert code == 0
    assert json.loads(out) == json_schema()
