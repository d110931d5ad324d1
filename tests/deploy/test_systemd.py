"""The unit, by systemd's own check and by what it must say."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import compute_facts
from llm_inference.deploy.systemd import PROGRAM, render_systemd
from llm_inference.errors import ConfigError
from tests.deploy.cases import CASES, CPU_NEEDS, FAKE_NEEDS, MIB, cpu
from tests.deploy.test_quoting import HOSTILE
from tests.deploy.tools import tool


def settings(unit: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit, flags=re.MULTILINE))


@pytest.mark.parametrize("case", CASES)
def test_systemd_accepts_it(case: str, written: Any) -> None:
    folder = written(render_systemd(CASES[case]()))
    unit = folder / "llm-inference.service"
    # The program is not installed where the unit says; everything else is as it is.
    unit.write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "llm-inference.service" in line]
    assert complaints == []
    assert done.returncode == 0


def test_its_numbers() -> None:
    facts = cpu()
    found = settings(render_systemd(facts)["llm-inference.service"])
    assert int(found["TimeoutStopSec"]) > facts.config.api.shutdown_grace_s + 2
    assert found["MemoryMax"] == f"{facts.memory_bytes // MIB}M"
    assert found["CPUAffinity"] == f"0-{facts.cpus - 1}"
    assert found["RestartPreventExitStatus"] == str(ConfigError.exit_code)
    assert found["KillMode"] == "mixed"


def test_it_is_hardened() -> None:
    found = settings(render_systemd(cpu())["llm-inference.service"])
    for name in ("DynamicUser", "ProtectHome", "PrivateTmp", "NoNewPrivileges", "PrivateDevices", "RestrictSUIDSGID"):
        assert found[name] == "yes"
    assert found["ProtectSystem"] == "strict"
    assert found["CapabilityBoundingSet"] == ""
    gpu = settings(render_systemd(CASES["vllm"]())["llm-inference.service"])
    assert "PrivateDevices" not in gpu
    assert gpu["DevicePolicy"] == "closed"


def test_a_model_that_the_unit_hides_is_refused() -> None:
    need = dataclasses.replace(CPU_NEEDS, local_path="/home/someone/model")
    facts = compute_facts(ServerConfig(models=(ModelConfig(model="/home/someone/model"),)), [need], Choices())
    with pytest.raises(ConfigError, match="the unit runs without home directories"):
        render_systemd(facts)


@pytest.mark.parametrize("name", [text for text in HOSTILE if text])
def test_hostile_names_add_no_setting(name: str) -> None:
    config = ServerConfig(models=(ModelConfig(name=name, model="m", engine="fake"),))
    unit = render_systemd(compute_facts(config, [FAKE_NEEDS], Choices()))["llm-inference.service"]
    plain = ServerConfig(models=(ModelConfig(name="x", model="m", engine="fake"),))
    expected = render_systemd(compute_facts(plain, [FAKE_NEEDS], Choices()))["llm-inference.service"]
    changed = [line for line in unit.splitlines() if line not in expected.splitlines()]
    assert all(line.startswith("Description=llm-inference:") for line in changed)
    assert len(unit.splitlines()) == len(expected.splitlines())
    assert not re.search(r"(?<!%)(%%)*%(?!%)", changed[0]) if changed else True
