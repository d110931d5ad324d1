"""One started engine at a time for the whole suite, and `--record FILE` for its results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.client import TEXT
from tests.conformance.engines import ENGINES, Case, NotInstalled
from tests.conformance.record import Recorder

#: Heavy engines start slowly (minutes) and answer slowly.
_HEAVY = (pytest.mark.conformance, pytest.mark.timeout(1200))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, default=None, help="write the conformance results to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--record", default=None)
    if file is not None:
        distributions = {name: entry.distributions for name, entry in ENGINES.items()}
        config.pluginmanager.register(Recorder(file, distributions), "conformance-record")


def pytest_itemcollected(item: pytest.Item) -> None:
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "case" in callspec.params:
        item.user_properties.append(("engine", callspec.params["case"]))


@pytest.fixture(scope="package")
def reference(default_model_dir: Path) -> dict[str, float]:
    """The log-probabilities of the likeliest tokens after `TEXT`, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    model = AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([tokenizer.encode(TEXT)])).logits[0, -1]
    best = logits.log_softmax(-1).topk(3)
    return {tokenizer.decode([token]): float(value) for value, token in zip(*best, strict=True)}


@pytest_asyncio.fixture(
    scope="package",
    loop_scope="package",
    params=[pytest.param(name, marks=_HEAVY if entry.heavy else ()) for name, entry in ENGINES.items()],
)
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    opened = ENGINES[request.param].start()
    try:
        made = await opened.__aenter__()
    except NotInstalled as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        await opened.__aexit__(None, None, None)
