"""A server that reads its configuration anew: the real command, fake engines that take their time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.deploy.test_start import free_port

pytestmark = pytest.mark.e2e
TEXT = "one two three four five six seven eight nine ten eleven twelve"
ADMIN = {"authorization": "Bearer admin-key"}
USER = {"authorization": "Bearer user-key"}
SLOW = {"name": "echo", "model": "echo", "engine": "fake", "engine_args": {"delay_s": 0.03}, "max_num_seqs": 64}


@dataclass
class Server:
    config: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.config.with_suffix(".log").read_text()

    def write(self, *models: dict[str, Any], **api: Any) -> None:
        keys = [
            {"name": "admin", "key": "admin-key", "routes": ["inference", "models", "admin"]},
            {"name": "user", "key": "user-key"},
        ]
        self.config.write_text(json.dumps({"api": {"port": self.port, "keys": keys, **api}, "models": list(models)}))

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 30
        while words not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)


@contextmanager
def running_server(tmp_path: Path, **api: Any) -> Iterator[Server]:
    config = tmp_path / "config.json"
    program = str(Path(sys.executable).parent / "llm-inference")
    running = Server(config, free_port(), None)  # type: ignore[arg-type]
    running.write(SLOW, **api)
    with config.with_suffix(".log").open("wb") as log:
        running.process = subprocess.Popen(
            [program, "serve", "--config", str(config)], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        running.wait_for("serving echo on")
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path) as running:
        yield running


async def streamed(session: aiohttp.ClientSession, url: str, model: str = "echo") -> str:
    body = {"model": model, "prompt": TEXT, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body, headers=USER) as reply:
        text = await reply.text()
    if reply.status != 200:
        return text
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text
    return "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])


async def ask(session: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], body: Any = None) -> Any:
    async with session.request(method, url, headers=headers, json=body) as reply:
        return reply.status, await reply.json()


async def test_fifty_open_streams_outlive_their_engine(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        running = [asyncio.create_task(streamed(session, server.url)) for _ in range(50)]
        await asyncio.sleep(0.5)
        server.write({**SLOW, "engine_args": {"delay_s": 0.0}}, {**SLOW, "name": "second", "aliases": ["other"]})
        status, report = await ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
        assert (status, report) == (
            200,
            {"started": ["echo", "second"], "stopped": ["echo"], "kept": [], "needs_restart": []},
        )
        assert await streamed(session, server.url) == TEXT  # at once, from the new engine
        assert not any(task.done() for task in running)
        assert await streamed(session, server.url, "other") == TEXT
        assert set(await asyncio.gather(*running)) == {TEXT}


async def test_what_is_told_the_same_keeps_its_engine(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        server.write({**SLOW, "aliases": ["alias"], "tier": None, "routing": {"policy": "round_robin"}})
        os.kill(server.process.pid, signal.SIGHUP)
        await asyncio.to_thread(server.wait_for, "reloaded: started none, stopping none, kept echo")
        assert await streamed(session, server.url, "alias") == TEXT
        first, second = {**SLOW, "version": "1"}, {**SLOW, "version": "2", "weight": 0}
        server.write(first, second)
        status, report = await ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
        assert status == 200, report
        assert (report["started"], report["stopped"], report["kept"]) == (["echo@1", "echo@2"], ["echo"], [])
        server.write({**first, "weight": 0}, {**second, "weight": 3})
        status, report = await ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
        assert (report["started"], report["stopped"], report["kept"]) == ([], [], ["echo@1", "echo@2"])
        status, seen = await ask(session, "GET", f"{server.url}/v1/admin/models", ADMIN)
        [group] = seen["models"]
        assert [(one["id"], one["version"], one["weight"], one["ready"]) for one in group["replicas"]] == [
            ("echo@1", "1", 0, True),
            ("echo@2", "2", 3, True),
        ]
        assert (await streamed(session, server.url, "alias")).startswith('{"error"')


async def test_a_wrong_configuration_leaves_the_old_one_running(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        for text, words in (
            ("models: [", "config.json"),
            ('{"models": [{"name": "x", "model": "/nowhere", "engine": "native"}]}', "/nowhere"),
            ('{"models": [{"name": "x", "enginee": "fake"}]}', "enginee"),
        ):
            server.config.write_text(text)
            status, reply = await ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
            assert status == 400
            assert "the old one goes on" in reply["error"]["message"]
            assert words in reply["error"]["message"]
            assert await streamed(session, server.url) == TEXT
        os.kill(server.process.pid, signal.SIGHUP)
        await asyncio.to_thread(server.wait_for, "the configuration was not taken")
        assert await streamed(session, server.url) == TEXT


async def test_what_needs_a_restart_is_said(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        server.write({**SLOW, "limits": {"requests_per_minute": 5}}, max_body_bytes=1000)
        status, report = await ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
        assert (status, report["needs_restart"]) == (200, ["api", "limits of echo"])
        assert "not taken until the server is restarted: api, limits of echo" in server.log


async def test_only_an_operator_may(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        for method, path in (("GET", "models"), ("POST", "reload"), ("POST", "tiers/restore")):
            for headers, expected in (({}, 401), ({"authorization": "Bearer wrong"}, 401), (USER, 403)):
                status, _ = await ask(session, method, f"{server.url}/v1/admin/{path}", headers, {})
                assert status == expected, path
        status, reply = await ask(
            session, "POST", f"{server.url}/v1/admin/tiers/restore", ADMIN, {"model": "echo", "tier": "int8"}
        )
        assert (status, reply["error"]["param"]) == (400, "tier")


def test_the_command(server: Server) -> None:
    program = str(Path(sys.executable).parent / "llm-inference")
    server.write(SLOW, {**SLOW, "name": "second"})
    asked = [program, "reload", "--url", f"{server.url}/v1", "--api-key"]
    done = subprocess.run([*asked, "admin-key"], capture_output=True, text=True, check=True)
    assert done.stdout == "started: second\nstopped: none\nkept: echo\nneeds restart: none\n"
    refused = subprocess.run([*asked, "user-key"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "may not use routes of the group 'admin'" in refused.stderr


def test_models_from_the_terminal(server: Server) -> None:
    program = str(Path(sys.executable).parent / "llm-inference")

    def models(*arguments: str, key: str = "admin-key") -> subprocess.CompletedProcess[str]:
        asked = [program, "models", *arguments, "--url", f"{server.url}/v1", "--api-key", key]
        return subprocess.run(asked, capture_output=True, text=True)

    assert models().stdout.splitlines()[1].split()[:3] == ["echo", "loaded", "fake"]
    assert models("drain", "echo").stdout == "echo: draining (drained by an operator; load it to have it back)\n"
    assert models("load", "echo", "--replica", "echo").stdout == "echo: loaded\n"
    assert models("restart", "echo").stdout == "echo: loaded\n"
    assert models("unload", "echo").stdout == "echo: unloaded (unloaded by an operator)\n"
    assert models("load", "echo").returncode == 0
    for arguments, key, words in (
        (("load",), "admin-key", "say which model"),
        (("load", "nobody"), "admin-key", "is not served here"),
        (("list",), "user-key", "may not use routes of the group 'admin'"),
    ):
        refused = models(*arguments, key=key)
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
