"""`engine: fake` of the configuration: the engine without a model, with the limits and delays that are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import ConfigError

if TYPE_CHECKING:
    from llm_inference.config.schema import ModelConfig
    from llm_inference.engine.registry import EngineContext


class _Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds before the first token, before every token, and before the engine is ready."""

    first_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    start_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def create(model: ModelConfig, context: EngineContext) -> FakeEngine:
    """Repeats what it is told. `engine_args` may be its delays. Raises `ConfigError`."""
    batch = model.max_batch_size or model.max_num_seqs or 8
    try:
        delays = msgspec.convert(model.engine_args, _Delays)
    except msgspec.ValidationError as exc:
        raise ConfigError(
            f"{model.name}: engine_args of 'fake' are first_delay_s, delay_s and start_delay_s: {exc}"
        ) from exc
    script = FakeScript(first_delay_s=delays.first_delay_s, delay_s=delays.delay_s, start_delay_s=delays.start_delay_s)
    return FakeEngine(model.name, script=script, max_model_len=model.max_model_len or 4096, max_batch_size=batch)
