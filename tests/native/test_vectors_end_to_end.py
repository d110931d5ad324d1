"""Real models, real processes: the vectors of transformers, from the offline `LLM` and through the core's process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import EmbedRequest, GenerateRequest
from llm_inference.errors import ContextLengthError, InvalidRequestError
from llm_inference.llm import LLM
from llm_inference.native.factory import create
from tests.native.tiny_encoders import add_files, save_tiny_encoder

TEXTS = [
    "The cat sits on the mat.",
    "Ein Hund läuft durch den Wald.",
    "hello",
    "日本語のテキストです。",
    *("several words of text " * number for number in (1, 3, 10, 25, 60)),
]


@torch.inference_mode()
def reference(directory: Path, texts: list[str], pooling: str) -> np.ndarray:
    """One text at a time through transformers, pooled and normalized by the formula. No padding, no cut."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    rows = []
    for text in texts:
        hidden = model(torch.tensor([tokenizer.backend_tokenizer.encode(text).ids])).last_hidden_state[0]
        vector = hidden.mean(0) if pooling == "mean" else hidden[-1 if pooling == "last" else 0]
        rows.append((vector / vector.norm()).numpy())
    return np.stack(rows)


def test_minilm_equals_transformers(encoder_model_dir: Path) -> None:
    with LLM(str(encoder_model_dir), progress=False) as llm:
        found = llm.embed(TEXTS[:-1])
        np.testing.assert_allclose(np.array(found.vectors), reference(encoder_model_dir, TEXTS[:-1], "mean"), atol=1e-5)
        first = llm.embed(TEXTS[0], pooling="cls").vectors
        np.testing.assert_allclose(np.array(first), reference(encoder_model_dir, TEXTS[:1], "cls"), atol=1e-5)
        animal, pet, bond = np.array(llm.embed(["a cat", "a small dog", "government bonds"]).vectors)
        assert animal @ pet > animal @ bond + 0.2
        assert llm.info.max_model_len == 256
        with pytest.raises(ContextLengthError, match=r"input\[1\].*256 tokens; the input has 402"):
            llm.embed(["short", "word " * 400])
        with pytest.raises(InvalidRequestError, match="is an encoder"):
            llm.generate("hello")


def test_two_thousand_inputs(encoder_model_dir: Path) -> None:
    with LLM(str(encoder_model_dir), progress=False) as llm:
        found = llm.embed([f"w{number % 7}" for number in range(2048)])
        vectors = np.array(found.vectors)
        assert vectors.shape == (2048, 384)
        for number in range(7):
            same = vectors[number::7]
            np.testing.assert_allclose(same, np.broadcast_to(same[0], same.shape), atol=1e-5)
        assert not llm._core.has_work


def test_the_default_model_equals_transformers(default_model_dir: Path) -> None:
    with LLM(str(default_model_dir), kv_cache_memory="512MiB", progress=False) as llm:
        for pooling in ("last", "mean"):
            found = llm.embed(TEXTS[:-2], pooling=pooling)  # type: ignore[arg-type]
            expected = reference(default_model_dir, TEXTS[:-2], pooling)
            np.testing.assert_allclose(np.array(found.vectors), expected, atol=1e-5)
        assert llm.embed(TEXTS[0]).vectors == llm.embed(TEXTS[0], pooling="last").vectors


async def test_a_core_process_of_its_own(tmp_path: Path) -> None:
    """Tokenized by the front, computed by the core, aborted when nobody waits any more."""
    directory = tmp_path / "model"
    tiny = save_tiny_encoder(directory)
    add_files(directory)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    config = ModelConfig(name="tiny", model=str(directory), device="cpu")
    engine = create(config, EngineContext(run_dir=run_dir, progress=False))
    await engine.start()
    try:
        inputs = tuple("w1 " * (1 + number % 20) for number in range(300))
        result = await engine.embed(EmbedRequest(request_id="a", model="tiny", inputs=inputs))
        assert result.timing is not None
        assert result.timing.total_s > 0
        assert result.usage.prompt_tokens == sum(3 + number % 20 for number in range(300))
        for number, vector in enumerate(result.vectors[:20]):
            expected = tiny.hidden([2, *[6] * (1 + number), 3]).mean(0)
            np.testing.assert_allclose(np.frombuffer(vector, "<f4"), expected / expected.norm(), atol=1e-5)
        assert engine.capabilities.embeddings
        assert not engine.capabilities.generate
        deltas = engine.generate(GenerateRequest(request_id="b", model="tiny", prompt="w1"))
        with pytest.raises(InvalidRequestError, match="is an encoder"):
            await anext(deltas)
        task = asyncio.create_task(engine.embed(EmbedRequest(request_id="c", model="tiny", inputs=inputs * 10)))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine._client.num_in_flight == 0
        again = await engine.embed(EmbedRequest(request_id="d", model="tiny", inputs=("w1",)))
        first, other = (np.frombuffer(one.vectors[0], "<f4") for one in (result, again))
        np.testing.assert_allclose(other, first, atol=1e-6)
    finally:
        await engine.stop(grace_s=1)
