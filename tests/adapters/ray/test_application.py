"""The rendered Serve config deploys replicas in a real cluster; the rendered configuration finds and serves them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import CONFIG_PATH, compute_facts
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.deploy.ray import render_ray
from llm_inference.errors import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]
NEEDS = ModelNeeds(engine="fake", place="cpu", engine_why="as configured")
BIN = Path(sys.executable).parent
MAIN = "import sys; from llm_inference.cli.main import main; sys.exit(main())"
#: As in the RayService: whoever speaks to Ray must have it.
TOKEN = secrets.token_hex(32)
ENV = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}


def rendered(prefix: str) -> dict[str, str]:
    model = ModelConfig.model_validate(
        {"name": "echo", "model": "echo", "engine": "ray"}
        | {"ray": {"engine": "fake", "replicas": 2, "num_cpus": 0.1, "app_prefix": prefix}}
    )
    config = ServerConfig(api=ApiConfig(shutdown_grace_s=5.0), models=(model,))
    return render_ray(compute_facts(config, [NEEDS], Choices()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Cluster:
    address: str
    dashboard: str
    agent_port: int
    tmp: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head that offers what two replicas ask for. It ends with its process, and nobody else's Ray does."""
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: make test-ray")
    folder = tmp_path_factory.mktemp("ray")
    # Ray notes there which cluster was begun last, and others on this machine go by it. Short: its sockets lie there.
    place = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    gcs, dashboard, agent, client = (free_port() for _ in range(4))
    log = (folder / "log").open("wb")
    head = subprocess.Popen(
        [
            str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2", f"--port={gcs}",
            f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
            f"--ray-client-server-port={client}", "--resources", '{"engine-1": 2}', "--object-store-memory=100000000",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
        env=ENV | {"RAY_TMPDIR": str(place)},
    )  # fmt: skip
    log.close()
    try:
        wait_for(f"http://127.0.0.1:{dashboard}/api/version", 60, head)
        yield Cluster(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", agent, str(place))
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(60)
        shutil.rmtree(place, ignore_errors=True)


def ask(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        body: bytes = reply.read()
    return body


def wait_for(url: str, limit_s: float, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        assert process.poll() is None, "it ended"
        try:
            ask(url)
            return
        except (urllib.error.URLError, OSError):
            pass
        assert time.monotonic() < deadline, f"{url} does not answer"
        time.sleep(0.5)


def test_the_applications_are_deployed_found_and_left(cluster: Cluster, tmp_path: Path) -> None:
    files = rendered("attached")
    config, applications = tmp_path / "config.yaml", tmp_path / "serve.yaml"
    port, env = free_port(), ENV | {"RAY_ADDRESS": cluster.address, "RAY_TMPDIR": cluster.tmp}
    config.write_text(files["config.yaml"].replace("port: 8000", f"port: {port}"))
    # Only the path differs: nobody but root may write to /config.
    applications.write_text(files["serve.yaml"].replace(CONFIG_PATH, str(config)))

    # The gateway may come first.
    with (tmp_path / "log").open("wb") as log:
        gateway = subprocess.Popen([sys.executable, "-c", MAIN, "serve", "--config", str(config)], env=env, stderr=log)
    try:
        done = subprocess.run(
            [str(BIN / "serve"), "deploy", str(applications), "-a", cluster.dashboard],
            env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for(f"http://127.0.0.1:{port}/ready", 120, gateway)
        body = json.dumps({"model": "echo", "prompt": "one two three"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert json.load(reply)["choices"][0]["text"] == "one two three"
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        if gateway.poll() is None:
            gateway.kill()
            gateway.wait()
    [(name, found)] = json.loads(ask(f"{cluster.dashboard}/api/serve/applications/"))["applications"].items()
    assert (name, found["status"]) == ("attached-echo", "RUNNING")
    assert found["deployments"]["engine"]["target_num_replicas"] == 2


def test_the_probe_of_the_pods_answers(cluster: Cluster) -> None:
    service = yaml.safe_load(rendered("probe")["rayservice.yaml"])
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    probe = head["readinessProbe"]["httpGet"]
    assert probe["port"] == 52365  # Ray's own, where no other is said
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.agent_port}{probe['path']}", timeout=10) as reply:
        assert reply.read() == b"success"


@pytest.mark.parametrize(
    ("args", "message"),
    [({"model": "m"}, "'config' is missing"), ({"config": "FILE", "model": "x"}, "'x' is not in .*, which has echo")],
)
def test_wrong_arguments(args: dict[str, str], message: str, tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: make test-ray")
    from llm_inference.adapters.ray.application import build

    file = tmp_path / "config.yaml"
    file.write_text(rendered("args")["config.yaml"])
    with pytest.raises(ConfigError, match=message):
        build({key: value.replace("FILE", str(file)) for key, value in args.items()})
