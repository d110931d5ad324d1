"""One question to an operator's route of a running server; its refusals are said in its own words."""

from __future__ import annotations

import argparse
import json
from typing import Any

#: A model may be loaded before the answer comes.
_TIMEOUT_S = 1800.0


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of its API (http://127.0.0.1:8000/v1)")
    parser.add_argument("--api-key", required=True, metavar="KEY", help="one with the right `admin`")


def ask(args: argparse.Namespace, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer's JSON. Raises `ConfigError` with the server's own words where it refuses, or where there is none."""
    import urllib.error
    import urllib.request

    from llm_inference.errors import ConfigError

    headers = {"authorization": f"Bearer {args.api_key}", "content-type": "application/json"}
    url = f"{args.url.rstrip('/')}/admin/{path}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url: {args.url!r} must begin with http:// or https://")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
            answer = json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            raise ConfigError(_said(error.read()) or f"{url} answers {error.code}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"no answer from {url}: {error}") from error
    if not isinstance(answer, dict):
        raise ConfigError(f"{url} does not answer like llm-inference")
    return answer


def _said(body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return message if isinstance(message, str) else ""
