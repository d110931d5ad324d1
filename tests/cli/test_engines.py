from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_inference.adapters import installs, recipes
from llm_inference.adapters.recipes import Build, Recipe
from llm_inference.engine.choose import Abilities
from tests.adapters.fake_pip import write_fake_python
from tests.cli.conftest import Invoke

SMALL = Recipe(
    name="small",
    what="a small engine",
    kind="server",
    distribution="small-engine",
    program="no-such-program-anywhere",
    cpu=Build(
        steps=(("torch==2.13.0",), ("small-engine==1.5",)), download_bytes=3 * 2**20, disk_bytes=2 * 2**20, proven=False
    ),
    abilities=Abilities(
        engine="small",
        formats=frozenset(("gguf",)),
        online=frozenset(("int4",)),
        checkpoints=frozenset(("awq",)),
        devices=frozenset(("cpu",)),
    ),
)
LARGE = dataclasses.replace(
    SMALL,
    name="large",
    cpu=None,
    cuda=SMALL.cpu,
    abilities=dataclasses.replace(SMALL.abilities, engine="large", devices=frozenset(("cuda",))),
)
TABLE: Mapping[str, Recipe] = {"small": SMALL, "large": LARGE}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, two engines, no GPU, and a pip that installs nothing."""
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(recipes, "RECIPES", TABLE)
    monkeypatch.setattr(installs, "find_python", lambda recipe: write_fake_python(tmp_path))
    monkeypatch.setattr("llm_inference.telemetry.devices.has_nvidia_gpu", lambda: False)


def test_install_list_remove(invoke: Invoke, tmp_path: Path) -> None:
    code, out, err = invoke("engines", "install", "small")
    assert code == 0
    assert out.startswith("small 1.5 is installed: ")
    assert err.splitlines()[0].startswith("small: a small engine, about 3 MiB to download and 2 MiB of disk, into ")
    assert "were not run by the authors" in err
    assert "[3/3] python -m pip install small-engine==1.5" in err
    assert "Collecting" not in err, "pip's own lines are for terminals"

    code, out, err = invoke("engines", "install", "small")
    assert (code, err) == (0, "")
    where = tmp_path / "cache" / "engines" / "small" / "venv"
    assert out == f"small 1.5 is installed ({where}); --reinstall makes it anew\n"
    assert invoke("engines", "install", "small", "--reinstall")[0] == 0

    head, small, large, empty, *runners = invoke("engines", "list")[1].splitlines()
    assert (empty, runners[0]) == ("", "runners of the native engine on this CPU:")
    assert [line.split()[0] for line in runners[1:]] == ["compiled", "openvino", "torch"]
    assert head.split() == ["ENGINE", "VERSION", "READS", "QUANTIZED", "DEVICES", "STATE"]
    assert " ".join(small.split()) == f"small 1.5 GGUF awq, makes int4 cpu installed: {where}"
    assert " ".join(large.split()) == "large - GGUF awq, makes int4 cuda needs an NVIDIA GPU"

    assert invoke("engines", "remove", "small") == (0, "small is removed\n", "")
    code, _, err = invoke("engines", "remove", "small")
    assert code == 2
    assert err.startswith("error: small is not installed in ")


def test_the_list_as_json(invoke: Invoke) -> None:
    printed = json.loads(invoke("engines", "list", "--json")[1])
    small, large = printed["engines"]
    assert printed["runners"]["compiled"].startswith("float32, int8 and int4; ")
    assert not small["installed"]
    assert small["install"] == "llm-inference engines install small"
    assert (small["formats"], small["quantizations"], small["devices"]) == (["gguf"], ["int4"], ["cpu"])
    assert (large["runs_here"], large["install"]) == (False, None)


def test_a_dry_run_prints_the_commands_and_does_nothing(invoke: Invoke, tmp_path: Path) -> None:
    code, out, err = invoke("engines", "install", "small", "--dry-run")
    assert (code, err) == (0, "")
    target = tmp_path / "cache" / "engines" / "small" / "venv-1"
    assert out.splitlines()[0] == f"{tmp_path / 'fake-python'} -m venv {target}"
    assert out.splitlines()[-1].endswith(" small-engine==1.5")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("install", "smal"), "'smal' is no engine that can be installed from here; these are: small, large"),
        (("install", "large"), "large needs an NVIDIA GPU, and this machine shows none"),
        (("remove", "other"), "'other' is no engine"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str, invoke: Invoke) -> None:
    code, out, err = invoke("engines", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_failed_install_ends_with_2(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(SMALL, cpu=Build(steps=(("broken==1",),), download_bytes=1, disk_bytes=1))
    monkeypatch.setattr(recipes, "RECIPES", {"small": broken})
    code, _, err = invoke("engines", "install", "small")
    assert code == 2
    assert "error: small could not be installed" in err
    assert "ERROR: it broke" in err


def test_engines_are_judged_by_a_model(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_inference.serve import auto
    from tests.serve.test_auto import write_model

    monkeypatch.setattr(auto, "RECIPES", TABLE)
    monkeypatch.setattr(auto, "PREFERENCE", {"cpu": (), "cuda": ()})
    monkeypatch.setattr(auto, "has_nvidia_gpu", lambda: False)
    directory = write_model(tmp_path / "m", model_type="llama")
    code, out, err = invoke("engines", "list", str(directory))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].endswith("does not read safetensors")
    assert lines[2].endswith("does not run on cpu")
    assert lines[-1] == "engine: native, because it can serve a llama model on cpu"
    unknown = write_model(tmp_path / "u", model_type="made-up")
    assert "no engine that is known here" in json.loads(invoke("engines", "list", str(unknown), "--json")[1])["auto"]
