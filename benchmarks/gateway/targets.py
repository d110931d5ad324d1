"""What is measured: our gateway with everything on, and the proxies that are installed, each on one core.

Others are looked for by their commands; PINS says which versions the published numbers are of. vllm-router and LiteLLM
belong into virtual environments of their own, whose commands are given by the environment:

    VLLM_ROUTER=/path/to/venv/bin/vllm-router LITELLM=/path/to/venv/bin/litellm python -m benchmarks.gateway.measure
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CONFIG = Path(__file__).parent / "everything_on.yaml"
KEY = "sk-bench"  # of a server that lives for a minute, on the loopback interface
PINS = {
    "nginx": "1.22.1 (Debian)",
    "vllm-router": "vllm-router==0.1.17",
    "litellm": "litellm[proxy]==1.106.0 opentelemetry-sdk",
}
#: One for what is measured, one for the load and the mock.
TARGET_CPU, LOAD_CPU = 0, 1
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Target:
    """A running proxy. `pids`: itself and its children, whose CPU time and memory count together."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    key: str = KEY

    def cpu_s(self) -> float:
        total = 0
        for pid in self._pids():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def rss_mb(self) -> float:
        kib = 0
        for pid in self._pids():
            with suppress(OSError):
                found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
                kib += int(found[1]) if found else 0
        return kib / 1024

    def _pids(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(entry.name))
        found = [self.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found


@contextmanager
def mock_upstream() -> Iterator[int]:
    """The port of a mock on the load's core."""
    argv = [sys.executable, "-m", "benchmarks.gateway.mock_upstream"]
    with _running(argv, LOAD_CPU, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def ours(upstream: int, scratch: Path, config: Path = CONFIG) -> Iterator[Target]:
    """`llm-inference serve` of `config`."""
    log = scratch / "gateway.log"
    env = {
        **os.environ,
        "BENCH_KEY": KEY,
        "BENCH_STATE": str(scratch / "state"),
        "BENCH_UPSTREAM": f"http://127.0.0.1:{upstream}",
    }
    argv = [sys.executable, "-m", "llm_inference.cli.main", "serve", "--config", str(config)]
    with log.open("wb") as errors, _running(argv, TARGET_CPU, stderr=errors, env=env) as process:
        port = int(_said(process, log, r"serving .* on http://127\.0\.0\.1:(\d+)"))
        yield Target("llm-inference", port, process)


@contextmanager
def nginx(upstream: int, scratch: Path) -> Iterator[Target]:
    """One worker that passes everything on, streams unbuffered, with connections to the upstream kept."""
    port = _free_port()
    config = scratch / "nginx.conf"
    config.write_text(
        f"""daemon off; worker_processes 1; pid {scratch}/nginx.pid; error_log {scratch}/nginx.err;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {scratch}/b; proxy_temp_path {scratch}/p; keepalive_requests 10000000;
  fastcgi_temp_path {scratch}/f; uwsgi_temp_path {scratch}/u; scgi_temp_path {scratch}/s;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 10000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }} }}
"""
    )
    command = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert command
    with _running([command, "-c", str(config), "-p", str(scratch)], TARGET_CPU) as process:
        _await_port(port, process)
        yield Target("nginx", port, process)


@contextmanager
def vllm_router(upstream: int, scratch: Path) -> Iterator[Target]:
    port = _free_port()
    argv = [os.environ["VLLM_ROUTER"], "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--prometheus-port", str(_free_port()), "--worker-urls", f"http://127.0.0.1:{upstream}"]
    with (scratch / "router.log").open("wb") as log, _running(argv, TARGET_CPU, stdout=log, stderr=log) as process:
        _await_port(port, process)
        time.sleep(2)  # its worker is found healthy
        yield Target("vllm-router", port, process)


@contextmanager
def litellm(upstream: int, scratch: Path) -> Iterator[Target]:
    port = _free_port()
    config = scratch / "litellm.yaml"
    config.write_text(
        "model_list:\n  - model_name: mock\n    litellm_params: {model: openai/mock, api_key: x, api_base: "
        f'"http://127.0.0.1:{upstream}/v1"}}\ngeneral_settings: {{master_key: {KEY}}}\n'
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    argv = [os.environ["LITELLM"], "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with (scratch / "litellm.log").open("wb") as log, _running(argv, TARGET_CPU, stdout=log, stderr=log, env=env) as it:
        _await_port(port, it, 90.0)
        yield Target("litellm", port, it)


def available() -> dict[str, object]:
    """Name → what starts it, of all that are here."""
    found: dict[str, object] = {}
    if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        found["nginx"] = nginx
    found["llm-inference"] = ours
    if os.environ.get("VLLM_ROUTER"):
        found["vllm-router"] = vllm_router
    if os.environ.get("LITELLM"):
        found["litellm"] = litellm
    return found


@contextmanager
def _running(argv: list[str], cpu: int, **kwargs: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["taskset", "-c", str(cpu), *argv], **kwargs)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _said(process: subprocess.Popen[bytes], log: Path, pattern: str, timeout_s: float = 60.0) -> str:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def _await_port(port: int, process: subprocess.Popen[bytes], timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        assert process.poll() is None, f"it ended with {process.returncode}"
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5):
            return
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
