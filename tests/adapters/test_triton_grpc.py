"""`engine: triton` over gRPC, against a server of Triton's own service definition in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.triton import TritonDialect, create
from llm_inference.adapters.triton_grpc import GrpcBackend
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import Delta
from llm_inference.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    NotReadyError,
    OverloadedError,
)
from tests.adapters.generate_model import configuration, make_engine, write_tokenizer
from tests.adapters.replay import drain, outcome, request, run

grpc = pytest.importorskip("grpc", reason="pip install 'tritonclient[grpc]'")
pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")

from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor  # noqa: E402

INPUTS = {
    "text_input": "TYPE_STRING",
    "max_tokens": "TYPE_INT32",
    "temperature": "TYPE_FP32",
    "top_p": "TYPE_FP32",
    "top_k": "TYPE_INT32",
    "seed": "TYPE_UINT64",
    "stop_words": "TYPE_STRING",
    "stream": "TYPE_BOOL",
    "exclude_input_in_output": "TYPE_BOOL",
}


@dataclass
class Script:
    """What the server answers: texts, each a response, an exception, or a wait for ever."""

    answers: Sequence[Any] = ("Hello ", "you.")
    ready: bool = True
    batched: bool = True
    decoupled: bool = True
    seen: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def ServerReady(self, asked: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.script.ready)

    async def ModelConfig(self, asked: Any, context: Any) -> Any:
        if asked.name != "m":
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{asked.name}' is not found")
        reply = service_pb2.ModelConfigResponse()
        reply.config.name = "m"
        reply.config.max_batch_size = 8 if self.script.batched else 0
        reply.config.model_transaction_policy.decoupled = self.script.decoupled
        for name, kind in INPUTS.items():
            reply.config.input.add(name=name, data_type=kind, dims=[1], optional=name != "text_input")
        return reply

    async def ModelStreamInfer(self, stream: Any, context: Any) -> AsyncIterator[Any]:
        self.script.metadata = dict(context.invocation_metadata())
        async for asked in stream:
            self.script.seen.append(self._read(asked))
            try:
                for answer in self.script.answers:
                    if answer is None:
                        await asyncio.Event().wait()
                    if isinstance(answer, grpc.StatusCode):
                        await context.abort(answer, "said so")
                    if isinstance(answer, Exception):
                        yield service_pb2.ModelStreamInferResponse(error_message=str(answer))
                    else:
                        yield self._response(answer)
            except asyncio.CancelledError:
                self.script.cancelled += 1
                raise

    def _read(self, asked: Any) -> dict[str, Any]:
        """By Triton's own reading of raw tensors; each must have the shape that the configuration wants."""
        import numpy as np

        kinds = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}
        values: dict[str, Any] = {"model": asked.model_name}
        for tensor, raw in zip(asked.inputs, asked.raw_input_contents, strict=True):
            if tensor.datatype == "BYTES":
                items: Any = [item.decode() for item in deserialize_bytes_tensor(raw)]
            else:
                items = np.frombuffer(raw, kinds[tensor.datatype]).tolist()
            assert list(tensor.shape) == ([1, len(items)] if self.script.batched else [len(items)])
            assert INPUTS[tensor.name].replace("TYPE_STRING", "TYPE_BYTES") == f"TYPE_{tensor.datatype}"
            values[tensor.name] = items
        return values

    @staticmethod
    def _response(text: str) -> Any:
        import numpy as np

        reply = service_pb2.ModelStreamInferResponse()
        if text:  # an empty one is what Triton ends decoupled answers with, where asked to
            reply.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
            raw = serialize_byte_tensor(np.array([[text.encode()]], dtype=np.object_))
            reply.infer_response.raw_output_contents.append(raw.item())
        return reply


@asynccontextmanager
async def triton(script: Script) -> AsyncIterator[str]:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(script), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_from_the_configuration_to_an_answer(tmp_path: Path) -> None:
    script = Script(answers=("Hello ", "you.", ""))
    async with triton(script) as url:
        tokenizer = str(write_tokenizer(tmp_path))
        model = configuration(tmp_path, url, "triton", model="m", tokenizer=tokenizer, api_key="secret")
        engine = create(model, EngineContext(run_dir=tmp_path))
        await engine.start()
        assert (await engine.health()).ready
        assert engine.capabilities.support("top_k") == "enforced"
        assert engine.capabilities.support("min_tokens") == "refused", "the model has no such input"
        deltas = await run(engine, request("What is AI?", temperature=0.5, top_p=0.9, seed=7, max_tokens=50))
        await engine.stop(0)
    assert [delta.text for delta in deltas] == ["Hello ", "you.", ""]
    assert outcome(deltas).finish_reason == "stop"
    [seen] = script.seen
    assert seen.pop("temperature") == [pytest.approx(0.5)]
    assert seen.pop("top_p") == [pytest.approx(0.9)]
    assert seen == {
        "model": "m", "text_input": ["What is AI?"], "max_tokens": [50], "seed": [7], "stream": [True],
        "exclude_input_in_output": [True], "top_k": [0],
    }  # fmt: skip
    assert script.metadata["authorization"] == "Bearer secret"


@asynccontextmanager
async def started(script: Script, prompts: PromptSide, **more: Any) -> AsyncIterator[Any]:
    async with triton(script) as url:
        engine = make_engine(TritonDialect({}), GrpcBackend("triton", url), prompts, **more)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop(0)


async def test_a_whole_answer_without_batches_and_lists(prompts: PromptSide) -> None:
    script = Script(answers=("All of it é.",), batched=False, decoupled=False)
    async with started(script, prompts) as engine:
        deltas = await run(engine, request("x", temperature=0.0, stop=("one", "two")))
    assert outcome(deltas).text == "All of it é."
    assert script.seen[0]["stop_words"] == ["one", "two"]
    assert script.seen[0]["stream"] == [False]
    assert script.seen[0]["top_k"] == [1]


async def test_closing_cancels_the_call(prompts: PromptSide) -> None:
    script = Script(answers=("a", None))
    async with started(script, prompts) as engine:
        generator = engine.generate(request())
        assert (await anext(generator)).text == "a"
        await generator.aclose()
        for _ in range(200):
            if script.cancelled:
                break
            await asyncio.sleep(0.01)
    assert script.cancelled == 1


async def test_a_stop_string_cancels_the_call(prompts: PromptSide) -> None:
    script = Script(answers=("a b", " c", None))
    async with started(script, prompts) as engine:
        deltas = await run(engine, request(stop=(" c",)))
        assert outcome(deltas).text == "a b"


async def test_errors_in_a_stream(prompts: PromptSide) -> None:
    script = Script(answers=("a", ValueError("in ensemble: boom")))
    async with started(script, prompts) as engine:
        deltas: list[Delta] = []
        with pytest.raises(EngineError, match="in ensemble: boom"):
            await drain(engine.generate(request()), deltas)
        assert [delta.text for delta in deltas] == ["a"]
        script.answers = (ValueError("Prompt length (900) exceeds maximum context length (512)"),)
        with pytest.raises(ContextLengthError, match="900"):
            await run(engine, request())
        script.answers = (grpc.StatusCode.RESOURCE_EXHAUSTED,)
        with pytest.raises(OverloadedError, match="said so"):
            await run(engine, request())
        script.answers = ("a", grpc.StatusCode.INTERNAL)
        with pytest.raises(EngineError, match="INTERNAL: said so"):
            await run(engine, request())
        script.answers = ()
        with pytest.raises(EngineError, match="ended before its end"):
            await run(engine, request())


async def test_a_server_that_goes_away(prompts: PromptSide) -> None:
    script = Script(answers=("a", None))
    async with triton(script) as url:
        engine = make_engine(TritonDialect({}), GrpcBackend("triton", url), prompts)
        await engine.start()
        generator = engine.generate(request())
        assert (await anext(generator)).text == "a"
    with pytest.raises(EngineError):
        await anext(generator)
    health = await engine.health()
    assert not health.ready
    assert health.reason == "the engine 'triton' does not answer"
    with pytest.raises(NotReadyError, match="the engine 'triton' does not answer"):
        await run(engine, request())
    await engine.stop(0)


async def test_an_unknown_model_and_a_missing_port(prompts: PromptSide) -> None:
    async with triton(Script()) as url:
        backend = GrpcBackend("triton", url)
        await backend.open()
        with pytest.raises(ConfigError, match="no 'other'"):
            await TritonDialect({}).probe(backend, "other")
        await backend.close()
    with pytest.raises(ConfigError, match="needs a port"):
        await GrpcBackend("triton", "grpc://127.0.0.1").open()
