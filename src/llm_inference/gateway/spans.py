"""A request's record as OpenTelemetry spans, by the conventions for generative AI.

request ── admission ── route ── queue ── prefill ── decode

The engine's own times (its process measures them) stand relative to the first token, which both sides know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_inference.telemetry.tracing import Part

if TYPE_CHECKING:
    from llm_inference.gateway.record import RequestRecord

_OPERATIONS = {"chat": "chat", "completions": "text_completion", "embeddings": "embeddings"}


def write(record: RequestRecord, duration_s: float) -> None:
    """End the record's trace; probes that went well leave none."""
    trace = record.trace
    status = record.final_status
    if trace is None or (record.quiet and status < 400):
        return
    operation = _operation(record.route)
    name = " ".join(filter(None, (operation, record.model))) if operation else f"{record.method} {record.route}".strip()
    error = record.error if status >= 500 or (record.error and record.status == 200) else None
    trace.end(name, attributes(record, operation), parts(record), duration_s, error)


def attributes(record: RequestRecord, operation: str | None) -> dict[str, Any]:
    """None: not known, and left out."""
    usage = record.usage
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "llm_inference" if operation else None,
        "gen_ai.request.model": record.model or None,
        "gen_ai.response.model": record.model if usage is not None else None,
        "gen_ai.usage.input_tokens": usage.prompt_tokens if usage is not None else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens if usage is not None else None,
        "gen_ai.response.finish_reasons": list(dict.fromkeys(record.finish_reasons)) or None,
        "error.type": record.error,
        "http.request.method": record.method,
        "http.route": record.route or None,
        "http.response.status_code": record.final_status,
        "llm_inference.request_id": record.request_id,
        "llm_inference.key_id": record.key.id if record.key is not None else None,
        "llm_inference.tier": record.tier or None,
        "llm_inference.replica": record.replica or None,
        "llm_inference.cached_tokens": usage.cached_tokens if usage is not None else None,
    }


def parts(record: RequestRecord) -> list[Part]:
    """In the order in which they happened."""
    if record.admitted is None:
        return []
    admitted = record.admitted - record.started
    found = [Part("admission", admitted - (record.admission_s or 0.0), admitted)]
    first = record.ttft_s
    if first is None:
        return found
    if record.engine_ttft_s is None or record.queue_s is None:
        return [*found, Part("prefill", admitted, first), Part("decode", first, record.last_token - record.started)]
    accepted = max(first - record.engine_ttft_s, admitted)
    scheduled = min(accepted + record.queue_s, first)
    return [
        *found,
        Part("route", admitted, accepted),
        Part("queue", accepted, scheduled),
        Part("prefill", scheduled, first),
        Part("decode", first, record.last_token - record.started),
    ]


def _operation(route: str) -> str | None:
    return next((word for part, word in _OPERATIONS.items() if f"/{part}" in route), None)
