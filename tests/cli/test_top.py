from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from llm_inference.cli import top
from llm_inference.cli.main import main
from llm_inference.cli.status_screen import screen, seconds, span
from tests.gateway.serving import serving

TIMES = {"p50": 0.0051, "p95": 0.25, "p99": 1.5}


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "window_s": 100.0,
        "num_requests": 7,
        "num_errors": 1,
        "prompt_tokens": 900,
        "completion_tokens": 250,
        "cached_tokens": 0,
        "queue_s": None,
        "ttft_s": TIMES,
        "token_s": None,
        "total_s": TIMES,
        **changes,
    }


def status(tokens: int = 1000, at: float = 50.0, **changes: Any) -> dict[str, Any]:
    load = {
        "num_running": 3,
        "num_waiting": 2,
        "kv_cache_usage": 0.42,
        "prefix_cache_queries": 200,
        "prefix_cache_hits": 150,
        "generation_tokens": tokens,
    }
    known = {"live": True, "ready": True, "progressing": True, "reason": "", "engine": "native", "max_model_len": 64}
    return {
        "status": "ok",
        "version": "1.2.3",
        "time": at,
        "uptime_s": 3700.0,
        "in_flight": 5,
        "num_queued": 4,
        "max_concurrent_requests": 512,
        "recent": figures(),
        "models": {
            "small": {**known, "load": load, "recent": figures()},
            "far": {**known, "ready": False, "reason": "restart 1 of 3", "load": None, "recent": figures(ttft_s=None)},
        },
        "tiers": {},
        "errors": [{"time": 0.0, "status": 503, "code": "overloaded", "model": "", "route": "/x", "request_id": "r-1"}],
        **changes,
    }


class Server(ThreadingHTTPServer):
    """Answers with `replies`, one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, bytes]] = []
        self.seen: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("authorization")))
        replies = self.server.replies
        code, body = replies.pop(0) if len(replies) > 1 else replies[0]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@pytest.fixture
def server() -> Iterator[Server]:
    fake = Server()
    thread = threading.Thread(target=fake.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield fake
    fake.shutdown()
    fake.server_close()
    thread.join()


def reply(value: Any, code: int = 200) -> tuple[int, bytes]:
    return code, json.dumps(value).encode()


def test_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies = [reply(status())]
    assert main(["top", "--url", server.url + "/v1", "--once", "--api-key", "sk-x"]) == 0
    assert server.seen == [("/status.json", "Bearer sk-x")]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{server.url}  ok, up 1 h 1 min, version 1.2.3"
    assert lines[1].startswith("2.5 tokens/s   in flight 5 of 512   queued 4   in 1 min 40 s: 7 requests, 1 errors")
    words = {line.split()[0]: line.split() for line in lines if line}
    assert words["small"] == [
        "small",
        "ready",
        "native",
        "3",
        "2",
        "42%",
        "75%",
        "2.5",
        "7",
        "1",
        "5.1ms",
        "250ms",
        "-",
    ]
    assert words["far"][1:6] == ["restarting", "native", "-", "-", "-"]
    assert words["far:"] == ["far:", "restart", "1", "of", "3"]
    assert words["whole"] == ["whole", "request", "5.1ms", "250ms", "1.50s"]
    assert lines[-1].split()[1:] == ["503", "overloaded", "-", "r-1"]


def test_json_is_the_servers_own(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.replies = [reply(status())]
    assert main(["top", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == status()


def test_rates_are_of_now_where_there_is_a_before() -> None:
    now, before = status(tokens=1500, at=52.0), status(tokens=1000, at=50.0)
    assert screen(now, before, "u")[1].startswith("250.0 tokens/s")
    restarted = status(tokens=10, at=54.0)
    assert screen(restarted, now, "u")[1].startswith("0.0 tokens/s")


def test_tiers_have_a_table() -> None:
    lines = screen(status(tiers={"fast": figures()}), None, "u")
    assert any(line.split()[:3] == ["fast", "7", "1"] for line in lines)


def test_no_control_character_reaches_the_terminal() -> None:
    ill = status()
    ill["models"] = {"evil\x1b[2J\nname": {**ill["models"]["small"], "reason": "a\x9b31m\rb"}}
    text = "".join(screen(ill, None, "u"))
    assert text.isprintable()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, b"{}"), "wants a valid API key; give it with --api-key"),
        ((403, b"{}"), "this key may not see the status"),
        ((404, b"{}"), "answered with status 404; is it llm-inference?"),
        ((200, b"<html>"), "does not answer like llm-inference"),
        ((200, b"[]"), "does not answer like llm-inference"),
    ],
)
def test_servers_that_do_not_tell(
    server: Server, answer: tuple[int, bytes], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.replies = [answer]
    assert main(["top", "--url", server.url, "--once"]) == 1
    assert message in capsys.readouterr().err


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--interval", "0"]) == 2
    assert "--interval: must be from 0.1" in capsys.readouterr().err
    assert main(["top", "--url", "ftp://x", "--once"]) == 1
    assert "ftp://x is no address of a server" in capsys.readouterr().err
    assert main(["top", "--url", "127.0.0.1:1", "--once"]) == 1
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err


def test_live_it_redraws_survives_a_failure_and_leaves_the_terminal_as_it_was(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.replies = [reply(status()), (500, b""), reply(status(tokens=1500, at=52.0))]
    looks = []

    def sleep(interval_s: float) -> None:
        looks.append(interval_s)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", sleep)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "6")
    assert main(["top", "--url", server.url, "--interval", "0.5"]) == 0
    assert looks == [0.5] * 3
    out = capsys.readouterr().out
    assert out.startswith("\x1b[?1049h\x1b[?25l")
    assert out.endswith("\x1b[?25h\x1b[?1049l")
    frames = out.split("\x1b[H")[1:]
    assert [frame.count("\n") for frame in frames] == [5, 5, 5]
    assert all(len(line) <= 60 + len("\x1b[J") for frame in frames for line in frame.replace("\x1b[K", "").split("\n"))
    assert "answered with status 500" in frames[1]
    assert "250.0 tokens/s" in frames[2]


async def test_of_a_real_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as service:
        await service.chat()
        await service.chat(temperature=-1)
        assert await asyncio.to_thread(main, ["top", "--url", service.url]) == 0  # no terminal: once
        out = capsys.readouterr().out
        assert "fake" in out
        assert "2 requests, 1 errors" in out


def test_durations_in_words() -> None:
    assert [seconds(value) for value in (None, 0.0012, 0.25, 2.0)] == ["-", "1.2ms", "250ms", "2.00s"]
    assert [span(value) for value in (0.2, 59, 60, 90_000)] == ["0 s", "59 s", "1 min", "1 d 1 h"]
