"""The nginx configuration: the real nginx accepts it, and streams pass through it token by token."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import compute_facts
from llm_inference.deploy.nginx import render_nginx
from llm_inference.errors import ConfigError
from llm_inference.gateway.ui.page import Page
from tests.deploy.cases import FAKE_NEEDS, cpu, fake, gateway
from tests.deploy.test_start import free_port
from tests.deploy.tools import run, tool

HOST = Choices(hostname="llm.example.org")


def configuration(folder: Path, text: str, **ports: int) -> Path:
    """A whole nginx.conf around the rendered part, with a certificate, in a folder of its own."""
    run(
        tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=llm.example.org", "-days", "1",
        "-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem"),
    )  # fmt: skip
    text = text.replace("/etc/ssl/llm-inference/", f"{folder}/").replace("    listen [::]:", "    # listen [::]:")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{ports.get('http', 8080)};")
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{ports.get('https', 8443)} ssl;")
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}\n{text}\n}}\n"
    )
    return file


@pytest.mark.parametrize(
    "facts",
    [
        cpu(),
        gateway(HOST),
        fake(),
        cpu(api_prefix=""),
        cpu(uds="/run/llm-inference/http.sock"),
        cpu(host="::1"),
        cpu(page=False),
    ],
    ids=["cpu", "gateway", "fake", "no-prefix", "socket", "ipv6", "no-page"],
)
def test_nginx_accepts_it(facts, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    [text] = render_nginx(facts).values()
    file = configuration(tmp_path, text)
    run(tool("nginx"), "-t", "-q", "-c", str(file), "-p", str(tmp_path))


def test_what_it_says() -> None:
    [text] = render_nginx(cpu(max_body_bytes=12345, request_timeout_s=77.0)).values()
    assert "client_max_body_size 12345;" in text
    assert "proxy_read_timeout 107s;" in text
    assert "proxy_buffering off;" in text
    assert "proxy_next_upstream off;" in text
    assert "location /v1/ {" in text
    assert "/metrics" not in text.replace("# Probes for whoever watches this proxy. /metrics stays inside.", "")


def test_without_a_prefix_metrics_stay_inside() -> None:
    [text] = render_nginx(cpu(api_prefix="")).values()
    assert "location = /metrics {\n        return 404;" in text


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="--hostname"):
        render_nginx(cpu(Choices()))
    with pytest.raises(ConfigError, match="nginx: the configuration has no keys"):
        render_nginx(cpu(api_keys=()))
    api = ApiConfig.model_validate({"uds": "/run/$host.sock", "key_store": "sqlite"})
    facts = compute_facts(ServerConfig(api=api, models=(ModelConfig(engine="fake"),)), [FAKE_NEEDS], HOST)
    with pytest.raises(ConfigError, match="nginx takes for a variable"):
        render_nginx(facts)


def test_the_pages_files_all_have_names_that_pass() -> None:
    """The pattern is no wildcard over paths: what the page does not have does not reach the server."""
    [text] = render_nginx(cpu()).values()
    found = re.search(r"location ~ (\S+) \{", text)
    assert found is not None
    pattern = re.compile(found[1])
    for path in (*Page("/v1").handlers, "/status.json", "/usage.json"):
        assert pattern.search(path), path
    for path in ("/metrics", "/openapi.json", "/health/detail", "/ui/", "/ui/a/b.js", "/ui/../metrics", "/v1x"):
        assert not pattern.search(path), path
    [without] = render_nginx(cpu(page=False)).values()
    assert "location ~" not in without


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[str]:
    """The fake engine behind the real nginx; the address of the latter."""
    server_port, http, https = free_port(), free_port(), free_port()
    config = tmp_path / "config.yaml"
    config.write_text(
        f"api: {{port: {server_port}, api_keys: [the-key], max_body_bytes: 100000}}\n"
        "models: [{name: echo, model: echo, engine: fake}]\n"
    )
    [text] = render_nginx(cpu(port=server_port, max_body_bytes=100000)).values()
    file = configuration(tmp_path, text, http=http, https=https)
    program = str(Path(sys.executable).parent / "llm-inference")
    server = subprocess.Popen([program, "serve", "--config", str(config)], stderr=subprocess.DEVNULL)
    nginx = subprocess.Popen([tool("nginx"), "-c", str(file), "-p", str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if ask(f"https://127.0.0.1:{https}/ready")[0] == 200:
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"https://127.0.0.1:{https}"
    finally:
        for process in (nginx, server):
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def ask(url: str, body: bytes | None = None, key: str | None = "the-key") -> tuple[int, bytes]:
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.e2e
def test_streams_bodies_and_hidden_paths(proxied: str) -> None:
    chat = {"model": "echo", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 8}
    status, text = ask(f"{proxied}/v1/chat/completions", json.dumps(chat).encode())
    assert status == 200
    assert text.count(b"data: ") > 2
    assert text.rstrip().endswith(b"[DONE]")
    assert ask(f"{proxied}/v1/chat/completions", b" " * 100_001)[0] == 413
    assert ask(f"{proxied}/metrics")[0] == 404
    assert ask(f"{proxied}/health")[0] == 200


@pytest.mark.e2e
def test_the_page_passes_and_what_it_shows_takes_a_key(proxied: str) -> None:
    status, text = ask(f"{proxied}/", key=None)
    assert (status, b"<!doctype html>" in text.lower()) == (200, True)
    for path in re.findall(rb'(?:src|href)="(/?ui/[^"]+)"', text):
        assert ask(f"{proxied}/{path.decode().lstrip('/')}", key=None)[0] == 200, path
    assert ask(f"{proxied}/ui/main.js", key=None)[0] == 200
    for path in ("/status.json", "/usage.json", "/v1/models"):
        assert ask(f"{proxied}{path}", key=None)[0] == 401, path
        assert ask(f"{proxied}{path}")[0] != 401, path
    assert json.loads(ask(f"{proxied}/status.json")[1])["status"] == "ok"
    for path in ("/openapi.json", "/health/detail", "/ui/absent/main.js", "/anything"):
        status, text = ask(f"{proxied}{path}")
        assert (status, b"nginx" in text) == (404, True), path
