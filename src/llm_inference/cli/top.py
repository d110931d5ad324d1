"""How a running server is now: load, latencies, models and the last errors, redrawn every few seconds.

Ctrl-C ends it. Where the output is no terminal it is printed once, as with --once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

HELP = "show how a running server is: load, latencies, models, last errors"

_ENTER = "\x1b[?1049h\x1b[?25l"  # a screen of its own, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_END_LINE = "\x1b[K\n"
_END_SCREEN = "\x1b[J"
_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (http://127.0.0.1:8000)")
    parser.add_argument("--api-key", metavar="KEY", help="where the server wants one")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)")
    parser.add_argument("--once", action="store_true", help="print it once and end")
    parser.add_argument("--json", action="store_true", help="print the server's own JSON once and end")


def run(args: argparse.Namespace) -> int:
    from llm_inference.errors import ConfigError

    if not 0.1 <= args.interval <= 3600:
        raise ConfigError(f"--interval: must be from 0.1 to 3600 seconds, not {args.interval:g}")
    url = _root(args.url)
    if args.json:
        print(json.dumps(_status(url, args.api_key), indent=2))
    elif args.once or not sys.stdout.isatty():
        print("\n".join(_screen(_status(url, args.api_key), None, url)))
    else:
        _watch(url, args.api_key, args.interval)
    return 0


def _watch(url: str, api_key: str | None, interval_s: float) -> None:
    """Redraw until Ctrl-C. A server that is away is said so, and asked again. Raises only for the first look."""
    from llm_inference.errors import LLMInferenceError

    status = _status(url, api_key)
    before: dict[str, Any] | None = None
    problem = ""
    sys.stdout.write(_ENTER)
    try:
        while True:
            _draw([*([f"{problem}; asking again", ""] if problem else []), *_screen(status, before, url)])
            time.sleep(interval_s)
            try:
                status, before = _status(url, api_key), status
                problem = ""
            except LLMInferenceError as error:
                problem = error.message
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _screen(status: dict[str, Any], before: dict[str, Any] | None, url: str) -> list[str]:
    """Lines without control characters: names and messages are the server's own words."""
    from llm_inference.cli.status_screen import screen
    from llm_inference.telemetry.logging import escape

    return [escape(line) for line in screen(status, before, url)]


def _draw(lines: list[str]) -> None:
    size = shutil.get_terminal_size()
    visible = [line[: size.columns] for line in lines[: size.lines - 1]]
    sys.stdout.write(_HOME + "".join(line + _END_LINE for line in visible) + _END_SCREEN)
    sys.stdout.flush()


def _root(url: str) -> str:
    """The server's own address: also of the API's, as other commands take it."""
    from llm_inference.cli.conversation import normalise_url

    return normalise_url(url).removesuffix("/v1")


def _status(url: str, api_key: str | None) -> dict[str, Any]:
    """Raises `AuthenticationError` or `ServiceError`."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from llm_inference.errors import AuthenticationError, ServiceError

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urlopen(Request(f"{url}/status.json", headers=headers), timeout=_TIMEOUT_S) as reply:  # noqa: S310 - http(s), see `_root`
            status = json.load(reply)
            if not isinstance(status, dict) or not isinstance(status.get("models"), dict):
                raise ValueError
            return status
    except HTTPError as error:
        with error:
            if error.code == 401:
                raise AuthenticationError(f"{url} wants a valid API key; give it with --api-key") from error
            if error.code == 403:
                raise AuthenticationError(f"{url}: this key may not see the status, which is of `models`") from error
            raise ServiceError(f"{url}/status.json answered with status {error.code}; is it llm-inference?") from error
    except (OSError, HTTPException) as error:
        raise ServiceError(f"cannot reach {url}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ServiceError(f"{url}/status.json does not answer like llm-inference") from error
