"""Profiles of the real command with the default model: two gateway workers, one core, answers going on meanwhile."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.server import RunningServer, command, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

OPERATOR = {"authorization": "Bearer operator-key"}
USER = {"authorization": "Bearer user-key"}


@pytest.fixture(scope="module", params=["torch", "openvino"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    if request.param == "openvino":
        pytest.importorskip("openvino")
    keys = [
        {"name": "operator", "key": "operator-key", "routes": ["inference", "models", "admin"]},
        {"name": "user", "key": "user-key"},
    ]
    file = tmp_path_factory.mktemp("profile") / "config.json"
    file.write_text(json.dumps({"runner": request.param, "api": {"workers": 2, "keys": keys}}))
    with running_server(["--config", str(file)]) as running:
        yield running


async def post(server: RunningServer, path: str, body: dict[str, Any], head: dict[str, str]) -> tuple[int, Any]:
    async with aiohttp.ClientSession(headers=head) as session, session.post(server.base_url + path, json=body) as reply:
        return reply.status, await reply.json()


async def answers(server: RunningServer, until: asyncio.Event) -> int:
    """One after the other; how many."""
    number = 0
    while not until.is_set():
        body = {"prompt": f"{number} times I said", "max_tokens": 20, "ignore_eos": True}
        status, reply = await post(server, "/completions", body, USER)
        assert status == 200
        assert reply["usage"]["completion_tokens"] == 20
        number += 1
    return number


async def test_a_live_engine_goes_on_serving(server: RunningServer) -> None:
    over = asyncio.Event()
    clients = [asyncio.create_task(answers(server, over)) for _ in range(3)]
    wanted = {"steps": 8, "seconds": 60, "trace": True}
    status, report = await post(server, "/admin/profile", wanted, OPERATOR)
    over.set()
    served = await asyncio.gather(*clients)
    assert status == 200, report
    assert min(served) >= 1
    runner = report["profile"]["steps"]["runner"]
    seconds = report["profile"]["trace"]["seconds"]
    assert report["profile"]["steps"]["num_steps"] == 8
    assert sum(seconds.values()) == pytest.approx(report["profile"]["trace"]["wall_s"], rel=1e-3)
    assert {"sampling", "scheduler"} <= seconds.keys()
    assert ("linear" in seconds) == runner.startswith("torch")
    assert ("library" in seconds) == runner.startswith("openvino")
    assert report["profile"]["steps"]["max_num_seqs"] == 64
    assert report["profile"]["front"]["wall_s"] > 0
    assert report["findings"]
    assert any(line.startswith("Likely bottleneck: ") for line in report["text"])
    trace = json.loads(gzip.decompress(base64.b64decode(report["trace_gz"])))
    assert any(one["name"] == "llm:sampling" for one in trace["traceEvents"])


async def test_one_at_a_time_across_workers(server: RunningServer) -> None:
    """Nothing runs, so each lasts as long as it may; connections reach both workers."""
    bodies = [{"seconds": 3.0}] * 6
    replies = await asyncio.gather(*(post(server, "/admin/profile", body, OPERATOR) for body in bodies))
    statuses = sorted(status for status, _ in replies)
    assert statuses == [200, 503, 503, 503, 503, 503]
    [idle] = [reply for status, reply in replies if status == 200]
    if idle["profile"]["steps"]["num_steps"] == 0:  # else a worker was still warming up
        assert idle["findings"][0]["kind"] == "idle"
    assert all("another profile" in reply["error"]["message"] for status, reply in replies if status == 503)


@pytest.mark.parametrize("head", [USER, {}])
async def test_it_takes_the_admins_right(server: RunningServer, head: dict[str, str]) -> None:
    status, _ = await post(server, "/admin/profile", {}, head)
    assert status == (403 if head else 401)


def test_by_the_command(server: RunningServer, tmp_path: Path) -> None:
    flags = ["--url", server.base_url, "--api-key", "operator-key", "--seconds", "0.5"]
    done = subprocess.run(command("profile", *flags), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Likely bottleneck: " in done.stdout
    refused = subprocess.run(command("profile", *flags[:2]), capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: --api-key: ")
    flags[3] = "user-key"
    refused = subprocess.run(command("profile", *flags), capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "may not use routes of the group 'admin'" in refused.stderr
