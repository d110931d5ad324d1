"""docs/configuration.md against the code: keys, defaults, variables, exit codes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from llm_inference.cli import main, options
from llm_inference.config.admission import AdmissionConfig
from llm_inference.config.loading import LoadingConfig
from llm_inference.config.ray import RayConfig
from llm_inference.config.routing import AgreementConfig, RoutingConfig
from llm_inference.config.schema import ApiConfig, GenerationConfig, ModelConfig
from llm_inference.config.telemetry import AlertsConfig, TelemetryConfig
from llm_inference.config.tenants import KeyConfig, LimitsConfig, PriceConfig
from llm_inference.config.values import parse_size
from llm_inference.errors import StartupError
from tests.docs.blocks import REPOSITORY, coded, section, table

DOCUMENT = REPOSITORY / "docs" / "configuration.md"
SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("Keys of `api:`", ApiConfig),
    ("Keys of `admission:`", AdmissionConfig),
    ("Keys of `loading:`", LoadingConfig),
    ("Keys of a model", ModelConfig),
    ("Keys of `routing:`", RoutingConfig),
    ("Keys of `routing.agreement`", AgreementConfig),
    ("Keys of `ray:`", RayConfig),
    ("Keys of `generation:`", GenerationConfig),
    ("Keys of `api.keys`", KeyConfig),
    ("Keys of limits", LimitsConfig),
    ("Keys of `price:`", PriceConfig),
    ("Keys of `telemetry:`", TelemetryConfig),
    ("Keys of `telemetry.alerts`", AlertsConfig),
]


def rows(heading: str) -> dict[str, list[str]]:
    return {coded(row[0])[0]: row for row in table(section(DOCUMENT, heading))}


@pytest.mark.parametrize(("heading", "model"), SECTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_every_key_is_documented_in_the_order_of_the_schema(heading: str, model: type[BaseModel]) -> None:
    assert list(rows(heading)) == list(model.model_fields)


@pytest.mark.parametrize(("heading", "model"), SECTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_the_defaults_are_the_schemas(heading: str, model: type[BaseModel]) -> None:
    for key, row in rows(heading).items():
        default = model.model_fields[key].default
        assert default is not PydanticUndefined
        said = coded(row[1])
        if key in ("name", "warmup"):  # in words
            assert "null" not in said
        else:
            assert _same(key, said[0], default), f"{key}: {said[0]} is documented, {default!r} is true"


def _same(key: str, said: str, default: Any) -> bool:
    if isinstance(default, BaseModel):
        return said == "{}" and default == type(default)()
    if isinstance(default, bool) or default is None:
        return said == {True: "true", False: "false", None: "null"}[default]
    if isinstance(default, (int, float)):
        return parse_size(said) == default if key.endswith("bytes") else float(said) == default
    if isinstance(default, (tuple, dict)):
        return bool(json.loads(said) == (list(default) if isinstance(default, tuple) else default))
    return said.strip('"') == default


def test_every_environment_variable_is_documented() -> None:
    documented = {name for row in table(section(DOCUMENT, "Environment variables")) for name in coded(row[0])}
    source = "\n".join(path.read_text() for path in (REPOSITORY / "src").rglob("*.py"))
    read = set(re.findall(r"""(?:environ(?:\.get)?[(\[]|getenv\()["']([A-Z_]+)["']""", source))
    assert read
    assert read <= documented
    for name in documented - read:  # somebody else's, which our messages or docstrings speak of
        assert name.startswith(("HF_", "PIP_"))


def test_exit_codes() -> None:
    documented = [int(coded(row[0])[0]) for row in table(section(DOCUMENT, "Exit codes"))]
    constants = {main.EXIT_FAILED, StartupError.exit_code, main.EXIT_INTERRUPTED, main.EXIT_PIPE_CLOSED}
    assert documented == [0, *sorted(constants)]


def test_flags_whose_words_differ_are_documented() -> None:
    text = section(DOCUMENT, "Flags")
    differing = {
        flag.name
        for flag in (*options.API_FLAGS, *options.LOG_FLAGS, *options.MODEL_FLAGS)
        if flag.name != "--" + flag.path[-1].replace("_", "-")
    }
    assert differing
    assert differing == set(re.findall(r"^\| `(--[a-z-]+)`", text, flags=re.MULTILINE))


def test_limits_by_device_are_those_of_the_plan() -> None:
    from llm_inference.native.plan import DEFAULT_LIMITS
    from llm_inference.native.runner.choice import BLOCK_SIZES

    keys = rows("Keys of a model")
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_prefill_tokens_with_decodes"):
        assert f"{DEFAULT_LIMITS['cpu'][name]} on a CPU, {DEFAULT_LIMITS['cuda'][name]} on a GPU" in keys[name][2]
    sizes = ", ".join(f"{size} with runner {name}" for name, size in BLOCK_SIZES.items())
    assert keys["block_size"][2].endswith(f"null: {sizes}")


def test_parsers_are_named() -> None:
    from llm_inference.text.parsers.registry import REASONING_PARSERS, TOOL_PARSERS

    keys = rows("Keys of a model")
    assert all(name in keys["tool_parser"][2] for name in TOOL_PARSERS)
    assert all(name in keys["reasoning_parser"][2] for name in REASONING_PARSERS)
