from __future__ import annotations

import time
from pathlib import Path

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.fake_factory import create
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.engine.types import GenerateRequest
from llm_inference.errors import ConfigError

CONTEXT = EngineContext(run_dir=Path("/nowhere"))


def test_its_limits_are_the_configuration_s() -> None:
    limited = create(ModelConfig(model="m", engine="fake", max_model_len=64, max_num_seqs=3), CONTEXT)
    assert (limited.info.name, limited.info.max_model_len, limited.info.max_batch_size) == ("m", 64, 3)
    assert create(ModelConfig(model="m", engine="fake"), CONTEXT).info.max_batch_size == 8
    assert engine_factory("fake") is create


async def test_it_takes_its_time() -> None:
    engine = create(ModelConfig(model="m", engine="fake", engine_args={"delay_s": 0.02}), CONTEXT)
    begun = time.monotonic()
    deltas = [delta async for delta in engine.generate(GenerateRequest(request_id="r", model="m", prompt="abcde"))]
    assert "".join(delta.text for delta in deltas) == "abcde"
    assert time.monotonic() - begun >= 5 * 0.02


@pytest.mark.parametrize("args", [{"delay_s": -1.0}, {"delay_s": "x"}, {"delay": 1.0}])
def test_other_arguments_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="first_delay_s, delay_s and start_delay_s"):
        create(ModelConfig(model="m", engine="fake", engine_args=args), CONTEXT)
