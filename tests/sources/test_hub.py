from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import SourceError
from llm_inference.sources.hub import choose_files, fetch
from tests.model_spec.files import write_model
from tests.sources.hub_server import COMMIT, Hub, running_hub

BASE = ["config.json", "tokenizer.json", "generation_config.json", "merges.txt", "README.md", ".gitattributes"]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (["model.safetensors", "pytorch_model.bin", "m.gguf", "tf_model.h5"], ["model.safetensors"]),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"],
         ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]),
        (["weights.safetensors", "onnx/model.safetensors"], ["weights.safetensors"]),
        (["pytorch_model-00001-of-00001.bin", "training_args.bin", "m.gguf"], ["pytorch_model-00001-of-00001.bin"]),
    ],
)  # fmt: skip
def test_one_set_of_weights_is_chosen(weights: list[str], expected: list[str]) -> None:
    companions = ["config.json", "tokenizer.json", "generation_config.json", "merges.txt"]
    assert choose_files([*BASE, *weights], "o/n") == [*companions, *expected]


def test_gguf_only_repositories() -> None:
    assert choose_files([*BASE, "a.gguf"], "o/n") == ["a.gguf"]
    split = ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]
    assert choose_files(["README.md", *split], "o/n") == split
    assert choose_files(["a.gguf", *split], "o/n", file=split[0]) == split
    assert choose_files([*BASE, "model.safetensors", "q/a.gguf"], "o/n", file="q/a.gguf") == ["q/a.gguf"]
    with pytest.raises(SourceError, match=r"several GGUF files \(a\.gguf, b-00001-of-00002\.gguf\); .* o/n:a\.gguf"):
        choose_files(["a.gguf", *split], "o/n")
    with pytest.raises(SourceError, match=r"o/n holds no c\.gguf; its GGUF files are: a\.gguf"):
        choose_files(["a.gguf"], "o/n", file="c.gguf")
    with pytest.raises(SourceError, match="o/n holds no model"):
        choose_files(BASE, "o/n")


def test_code_comes_along_only_when_it_is_trusted() -> None:
    files = ["config.json", "modeling_x.py", "sub/other.py", "chat_template.jinja", "m.safetensors",
             "additional_chat_templates/tool_use.jinja"]  # fmt: skip
    without = choose_files(files, "o/n")
    assert not any(name.endswith(".py") for name in without)
    assert {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"} < set(without)
    assert set(choose_files(files, "o/n", trust_remote_code=True)) - set(without) == {"modeling_x.py"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def model_files(tmp_path: Path) -> dict[str, bytes]:
    directory = tmp_path / "original"
    directory.mkdir()
    write_model(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def get(hub: Hub, tmp_path: Path, repo: str = "org/tiny", **options: Any) -> Path:
    return fetch(repo, progress=False, endpoint=hub.url, hub_cache=tmp_path / "hub", **options)


def test_a_repository_arrives(hub: Hub, tmp_path: Path, model_files: dict[str, bytes]) -> None:
    hub.repositories["org/tiny"] = model_files | {"README.md": b"x", "pytorch_model.bin": b"x", "code.py": b"x"}
    directory = get(hub, tmp_path)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == model_files
    assert hub.downloaded() == set(model_files)
    assert get(hub, tmp_path, revision=COMMIT) == directory


def test_one_gguf_of_many(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"}
    directory = get(hub, tmp_path, file="b.gguf")
    assert [path.name for path in directory.iterdir()] == ["b.gguf"]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("absent", "the hub knows no model org/tiny, or it is private; .*HF_TOKEN"),
        ("gated", "org/tiny is gated: accept its terms .*HF_TOKEN"),
        ("revision", "org/tiny has no revision 'v9'"),
        ("broken", "the hub failed on org/tiny: .*try again later"),
        ("name", "'org/tiny--x' is no hub id"),
    ],
)
def test_refusals_come_with_advice(
    hub: Hub, tmp_path: Path, model_files: dict[str, bytes], trouble: str, message: str
) -> None:
    if trouble != "absent":
        hub.repositories["org/tiny"] = model_files
    hub.gated = {"org/tiny"} if trouble == "gated" else set()
    hub.broken = trouble == "broken"
    revision = "v9" if trouble == "revision" else None
    with pytest.raises(SourceError, match=message) as caught:
        get(hub, tmp_path, "org/tiny--x" if trouble == "name" else "org/tiny", revision=revision)
    assert "\n" not in str(caught.value)


def test_without_a_connection_the_local_copy_serves(tmp_path: Path, model_files: dict[str, bytes]) -> None:
    with running_hub() as hub:
        hub.repositories["org/tiny"] = model_files
        directory = get(hub, tmp_path)
    assert get(hub, tmp_path) == directory
    with pytest.raises(SourceError, match=r"the hub cannot be reached for org/other .*HF_ENDPOINT.*HF_HUB_OFFLINE"):
        get(hub, tmp_path, "org/other")


def resolve_in_a_process(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The library reads its settings at import, so only a process of its own shows that they are honoured."""
    code = "from llm_inference.sources.resolve import resolve; print(resolve('org/tiny', progress=False).directory)"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "home"), "LLM_INFERENCE_CACHE": str(tmp_path / "own"), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_mirror_token_and_offline_mode_are_honoured(hub: Hub, tmp_path: Path, model_files: dict[str, bytes]) -> None:
    hub.repositories["org/tiny"] = model_files
    online = resolve_in_a_process(tmp_path, HF_ENDPOINT=hub.url, HF_TOKEN="hf_secret")
    assert online.returncode == 0, online.stderr
    assert Path(online.stdout.strip()).is_relative_to(tmp_path / "home")
    assert "Bearer hf_secret" in hub.tokens
    asked = len(hub.requests)
    offline = resolve_in_a_process(tmp_path, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert offline.stdout == online.stdout
    assert len(hub.requests) == asked
    nothing = resolve_in_a_process(tmp_path / "fresh", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert "is not in the local cache" in nothing.stderr
    assert len(hub.requests) == asked
