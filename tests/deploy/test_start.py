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
    port, config = free_port(), tmp_path / "config.yaml"
    # Only the port and the path differ from what is deployed: this machine may have port 8000 in use.
    config.write_text(start.config.replace("port: 8000", f"port: {port}"))
    arguments = [str(config) if word == start.config_path else word for word in start.arguments]
    assert str(config) in arguments
    assert start.secrets == ["LLM_INFERENCE_API_KEYS_1"]
    program = str(Path(sys.executable).parent / "llm-inference")

    empty = subprocess.run(
        [program, *arguments], env=os.environ | dict.fromkeys(start.secrets, ""), capture_output=True, check=False
    )
    assert empty.returncode == 2, "an empty key must let nothing start"

    server = subprocess.Popen(
        [program, *arguments], env=os.environ | dict.fromkeys(start.secrets, KEY), stderr=subprocess.DEVNULL
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
