"""What a replica sends back, as msgpack: some deltas, or the error that ends the request.

Errors travel as data, because an exception that crosses Ray arrives wrapped, and without its public code.
"""

from __future__ import annotations

import msgspec

from llm_inference.engine.base import Capabilities
from llm_inference.engine.types import Delta, ModelInfo
from llm_inference.errors import EngineError, LLMInferenceError, error_class


class Failure(msgspec.Struct, frozen=True):
    """An `LLMInferenceError` by its class's name."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    detail: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if not isinstance(error, LLMInferenceError):
            return cls(EngineError.__name__, f"the replica failed: {type(error).__name__}: {error}")
        return cls(
            type(error).__name__, error.message, error.param, error.public_code, error.retry_after_s, error.detail
        )

    def as_error(self) -> LLMInferenceError:
        kind = error_class(self.kind)
        return kind(
            self.message, param=self.param, code=self.code, retry_after_s=self.retry_after_s, detail=self.detail
        )


class Fragment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The deltas that came since the last fragment; `failure` ends the request."""

    deltas: tuple[Delta, ...] = ()
    failure: Failure | None = None


class Description(msgspec.Struct, frozen=True):
    """What a replica says of its engine when it is ready."""

    capabilities: Capabilities
    info: ModelInfo
