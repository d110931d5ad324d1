"""Which attention is taken, by device, precision, heads, blocks and packages."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.native.attention.choice import (
    AttentionWanted,
    InstalledPackages,
    choose_attention,
    import_error,
)

FLASH, INFER = {"flash-attn": "2.8.3.post1"}, {"flashinfer-python": "0.7.4"}
BOTH = FLASH | INFER


def packages(versions: dict[str, str], broken: tuple[str, ...] = ()) -> InstalledPackages:
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    return InstalledPackages(version, lambda module: "undefined symbol" if module in broken else None)


def wanted(**changes: Any) -> AttentionWanted:
    usual: dict[str, Any] = {"device": "cuda", "precision": "bfloat16", "head_dim": 64, "capability": (9, 0)}
    return AttentionWanted(**usual | changes)


@pytest.mark.parametrize(
    ("options", "versions", "expected"),
    [
        ({}, BOTH, ("flash_attn", 256)),
        ({}, FLASH, ("flash_attn", 256)),
        ({}, INFER, ("flashinfer", 16)),
        ({}, {}, ("sdpa", 16)),
        ({"device": "cuda:1", "precision": "float16", "capability": (8, 0)}, BOTH, ("flash_attn", 256)),
        ({"device": "cpu", "precision": "float32", "capability": None}, BOTH, ("sdpa", 16)),
        ({"precision": "float32"}, BOTH, ("sdpa", 16)),
        ({"capability": (7, 5)}, BOTH, ("sdpa", 16)),
        ({"head_dim": 80}, BOTH, ("flash_attn", 256)),
        ({"head_dim": 80}, INFER, ("sdpa", 16)),
        ({"head_dim": 260}, BOTH, ("sdpa", 16)),
        ({"head_dim": 100}, FLASH, ("sdpa", 16)),
        ({"block_size": 512}, BOTH, ("flash_attn", 512)),
        ({"block_size": 32}, BOTH, ("flashinfer", 32)),
        ({"block_size": 32}, FLASH, ("sdpa", 32)),
        ({}, {"flash-attn": "2.5.9"} | INFER, ("flashinfer", 16)),
        ({}, {"flash-attn": "3.0.0"}, ("sdpa", 16)),
        ({}, {"flash-attn": "unknown", "flashinfer-python": "0.1.6"}, ("sdpa", 16)),
        ({"precision": "auto", "capability": None}, BOTH, ("flash_attn", 256)),  # the front, before the core
    ],
)
def test_auto(options: dict[str, Any], versions: dict[str, str], expected: tuple[str, int]) -> None:
    choice = choose_attention("auto", wanted(**options), packages(versions))
    assert (choice.name, choice.block_size) == expected
    assert choice.reason


def test_a_package_that_cannot_be_imported_is_passed_over() -> None:
    choice = choose_attention("auto", wanted(), packages(BOTH, broken=("flash_attn",)))
    assert choice.name == "flashinfer"
    assert choice.reason == (
        "flashinfer-python 0.7.4 is installed and fits; "
        "flash-attn 2.8.3.post1 is installed and cannot be imported (undefined symbol)"
    )
    assert import_error("llm_inference.no_such_module") == "No module named 'llm_inference.no_such_module'"
    assert import_error("json") is None


@pytest.mark.parametrize(
    ("name", "options", "versions", "reason"),
    [
        ("flash_attn", {"device": "cpu"}, BOTH, "runs on NVIDIA GPUs, and the device is cpu"),
        ("flashinfer", {"precision": "float32"}, BOTH, "float16 or bfloat16, not in float32"),
        ("flash_attn", {"capability": (7, 0)}, BOTH, r"8\.0 \(Ampere\) or above, and this one has 7\.0"),
        ("flash_attn", {"head_dim": 512}, BOTH, "up to 256 in steps of 8, and this model's are of 512"),
        ("flashinfer", {"head_dim": 96}, BOTH, "heads of 64, 128 or 256, and this model's are of 96"),
        ("flash_attn", {"block_size": 16}, BOTH, "blocks of 256 tokens or a multiple, and block_size is 16"),
        ("flash_attn", {}, INFER, r"package flash-attn \(2\.6 or above, below 3\) is not installed"),
        ("flashinfer", {}, FLASH, r"package flashinfer-python \(0\.2 or above, below 1\) is not installed"),
        ("flash_attn", {}, {"flash-attn": "2.3.0"}, r"2\.3\.0 is installed, and 2\.6 or above, below 3, is needed"),
    ],
)
def test_what_is_asked_for_by_name_and_cannot_be_had(
    name: Any, options: dict[str, Any], versions: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"attention: {name} cannot be had: .*{reason}.*`attention: sdpa`"):
        choose_attention(name, wanted(**options), packages(versions))


@pytest.mark.parametrize("name", ["sdpa", "flash_attn", "flashinfer"])
def test_what_is_asked_for_by_name(name: Any) -> None:
    choice = choose_attention(name, wanted(), packages(BOTH))
    assert (choice.name, choice.reason) == (name, "the configuration says so")
