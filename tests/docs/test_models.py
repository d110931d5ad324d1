"""docs/models.md against the code: architectures, quantizations, limits, the default model."""

from __future__ import annotations

from llm_inference.config.schema import DEFAULT_MODEL, DEFAULT_MODEL_GENERATION, DEFAULT_MODEL_NAME
from llm_inference.native.budget import DEFAULT_CPU_KV_BYTES
from llm_inference.native.layers.rope import ROPE_TYPES
from llm_inference.native.models.registry import BUILT_IN
from llm_inference.native.quantization.registry import QUANTIZATIONS
from llm_inference.sources.gguf.config import ARCHITECTURES
from llm_inference.text.chat import MAX_TEMPLATE_CHARS, MAX_TEMPLATE_CPU_S
from tests.docs.blocks import REPOSITORY, coded, section, table

DOCUMENT = REPOSITORY / "docs" / "models.md"


def words(heading: str) -> str:
    return " ".join(section(DOCUMENT, heading).split())


def test_every_architecture_is_documented() -> None:
    documented = {coded(row[0])[0] for row in table(section(DOCUMENT, "Architectures"))}
    assert documented == set(BUILT_IN)


def test_gguf_architectures_and_rotary_scalings_are_documented() -> None:
    named = set(coded(section(DOCUMENT, "Architectures").rsplit("|", 1)[1]))
    assert named == {*ROPE_TYPES, *ARCHITECTURES}


def test_quantizations_are_documented() -> None:
    assert set(QUANTIZATIONS) <= set(coded(section(DOCUMENT, "Precision")))


def test_numbers_are_those_of_the_code() -> None:
    assert f"stops growing at {DEFAULT_CPU_KV_BYTES // 2**30} GiB" in words("Memory")
    assert f"at most {MAX_TEMPLATE_CPU_S:g} seconds of CPU" in words("Chat templates")
    assert f"{MAX_TEMPLATE_CHARS // 2**20} million characters" in words("Chat templates")


def test_the_default_model_is_the_one_that_is_served() -> None:
    text = words("The default model")
    package, version = DEFAULT_MODEL.removeprefix("pypi:").split("==")
    assert f"`{package}` {version}" in text
    assert DEFAULT_MODEL_NAME in text
    assert DEFAULT_MODEL_GENERATION == {"temperature": 0.0}
    assert "default temperature here is 0" in text
