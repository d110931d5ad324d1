"""Triton over gRPC, for `engine: triton` with `url: grpc://host:port`.

The doors of `backend.py` in Triton's own protocol. The dialect speaks of paths and JSON as over HTTP; here they become
calls and tensors, whose types and shapes the model's configuration says. A stream is one request on a bidirectional
call, which ends when all its responses are there; cancelling the call ends the work. Needs the extra `triton`
(tritonclient), imported when a server is opened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from llm_inference.adapters.frames import Framing
from llm_inference.adapters.upstream_errors import from_refusal, read_refusal
from llm_inference.errors import ConfigError, ContextLengthError, EngineError, NotReadyError

_PROBE_TIMEOUT_S = 5.0
#: gRPC's statuses as those of HTTP; every other is a failure of the server.
_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "UNIMPLEMENTED": 405,
    "RESOURCE_EXHAUSTED": 429,
    "DEADLINE_EXCEEDED": 504,
}


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Types of a model's inputs by name, as requests spell them, and whether a batch dimension comes first."""

    types: Mapping[str, str] = field(default_factory=dict)
    batched: bool = False


class GrpcBackend:
    """See `Backend`. `url`: grpc://host:port."""

    def __init__(self, engine: str, url: str, api_key: str | None = None) -> None:
        self.engine = engine
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key is not None else None
        self._client: Any = None
        self._models: dict[str, ModelInputs] = {}

    async def open(self) -> None:
        try:
            import tritonclient.grpc.aio as aio
        except ImportError as error:
            raise ConfigError(
                f"url: {self.url} needs tritonclient, which is not installed: pip install 'llm-inference[triton]', "
                "or give the server's HTTP address"
            ) from error
        if not urlsplit(self.url).port:
            raise ConfigError(f"url: {self.url} needs a port, such as grpc://127.0.0.1:8001")
        self._client = aio.InferenceServerClient(urlsplit(self.url).netloc)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        from tritonclient.utils import InferenceServerException

        client = self._require_client()
        try:
            if path.startswith("/v2/health/"):
                ready = await client.is_server_ready(headers=self._headers, client_timeout=_PROBE_TIMEOUT_S)
                return (200 if ready else 503), b""
            model = _model(path)
            reply = await client.get_model_config(model, headers=self._headers, client_timeout=_PROBE_TIMEOUT_S)
        except InferenceServerException as error:
            status = _STATUSES.get(_word(error.status()), 500)
            if status in (500, 504):
                raise self._unreachable(error.message()) from error
            return status, error.message().encode()
        return 200, self._learn(model, reply.config)

    async def post(self, path: str, body: Mapping[str, Any], framing: Framing) -> AsyncGenerator[Any, None]:
        import grpc
        from tritonclient.utils import InferenceServerException

        client = self._require_client()
        request = {"model_name": _model(path), "inputs": self._tensors(_model(path), body)}

        async def requests() -> AsyncGenerator[dict[str, Any], None]:
            yield request

        begun = False
        asked = requests()
        async with aclosing(asked):
            call = client.stream_infer(asked, headers=self._headers)
            try:
                async for result, error in call:
                    if error is not None:
                        raise error
                    values = _values(result)
                    if values:
                        yield values
                        begun = True
            except InferenceServerException as error:
                raise self._said(error.message(), begun) from error
            except grpc.aio.AioRpcError as error:
                raise self._broken(error.code().name, error.details() or "", begun) from error
            except asyncio.CancelledError:
                # Our own task's, or the call's, which was cancelled from elsewhere as when the client is closed.
                if self._client is None:
                    raise EngineError(f"{self.engine}: the engine was stopped under this request") from None
                raise
            finally:
                call.cancel()

    def _learn(self, model: str, config: Any) -> bytes:
        """Keeps the types of a model's inputs; its configuration as JSON, as Triton's HTTP route has it."""
        from google.protobuf.json_format import MessageToDict
        from tritonclient.grpc import model_config_pb2

        names = model_config_pb2.DataType
        types = {entry.name: _type(names.Name(entry.data_type)) for entry in config.input}
        self._models[model] = ModelInputs(types, batched=config.max_batch_size > 0)
        return json.dumps(MessageToDict(config, preserving_proto_field_name=True)).encode()

    def _tensors(self, model: str, body: Mapping[str, Any]) -> list[Any]:
        import numpy as np
        from tritonclient.grpc import InferInput
        from tritonclient.utils import triton_to_np_dtype

        known = self._models.get(model, ModelInputs())
        tensors = []
        for name, value in body.items():
            if name not in known.types:
                raise EngineError(f"{self.engine}: the model {model!r} has no input {name!r}; restart the service")
            items = list(value) if isinstance(value, (list, tuple)) else [value]
            if known.types[name] == "BYTES":
                array = np.array([str(item).encode() for item in items], dtype=np.object_)
            else:
                array = np.array(items, dtype=triton_to_np_dtype(known.types[name]))
            array = array.reshape((1, -1)) if known.batched else array
            tensor = InferInput(name, list(array.shape), known.types[name])
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        return tensors

    def _said(self, message: str, begun: bool) -> Exception:
        """An error in the place of a response. One about the length, before anything came, is a refusal."""
        refusal = read_refusal({"error": message})
        refused = from_refusal(400, refusal, where=self._where)
        return refused if isinstance(refused, ContextLengthError) and not begun else self._failed(message)

    def _broken(self, code: str, details: str, begun: bool) -> Exception:
        if code in ("UNAVAILABLE", "CANCELLED"):
            return self._broken_off(details) if begun else self._unreachable(details)
        status = _STATUSES.get(code)
        if status is None or begun:
            return self._failed(f"{code}: {details}")
        refused = from_refusal(status, read_refusal(details), where=self._where)
        refused.detail = f"{self.url} answered {code}"
        return refused

    def _failed(self, message: str) -> EngineError:
        return EngineError(f"{self._where} failed: {message}", detail=f"at {self.url}")

    def _broken_off(self, details: str) -> EngineError:
        return EngineError(f"{self._where} broke off its answer", detail=f"{self.url}: {details[:200]}")

    def _unreachable(self, details: str) -> NotReadyError:
        return NotReadyError(
            f"{self._where} does not answer",
            retry_after_s=5.0,
            detail=f"no engine answers at {self.url} ({details[:200]}); start it, or correct `url`",
        )

    @property
    def _where(self) -> str:
        return f"the engine {self.engine!r}"

    def _require_client(self) -> Any:
        if self._client is None:
            raise NotReadyError(f"{self.engine}: the engine is not started, or already stopped")
        return self._client


def _model(path: str) -> str:
    """Of /v2/models/<model>/…"""
    return unquote(path.split("/")[3])


def _type(name: str) -> str:
    """A configuration's word for a type → a request's."""
    word = name.removeprefix("TYPE_")
    return "BYTES" if word == "STRING" else word


def _word(status: str | None) -> str:
    """StatusCode.NOT_FOUND → NOT_FOUND"""
    return (status or "").rpartition(".")[2]


def _values(result: Any) -> dict[str, Any]:
    """Outputs by name, as the HTTP route has them: a value alone where there is one, else a list."""
    values: dict[str, Any] = {}
    for output in result.get_response().outputs:
        array = result.as_numpy(output.name)
        items = [] if array is None else array.flatten().tolist()
        texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in items]
        values[output.name] = texts[0] if len(texts) == 1 else texts
    return values
