"""`llm-inference deploy`: files, refusals, the table of reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_inference.cli.deploy import _TARGETS
from llm_inference.cli.main import main
from llm_inference.deploy.render import TARGETS

CONFIG = 'api: {api_keys: ["${API_KEY}"]}\nname: echo\nmodel: echo\nengine: fake\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("API_KEY", "the-secret-of-the-test")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return str(file)


def test_targets_are_those_of_the_renderers() -> None:
    assert tuple(TARGETS) == _TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_files_without_the_key(target: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--hostname", "llm.example.org", "-o", str(tmp_path / "out")]
    assert main(["deploy", target, config, *flags]) == 0
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert not any("the-secret-of-the-test" in path.read_text() for path in files)
    assert f"{len(files)} of {len(files)} files written" in capsys.readouterr().err
    assert main(["deploy", target, config, *flags]) == 0
    assert f"0 of {len(files)} files written" in capsys.readouterr().err


def test_changes_are_not_overwritten_unasked(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    main(["deploy", "systemd", config, "-o", str(out)])
    (out / "config.yaml").write_text("mine: true\n")
    assert main(["deploy", "systemd", config, "-o", str(out)]) == 2
    assert "config.yaml: there already, and different; nothing was written" in capsys.readouterr().err
    assert main(["deploy", "systemd", config, "-o", str(out), "--force"]) == 0
    assert "mine" not in (out / "config.yaml").read_text()


def test_dry_run_writes_nothing(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "systemd", config, "--dry-run", "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "==> llm-inference.service <==\n" in printed
    assert "TimeoutStopSec=45" in printed
    assert not (tmp_path / "out").exists()


def test_explain(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "docker", config, "--explain", "--cpus", "3", "--load-time-s", "4.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 140 for line in lines)
    found = {line.split("  ")[0]: line for line in lines}
    assert "3  --cpus" in found["CPUs"]
    assert "measured 4.5 s" in found["load time"]
    assert "pre-stop 5 + drain 30 + 15" in found["grace"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "say where to"),
        (["--dry-run", "--memory", "lots"], "--memory: must be a number of bytes or a size"),
        (["--dry-run", "--memory", "1MiB"], "--memory is 1 MiB, but the service needs"),
        (["--dry-run", "--name", "A B"], "--name: 'A B' is no name"),
        (["--dry-run", "--model-info", "other=x"], "--model-info: 'other=x' is no NAME=DIR; the models here are echo"),
        (["--dry-run", "--replicas", "0"], "--replicas: must be above 0"),
    ],
)
def test_refusals(flags: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "docker", config, *flags]) == 2
    assert message in capsys.readouterr().err


def test_many_replicas_raise_the_upper_bound(config: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["deploy", "kubernetes", config, "--replicas", "9", "-o", str(out)]) == 0
    hpa = yaml.safe_load((out / "components" / "hpa" / "hpa.yaml").read_text())
    assert (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"]) == (9, 9)


def test_an_open_service_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "open.yaml"
    file.write_text("{name: echo, model: echo, engine: fake}\n")
    assert main(["deploy", "docker", str(file), "-o", str(tmp_path / "out")]) == 0
    assert "without keys everybody who reaches the service may use it" in capsys.readouterr().err
    assert main(["deploy", "nginx", str(file), "--hostname", "llm.example.org", "--dry-run"]) == 2
    assert "everybody who reaches it could use the service" in capsys.readouterr().err
