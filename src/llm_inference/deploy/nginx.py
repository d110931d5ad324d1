"""nginx in front of the service: TLS, one address, streams that are not held back."""

from __future__ import annotations

import math

from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.quoting import nginx_text
from llm_inference.deploy.templating import render
from llm_inference.errors import ConfigError


def render_nginx(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` without `--hostname`, and where everybody would be let in."""
    facts.require_keys("nginx")
    api, name = facts.config.api, facts.choices.name
    if facts.choices.hostname is None:
        raise ConfigError("nginx: say under which name clients come, such as --hostname llm.example.org")
    upstream = f"unix:{api.uds}" if api.uds is not None else f"{_upstream_host(api.host)}:{facts.port}"
    text = render(
        "nginx.conf.j2",
        nginx_text,
        facts=facts,
        name=name,
        servers=facts.choices.servers or (upstream,),
        hostname=facts.choices.hostname,
        prefix=api.api_prefix,
        page=api.page,
        max_body_bytes=api.max_body_bytes,
        read_s=math.ceil(api.request_timeout_s) + 30 if api.request_timeout_s is not None else 86400,
        timeout=f"{api.request_timeout_s:g} s" if api.request_timeout_s is not None else None,
        keepalive_s=60,
    )
    return {f"{name}.conf": text}


def _upstream_host(host: str) -> str:
    """Every interface means this machine, seen from this machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
