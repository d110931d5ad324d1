"""compose.yaml against the Compose specification, and what it must say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.deploy.choices import Choices
from llm_inference.deploy.compose import render_compose
from tests.deploy.cases import CASES, MIB, cpu, gateway, vllm
from tests.deploy.tools import run, tool


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_the_specification_says(case: str, written: Any) -> None:
    file = written(render_compose(CASES[case]())) / "compose.yaml"
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file))


def test_the_specification_is_really_asked(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services: {a: {imge: x}}\n")
    with pytest.raises(AssertionError, match="imge"):
        run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(file))


def services(facts: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(render_compose(facts)["compose.yaml"])["services"]
    return found


def test_profiles() -> None:
    found = services(cpu())
    assert {name: service["profiles"] for name, service in found.items()} == {
        "server-cpu": ["cpu"],
        "server-gpu": ["gpu"],
        "redis": ["stores"],
        "postgres": ["stores"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }
    assert "server-cpu" not in services(vllm())
    assert "server-gpu" not in services(gateway())


def test_the_server_is_held_to_its_numbers() -> None:
    facts = cpu()
    server = services(facts)["server-cpu"]
    assert server["mem_limit"] == facts.memory_bytes
    assert server["mem_limit"] % MIB == 0
    assert server["cpus"] == facts.cpus
    assert server["stop_grace_period"] == f"{facts.times.grace_s}s"
    assert server["healthcheck"]["start_period"] == f"{facts.times.startup_s}s"
    assert server["ports"] == ["127.0.0.1:8000:8000"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["init"] is True


def test_a_gpu_is_reserved() -> None:
    devices = services(vllm())["server-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]


def test_every_mounted_file_is_rendered() -> None:
    files = render_compose(cpu())
    for service in yaml.safe_load(files["compose.yaml"])["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            if source.startswith("./"):
                path = source.removeprefix("./")
                assert any(name == path or name.startswith(path + "/") for name in files), source
        for file in service.get("env_file", []):
            assert f"{file}.example" in files
        if "build" in service:
            assert service["build"]["dockerfile"] in files


def test_prometheus_asks_the_server() -> None:
    scrape = yaml.safe_load(render_compose(cpu())["monitoring/prometheus.yaml"])
    assert scrape["scrape_configs"][0]["static_configs"] == [{"targets": ["llm-inference:8000"]}]


def test_no_password_has_a_value() -> None:
    lines = render_compose(cpu())["passwords.env.example"].splitlines()
    assert [line for line in lines if "=" in line and not line.startswith("#")] == [
        "POSTGRES_PASSWORD=",
        "GF_SECURITY_ADMIN_PASSWORD=",
    ]


def test_another_name_is_used() -> None:
    text = render_compose(cpu(Choices(name="llm-2", image="registry.example.org/llm:9")))["compose.yaml"]
    assert yaml.safe_load(text)["name"] == "llm-2"
    assert yaml.safe_load(text)["services"]["server-cpu"]["image"] == "registry.example.org/llm:9"


def test_the_dashboard_is_json() -> None:
    board = json.loads(render_compose(cpu())["monitoring/grafana/dashboards/overview.json"])
    assert len(board["panels"]) == 12
