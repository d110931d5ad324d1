"""examples/custom-engine beyond the suite: as a service of its own, its errors, and its document."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import openai
import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import ConfigError, NotReadyError
from tests.conformance.client import answer, work
from tests.conformance.engines import Case
from tests.conformance.plugin import HOME, plugin_on_path
from tests.e2e.server import running_server


def test_the_command_serves_it(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("{name: backwards, engine: backwards, engine_args: {pace_s: 0}}")
    with plugin_on_path():
        path = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
        with (
            running_server(["--config", str(config)], env={"PYTHONPATH": path}) as server,
            openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
        ):
            reply = client.completions.create(model="backwards", prompt="olleh")
    assert reply.choices[0].text == "hello"


async def test_wrong_arguments_and_other_times(tmp_path: Path) -> None:
    context = EngineContext(run_dir=tmp_path)
    with plugin_on_path():
        create = engine_factory("backwards")
        wrong = ModelConfig(name="n", engine="backwards", engine_args={"pace_s": "fast"})
        with pytest.raises(ConfigError, match=r"engine_args\.pace_s: must be seconds of at least 0, not 'fast'"):
            create(wrong, context)
        engine = create(ModelConfig(name="n", engine="backwards", engine_args={"pace_s": 0.01}), context)
    assert not (await engine.health()).ready
    with pytest.raises(NotReadyError):
        await anext(engine.generate(work()))
    await engine.start()
    case = Case("plugin", engine, "", engine, lambda text: [])
    running = asyncio.create_task(answer(case, work("a text of some length")))
    await asyncio.sleep(0.02)
    await engine.stop(grace_s=5)
    assert (await running)[-1].finish_reason == "length", "what runs may finish"
    assert not (await engine.health()).ready


def test_the_document_shows_what_is_there(repository: Path) -> None:
    """Every block in docs/adding-an-engine.md under the name of a file of the example is part of that file."""
    text = (repository / "docs" / "adding-an-engine.md").read_text()
    blocks = re.findall(r"^`([\w/]+\.\w+)`:\n\n```text\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for name, block in blocks:
        assert block in (HOME / name).read_text(), f"{name}:\n{block}"
