"""What is known of one HTTP exchange: filled in on its way, written once at its end, as a log line and as metrics.

Handlers and middleware fill it; only `RequestContext` (middleware.py) finishes it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import Scope

from llm_inference.engine.types import Delta, Usage
from llm_inference.errors import LLMInferenceError
from llm_inference.gateway import spans
from llm_inference.gateway.tenants.key import ApiKey
from llm_inference.telemetry.logging import log_fields
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.tracing import Trace

_SCOPE_KEY = "llm_inference.record"
_LOG = logging.getLogger("llm_inference.gateway.request")

#: Of a path in a log line: it is the client's own text.
_MAX_PATH_CHARS = 512

#: No room (429 by whoever stands in front or behind, 503), or too late.
_TURNED_AWAY = (429, 503, 504)
#: The status in logs and metrics of a request whose client left before the response began (nginx's number for it).
CLIENT_GONE = 499


@dataclass(slots=True)
class RequestRecord:
    """Mutable on purpose: the exchange's diary. Times are `time.perf_counter()` seconds."""

    request_id: str
    metrics: Metrics
    nonce: str = ""  # 32 hexadecimal digits of this exchange alone; `request_id` may be the client's
    method: str = ""
    path: str = ""
    route: str = ""  # the template, never what the client sent; "": no route matched
    model: str = ""  # a served name, set once resolved
    key: ApiKey | None = None  # the caller's, where keys are set
    asked_tier: str = ""  # what the request says, before anybody chose
    tier: str = ""
    replica: str = ""
    stream: bool = False
    status: int = 0  # 0: the response has not begun
    usage: Usage | None = None
    admitted: float | None = None
    admission_s: float | None = None  # waited at the door; None: it did not have to
    queue_s: float | None = None
    engine_ttft_s: float | None = None
    engine_total_s: float | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None
    error_detail: str | None = None  # where, and what the system said
    aborted: bool = False
    metered: bool = False  # the ledger has a row for it
    quiet: bool = False  # probes: no line when all is well
    prompt: Any = None  # only with log_prompts
    trace: Trace | None = None  # where traces are on
    #: What the response's head says besides its own, whatever the response is.
    headers: tuple[tuple[bytes, bytes], ...] = ()
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float = 0.0

    def saw(self, delta: Delta) -> None:
        """Note a delta's time, finish and timing. Usage is summed by whoever knows all prompts of the request."""
        if delta.token_ids or delta.text or delta.reasoning or delta.tool_calls:
            now = time.perf_counter()
            if self.first_token is None:
                self.first_token = now
                self.metrics.first_token(self.model, now - self.started)
            else:
                self.metrics.inter_token(self.model, now - self.last_token)
            self.last_token = now
        if delta.finish_reason is not None:
            self.finish_reasons.append(delta.finish_reason)
        timing = delta.timing
        if timing is not None:
            self.queue_s = timing.queue_s if self.queue_s is None else max(self.queue_s, timing.queue_s)
            if self.engine_ttft_s is None:
                self.engine_ttft_s = timing.ttft_s
            self.engine_total_s = timing.total_s

    def failed(self, error: BaseException) -> None:
        """The request ends with `error`."""
        if isinstance(error, LLMInferenceError):
            self.error = error.public_code or type(error).type
            self.error_detail = error.detail
        else:
            self.error = "server_error"

    @property
    def final_status(self) -> int:
        return self.status or (CLIENT_GONE if self.aborted else 500)

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.started

    @property
    def finish_reason(self) -> str | None:
        """Of all choices, each once."""
        return ",".join(dict.fromkeys(self.finish_reasons)) or None

    def finish(self) -> None:
        """Write the log line and the metrics. Called exactly once."""
        total_s = time.perf_counter() - self.started
        status = self.final_status
        usage = self.usage
        self.metrics.request_finished(
            model=self.model,
            route=self.route,
            status=status,
            duration_s=total_s,
            aborted=self.aborted,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else 0,
            tier=self.tier,
            replica=self.replica,
        )
        self._measure(status)
        if self.trace is not None:
            spans.write(self, total_s)
        if self.quiet and status < 400:
            return
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path[:_MAX_PATH_CHARS],
            "model": self.model or None,
            "key_id": self.key.id if self.key is not None else None,
            "tier": self.tier or None,
            "replica": self.replica or None,
            "stream": self.stream,
            "status": status,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "cached_tokens": usage.cached_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "admission_s": _rounded(self.admission_s),
            "queue_s": _rounded(self.queue_s),
            "ttft_s": _rounded(self.ttft_s),
            "total_s": _rounded(total_s),
            "finish_reason": self.finish_reason,
            "error": self.error,
        }
        if self.error_detail is not None:
            fields["error_detail"] = self.error_detail
        if self.prompt is not None:
            fields["prompt"] = self.prompt
        log_fields(_LOG, "request", fields)

    def _measure(self, status: int) -> None:
        """What only some requests have: phases in an engine, answers, a reason for being turned away."""
        metrics = self.metrics
        if status in _TURNED_AWAY:
            metrics.rejected(self.error or "")
        for reason in self.finish_reasons:
            metrics.count("finished_choices_total", (self.model, reason))
        if self.engine_total_s is not None and self.queue_s is not None and self.engine_ttft_s is not None:
            metrics.phases(self.model, queue_s=self.queue_s, ttft_s=self.engine_ttft_s, total_s=self.engine_total_s)
        if self.first_token is not None and self.usage is not None and self.usage.completion_tokens > 1:
            gaps = self.usage.completion_tokens - 1
            seconds = (self.last_token - self.first_token) / gaps
            metrics.observe("time_per_output_token_seconds", (self.model,), seconds)


def attach(scope: Scope, record: RequestRecord) -> None:
    scope[_SCOPE_KEY] = record


def record_of(scope: Scope) -> RequestRecord:
    """The record that `RequestContext` attached."""
    return cast(RequestRecord, scope[_SCOPE_KEY])


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
