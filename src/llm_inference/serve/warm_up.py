"""A few tokens for each warm-up prompt, or a vector: first-use costs are paid before the first user comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Embeds, Engine
from llm_inference.engine.types import EmbedRequest, GenerateRequest, SamplingParams
from llm_inference.errors import LLMInferenceError
from llm_inference.serve.routing import replica_ids

logger = logging.getLogger(__name__)

WARMUP_TOKENS = 10


async def warm_models(models: Sequence[ModelConfig], engines: Mapping[str, Engine], done: Callable[[], None]) -> None:
    """Those of `models` that are among `engines`, by replica id. `done` is called however it ends."""
    try:
        for model in models:
            for replica_id in replica_ids(model):
                engine = engines.get(replica_id)
                if engine is None:  # a reload took it away, or it was warm before
                    continue
                begun = time.monotonic()
                await _warm(model, engine)
                if model.warmup:
                    logger.info("%s is warm after %.1f s", replica_id, time.monotonic() - begun)
    finally:
        done()


async def _warm(model: ModelConfig, engine: Engine) -> None:
    """A prompt that fails is a warning: requests may do better."""
    ignore_eos = engine.capabilities.support("ignore_eos") != "refused"
    for number, prompt in enumerate(model.warmup):
        request = GenerateRequest(
            request_id=f"warm-up-{number}",
            model=model.name,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=WARMUP_TOKENS, temperature=0.0, ignore_eos=ignore_eos),
        )
        try:
            if engine.capabilities.generate:
                async for _ in engine.generate(request):
                    pass
            elif isinstance(engine, Embeds):
                await engine.embed(EmbedRequest(request_id=request.request_id, model=model.name, inputs=(prompt,)))
        except LLMInferenceError as exc:
            logger.warning("warm-up prompt %d of %s failed: %s", number, model.name, exc.message)
