"""Each form's own command, configuration, secrets and probes, taken out of the rendered files, serve for real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from llm_inference.deploy.render import render
from tests.deploy.cases import fake
from tests.deploy.extract import FORMS

KEY = "a-key-of-the-test"


def status(url: str, key: str | None = None, body: object = None) -> int:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, headers=headers, data=json.dumps(body).encode() if body else None)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:
        return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.e2e
@pytest.mark.parametrize("form", FORMS)
def test_it_starts_answers_and_stops(form: str, written, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    start = FORMS[form](written(render(form, fake())))
    port, root = free_port(), tmp_path / "root"

    def inside(text: str) -> str:
        """A path of the form, below `root`: everything that it names must lie in one of its mounts."""
        if not text.startswith("/"):
            return text
        assert any(f"{text}/".startswith(f"{mount}/") for mount in start.mounts), f"{text} is in no mount"
        return f"{root}{text}"

    for mount in start.mounts:
        (root / mount.lstrip("/")).mkdir(parents=True)
    # Only the root and the port differ from what is deployed: this machine may have port 8000 in use.
    arguments = [inside(word) for word in start.arguments]
    config = Path(inside(start.config_path))
    assert str(config) in arguments
    config.write_text(start.config.replace("port: 8000", f"port: {port}"))
    environment = os.environ | {name: inside(value) for name, value in start.environment.items()}
    assert "LLM_INFERENCE_CACHE" in start.environment
    assert start.secrets == ["LLM_INFERENCE_API_KEYS_1"]
    program = str(Path(sys.executable).parent / "llm-inference")

    empty = subprocess.run(
        [program, *arguments], env=environment | dict.fromkeys(start.secrets, ""), capture_output=True, check=False
    )
    assert empty.returncode == 2, "an empty key must let nothing start"

    server = subprocess.Popen(
        [program, *arguments], env=environment | dict.fromkeys(start.secrets, KEY), stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while status(url + start.ready_path) != 200:
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.1)
        assert status(url + start.live_path) == 200
        chat = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        assert status(f"{url}/v1/chat/completions", None, chat) == 401
        assert status(f"{url}/v1/chat/completions", KEY, chat) == 200
        begun = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(start.stop_s) == 0
        assert time.monotonic() - begun < start.stop_s
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
