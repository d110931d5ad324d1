"""What whoever deploys chooses beside the configuration: names, numbers of replicas, how to scale.

Checked when made, so that no renderer meets a name that its format could not hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from llm_inference.errors import ConfigError
from llm_inference.version import __version__

ScaleOn = Literal["waiting", "running", "cpu", "memory", "gpu"]
Autoscaler = Literal["hpa", "keda", "none"]
Cache = Literal["shared", "per-pod"]

_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_SERVER = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_IMAGE = re.compile(
    r"[a-z0-9][a-z0-9._/-]*(:[0-9]+/[a-z0-9._/-]+)?(:[A-Za-z0-9_][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Raises `ConfigError` for a name that Kubernetes, Docker or nginx would refuse."""

    name: str = "llm-inference"
    namespace: str = "llm-inference"
    image: str = f"llm-inference:{__version__}"
    hostname: str | None = None
    servers: tuple[str, ...] = ()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cpus: int | None = None
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    load_time_s: float | None = None
    replicas: int = 2
    max_replicas: int = 4
    autoscaler: Autoscaler = "hpa"
    scale_on: ScaleOn = "waiting"
    cache: Cache = "shared"
    storage_class: str | None = None
    cpu_set: tuple[int, ...] = ()
    nodes: int = 1
    inference_pool: bool = False
    picker_image: str | None = None
    config_file: str = "config.yaml"

    def __post_init__(self) -> None:
        for flag, text in (("--name", self.name), ("--namespace", self.namespace)):
            if not _LABEL.fullmatch(text) or len(text) > 40:
                raise ConfigError(
                    f"{flag}: {text!r} is no name for Kubernetes: small letters, digits and dashes, a letter first, "
                    "40 at most"
                )
        for flag, image in (("--image", self.image), ("--picker-image", self.picker_image)):
            if image is not None and not _IMAGE.fullmatch(image):
                raise ConfigError(f"{flag}: {image!r} is no image such as registry.example.org/llm-inference:0.1.0")
        for flag, host in (("--hostname", self.hostname), ("--storage-class", self.storage_class)):
            if host is not None and not _HOST.fullmatch(host):
                raise ConfigError(f"{flag}: {host!r} is no name of small letters, digits, dashes and dots")
        for server in self.servers:
            if not _SERVER.fullmatch(server) or int(server.rpartition(":")[2]) > 65535:
                raise ConfigError(f"--server: {server!r} is no HOST:PORT such as 10.0.0.5:8000")
        for flag, number in (
            ("--cpus", self.cpus),
            ("--memory", self.memory_bytes),
            ("--gpu-memory", self.gpu_memory_bytes),
            ("--load-time-s", self.load_time_s),
            ("--replicas", self.replicas or self.autoscaler == "keda"),
            ("--nodes", self.nodes),
        ):
            if number is not None and number <= 0:
                raise ConfigError(f"{flag}: must be above 0")
        if not re.fullmatch(r"[A-Za-z0-9._/-]+", self.config_file):
            raise ConfigError(f"{self.config_file!r}: name the file with letters, digits, dots, dashes, slashes")
        if self.inference_pool and self.picker_image is None:
            raise ConfigError(
                "--inference-pool: say which endpoint picker answers the gateway: --picker-image IMAGE, one of the "
                "Gateway API inference extension"
            )
        if self.max_replicas < self.replicas:
            raise ConfigError(f"--max-replicas is {self.max_replicas}, below the {self.replicas} of --replicas")


def parse_cpu_set(text: str) -> tuple[int, ...]:
    """Numbers of CPUs from a list such as `2-5,8`, each once, in order. Raises `ConfigError`."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not re.fullmatch(r"[0-9]{1,4}", first) or (dash and not re.fullmatch(r"[0-9]{1,4}", last)):
            raise ConfigError(f"--cpu-set: {text!r} is no list of CPUs such as 2-5 or 0,2,4")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ConfigError(f"--cpu-set: {part.strip()} begins above its end")
        found.update(numbers)
    return tuple(sorted(found))


def show_cpu_set(cpus: tuple[int, ...]) -> str:
    """As the kernel, Docker and systemd write it: `2-5,8`."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
