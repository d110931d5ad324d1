from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llm_inference.engine.choose import Abilities, Candidate, Needs, choose, judge
from llm_inference.errors import UnsupportedModelError

DIRECTORY, GGUF = frozenset(("directory",)), frozenset(("gguf",))
CPU, BOTH = frozenset(("cpu",)), frozenset(("cpu", "cuda"))
NATIVE = Candidate(
    abilities=Abilities(
        engine="native",
        formats=DIRECTORY,
        devices=BOTH,
        model_types=frozenset(("llama",)),
        encoders=frozenset(("bert",)),
        online=frozenset(("int8",)),
    ),
    installed="built in",
)
BIG = Candidate(
    abilities=Abilities(
        engine="big", formats=DIRECTORY, devices=BOTH, checkpoints=frozenset(("awq", "fp8")), tensor_parallel=True
    ),
    installed="installed 1.0",
    install="install big",
)
FILES = Candidate(
    abilities=Abilities(engine="files", formats=GGUF, devices=CPU, reads_any_gguf=True),
    installed="on PATH",
    install="install files",
)
ALL = (NATIVE, BIG, FILES)
LLAMA = Needs(model_type="llama", formats=DIRECTORY, device="cpu")


def absent(candidate: Candidate) -> Candidate:
    return dataclasses.replace(candidate, installed=None)


@pytest.mark.parametrize(
    ("changes", "engine", "reason"),
    [
        ({}, "native", "it can serve a llama model on cpu"),
        ({"device": "cuda"}, "native", "it can serve a llama model on cuda"),
        ({"formats": DIRECTORY | GGUF}, "native", "it can serve a llama model on cpu"),
        ({"quantization": "int8"}, "native", "it can serve a llama model in int8 on cpu"),
        ({"model_type": "bert", "encoder": True}, "native", "it can serve a bert model on cpu"),
        ({"model_type": "gemma"}, "big", "native does not know models of type 'gemma'"),
        ({"checkpoint": "awq"}, "big", "native cannot load checkpoints quantized with awq"),
        ({"checkpoint": "awq", "quantization": "awq"}, "big", "in awq on cpu and is installed"),
        ({"tensor_parallel_size": 2}, "big", "native runs a model on one device"),
        (
            {"model_type": None, "formats": GGUF, "conversion_problem": "no such architecture"},
            "files",
            "native cannot read it: no such architecture",
        ),
    ],
)
def test_the_first_that_can(changes: dict[str, Any], engine: str, reason: str) -> None:
    choice = choose(dataclasses.replace(LLAMA, **changes), ALL)
    assert choice.engine == engine
    assert reason in choice.reason


def test_the_sentence_names_the_others_and_why_not() -> None:
    files = absent(dataclasses.replace(FILES, abilities=dataclasses.replace(FILES.abilities, formats=GGUF | DIRECTORY)))
    only_cuda = dataclasses.replace(
        BIG, abilities=dataclasses.replace(BIG.abilities, engine="cards", devices=frozenset(("cuda",)))
    )
    assert str(choose(LLAMA, (NATIVE, BIG, files, only_cuda))) == (
        "engine: native, because it can serve a llama model on cpu; also possible: big (installed 1.0); "
        "possible once installed: files (not installed: install files); not: cards (does not run on cpu)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "awq"}, r"native cannot load checkpoints quantized with awq.*big \(`install big`\)"),
        ({"model_type": "gemma"}, r"does not know models of type 'gemma'.*big \(`install big`\)"),
        ({"quantization": "fp8"}, r"no engine that is known here.*native: does not know.*big: loads fp8 checkpoints"),
        ({"checkpoint": "awq", "quantization": "int8"}, "big: cannot make int8 of a checkpoint quantized with awq"),
        ({"model_type": "t5-encoder", "encoder": True}, "makes no vectors with models of type 't5-encoder'"),
        ({"formats": GGUF, "model_type": "llama"}, r"native does not read GGUF.*files \(`install files`\)"),
    ],
)
def test_none_that_can_names_those_that_could(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        choose(dataclasses.replace(LLAMA, **changes), (NATIVE, absent(BIG), absent(FILES)))


def test_what_a_library_has_exported() -> None:
    exported = dataclasses.replace(LLAMA, model_type=None, formats=frozenset(("onnx",)))
    library = dataclasses.replace(
        FILES,
        abilities=Abilities(engine="l", formats=GGUF | {"onnx"}, devices=CPU, model_types=frozenset(("llama",))),
    )
    choice = choose(exported, (*ALL, library))
    assert choice.engine == "l"
    assert "native does not read ONNX" in choice.reason


def test_nothing_to_choose_from() -> None:
    with pytest.raises(UnsupportedModelError, match="no engine that is known"):
        choose(LLAMA, ())
    with pytest.raises(UnsupportedModelError, match="none is installed"):
        choose(LLAMA, (absent(BIG),))


def test_verdicts_keep_the_order() -> None:
    assert [str(verdict) for verdict in judge(LLAMA, ALL)] == [
        "native (built in)", "big (installed 1.0)", "files (does not read safetensors)",
    ]  # fmt: skip
