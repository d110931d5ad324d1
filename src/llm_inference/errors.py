"""The one exception tree. Each class owns its public `code`, `type` and HTTP status.

    LLMInferenceError
    ├── StartupError              refused before anything listens: exit code 2, one message
    │   ├── ConfigError           the YAML, a flag or an environment variable is wrong
    │   ├── SourceError           the model cannot be found, fetched, read or verified
    │   ├── UnsupportedModelError the files are fine, but this engine does not know such a model
    │   ├── OutOfMemoryError      weights and KV cache do not fit; says what would
    │   └── PortInUseError        another process listens there
    ├── RequestError              the caller's fault: 4xx
    │   ├── InvalidRequestError   400, names the field in `param`
    │   │   └── ContextLengthError    400 `context_length_exceeded`
    │   ├── AuthenticationError   401 `invalid_api_key`
    │   ├── PermissionDeniedError 403
    │   ├── ModelNotFoundError    404 `model_not_found`
    │   ├── PayloadTooLargeError  413
    │   └── RateLimitError        429 `rate_limit_exceeded`: the caller's own limit
    └── ServiceError              our fault: 5xx
        ├── OverloadedError       503 `overloaded`: we are full
        ├── NotReadyError         503 `not_ready`: loading, draining or restarting
        ├── RequestTimeoutError   504 `request_timeout`: not finished within the request's time limit
        └── EngineError           500 `server_error`: the engine failed or died

A foreign error is translated at the boundary with `raise … from exc`. Messages say what, where and what to do.
This module knows nothing of HTTP frameworks; `status` is a plain number.
"""

from __future__ import annotations

from typing import ClassVar


class LLMInferenceError(Exception):
    """Root of every error that this package raises on purpose."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        #: The request field at fault, in the client's own spelling (`messages[2].content`).
        self.param = param
        #: The public code of this instance: the class's own unless a finer one was given.
        self.public_code = code if code is not None else type(self).code
        #: Seconds after which a retry makes sense; becomes `Retry-After`.
        self.retry_after_s = retry_after_s
        #: For the operator's log and never for clients: an address inside, what the system said.
        self.detail = detail

    @property
    def full_message(self) -> str:
        """For the operator's log."""
        return f"{self.message} ({self.detail})" if self.detail else self.message


class StartupError(LLMInferenceError):
    """Refused before anything listens. The command exits with 2 and prints the message alone."""

    exit_code: ClassVar[int] = 2


class ConfigError(StartupError):
    """The configuration is wrong; the message names file, key and the nearest right thing."""

    code = "invalid_config"


class SourceError(StartupError):
    """The model's files cannot be found, fetched, read or verified; the message names the file."""

    code = "invalid_model_source"


class UnsupportedModelError(StartupError):
    """The files are readable, but no code here knows such an architecture, tokenizer or quantization."""

    code = "unsupported_model"


class OutOfMemoryError(StartupError):
    """Weights and KV cache do not fit; the message says what would."""

    code = "out_of_memory"


class PortInUseError(StartupError):
    """Another process listens on the address that was asked for."""

    code = "port_in_use"


class RequestError(LLMInferenceError):
    """The caller's fault."""

    status = 400
    type = "invalid_request_error"


class InvalidRequestError(RequestError):
    """A field is wrong, unknown or would have no effect; `param` names it."""


class ContextLengthError(InvalidRequestError):
    """Prompt and requested output exceed the model's context."""

    code = "context_length_exceeded"


class AuthenticationError(RequestError):
    """No valid API key."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    """The key is valid, its scope is not."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class ModelNotFoundError(RequestError):
    """No model of that name is served here."""

    status = 404
    code = "model_not_found"


class PayloadTooLargeError(RequestError):
    """The body exceeds `api.max_body_bytes`."""

    status = 413
    code = "payload_too_large"


class RateLimitError(RequestError):
    """The caller's own limit is hit."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class ServiceError(LLMInferenceError):
    """Our fault, or our state."""


class OverloadedError(ServiceError):
    """We are full; a retry after `retry_after_s` makes sense."""

    status = 503
    type = "overloaded_error"
    code = "overloaded"


class NotReadyError(ServiceError):
    """Loading, draining or restarting."""

    status = 503
    type = "service_unavailable"
    code = "not_ready"


class RequestTimeoutError(ServiceError):
    """Accepted, but not finished within `api.request_timeout_s`; the work has been aborted."""

    status = 504
    type = "timeout_error"
    code = "request_timeout"


class EngineError(ServiceError):
    """The engine failed or died under this request."""

    code = "server_error"


def error_class(name: str) -> type[LLMInferenceError]:
    """The class that another process named; `EngineError` for a name that is none of these."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, LLMInferenceError) else EngineError
