"""Let a running server read its configuration anew. What is wrong with it is said, and the old one goes on."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request

HELP = "let a running server read its configuration anew"
#: A new engine is started before the answer comes.
_TIMEOUT_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of its API (http://127.0.0.1:8000/v1)")
    parser.add_argument("--api-key", required=True, metavar="KEY", help="one with the right `admin`")


def run(args: argparse.Namespace) -> int:
    """Raises `ConfigError` with the server's own words where it refuses, or where there is none."""
    from llm_inference.errors import ConfigError

    headers = {"authorization": f"Bearer {args.api_key}", "content-type": "application/json"}
    url = f"{args.url.rstrip('/')}/admin/reload"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url: {args.url!r} must begin with http:// or https://")
    request = urllib.request.Request(url, data=b"{}", headers=headers, method="POST")  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:  # noqa: S310
            report = json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            raise ConfigError(_said(error.read()) or f"{url} answers {error.code}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"no answer from {url}: {error}") from error
    for what in ("started", "stopped", "kept", "needs_restart"):
        print(f"{what.replace('_', ' ')}: {', '.join(report[what]) or 'none'}")
    return 0


def _said(body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return message if isinstance(message, str) else ""
