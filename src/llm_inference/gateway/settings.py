"""What the gateway needs to know of the configuration. It does not know the YAML; `serve` maps that onto this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_inference.gateway.admission.rules import NO_QUEUE, AdmissionRules


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Plain values, checked by whoever builds them."""

    api_prefix: str = "/v1"  # "" or "/something", without a slash at the end
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # empty: everybody may call
    open_metrics: bool = True  # with keys: /metrics needs none
    page: bool = True  # the page at /
    cors_origins: tuple[str, ...] = ()  # empty: no CORS headers; ("*",): any origin
    max_body_bytes: int = 32 * 1024 * 1024
    request_timeout_s: float | None = None  # from the accepted request to its last byte; None: no limit
    max_concurrent_requests: int = 512
    admission: AdmissionRules = NO_QUEUE
    log_prompts: bool = False  # the request line carries the prompt itself
    redact_prompts: bool = True  # with what looks like addresses, secrets and long numbers hidden
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names that clients may say → served names
