"""Write deployment files for a configuration: Docker, Compose, Kubernetes, Helm, Ray, systemd, nginx, monitoring, CI.

Nothing is built, started or asked; keys never land in the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_inference.config.schema import ModelConfig
    from llm_inference.deploy.choices import Choices
    from llm_inference.deploy.facts import DeploymentFacts
    from llm_inference.deploy.sizing import Figure

HELP = "write files for Docker, Compose, Kubernetes, Helm, Ray, systemd, nginx, monitoring or CI"
_TARGETS = ("docker", "compose", "kubernetes", "helm", "ray", "systemd", "nginx", "monitoring", "ci")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", choices=_TARGETS, metavar="TARGET", help=", ".join(_TARGETS))
    parser.add_argument("config", type=Path, metavar="CONFIG", help="YAML or JSON, as `serve --config` reads it")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder to write into")
    parser.add_argument("--dry-run", action="store_true", help="print the files and write none")
    parser.add_argument("--force", action="store_true", help="overwrite files that differ")
    parser.add_argument("--explain", action="store_true", help="print each number and why it is what it is")
    names = parser.add_argument_group("names")
    names.add_argument("--name", help="of the service (llm-inference)")
    names.add_argument("--namespace", help="of Kubernetes (llm-inference)")
    names.add_argument("--image", help="of containers (llm-inference:<version>)")
    names.add_argument("--hostname", help="under which clients come through nginx, Ingress or Gateway")
    names.add_argument(
        "--server",
        action="append",
        dest="servers",
        metavar="HOST:PORT",
        help="a server behind nginx, where it is not the configuration's own address; may be repeated",
    )
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), help="where native models with device: auto compute"
    )
    sizes.add_argument("--cpus", type=int, metavar="N", help="whole CPUs, instead of the computed ones")
    sizes.add_argument("--cpu-set", metavar="LIST", help="CPUs of its own, such as 2-5: systemd, Docker, Compose")
    sizes.add_argument("--memory", metavar="SIZE", help="such as 16GiB, instead of what was computed")
    sizes.add_argument("--gpu-memory", metavar="SIZE", help="of one GPU; models that cannot fit are refused")
    sizes.add_argument("--load-time-s", type=float, metavar="SECONDS", help="as measured: the log says it at a start")
    sizes.add_argument(
        "--model-info",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="folder with config.json of a model that is not on this machine; may be repeated",
    )
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--replicas", type=int, metavar="N", help="at least (2)")
    cluster.add_argument("--max-replicas", type=int, metavar="N", help="at most (4, or --replicas)")
    cluster.add_argument("--nodes", type=int, metavar="N", help="machines of one model, with vLLM (1)")
    cluster.add_argument("--autoscaler", choices=("hpa", "keda", "none"), help="of the overlay prod (hpa)")
    cluster.add_argument(
        "--scale-on", choices=("waiting", "running", "cpu", "memory", "gpu"), help="signal of the HPA (waiting)"
    )
    cluster.add_argument("--cache", choices=("shared", "per-pod"), help="one volume of models, or one per pod (shared)")
    cluster.add_argument("--storage-class", metavar="NAME", help="of volumes (the cluster's default)")
    cluster.add_argument(
        "--inference-pool", action="store_true", help="an InferencePool of the Gateway API inference extension"
    )
    cluster.add_argument("--picker-image", metavar="IMAGE", help="its endpoint picker")


def run(args: argparse.Namespace) -> int:
    from llm_inference.config.load import load_config
    from llm_inference.deploy.facts import compute_facts
    from llm_inference.deploy.output import write
    from llm_inference.deploy.render import explained, render
    from llm_inference.errors import ConfigError
    from llm_inference.tools.footprint import measure

    if args.output is None and not (args.dry_run or args.explain):
        raise ConfigError("say where to: --output DIR, or --dry-run to see the files, or --explain for the numbers")
    config = load_config(args.config).config
    if args.target == "ray":
        config = config.model_copy(update={"models": tuple(model.on_ray() for model in config.models)})
    choices = _choices(args)
    if args.target == "ci":
        choices = dataclasses.replace(choices, config_file=_here(args.config))
    infos = _infos(args.model_info, [model.name for model in config.models])
    needs = [measure(_inner(model), choices, infos.get(model.name)) for model in config.models]
    facts = compute_facts(config, needs, choices)
    files = render(args.target, facts)
    if args.explain:
        _print_figures(explained(args.target, facts))
    if args.dry_run:
        _print_files(files)
    elif args.output is not None:
        written = write(files, args.output, force=args.force)
        _say(f"{len(written)} of {len(files)} files written to {args.output}, the rest is as it was")
        _warn(facts)
    return 0


def _here(file: Path) -> str:
    """As the repository sees it, when this is run in it."""
    place, here = file.resolve(), Path.cwd().resolve()
    return place.relative_to(here).as_posix() if place.is_relative_to(here) else place.as_posix()


def _inner(model: ModelConfig) -> ModelConfig:
    """What a replica on Ray runs; the model itself where it runs elsewhere."""
    return model.model_copy(update={"engine": model.ray.engine}) if model.engine == "ray" else model


def _choices(args: argparse.Namespace) -> Choices:
    from llm_inference.deploy.choices import Choices, parse_cpu_set

    said: dict[str, Any] = {
        "memory_bytes": _size("--memory", args.memory),
        "gpu_memory_bytes": _size("--gpu-memory", args.gpu_memory),
    }
    for key in (
        "name", "namespace", "image", "hostname", "device", "cpus", "load_time_s", "replicas", "max_replicas",
        "autoscaler", "scale_on", "cache", "storage_class", "nodes", "inference_pool", "picker_image",
    ):  # fmt: skip
        said[key] = getattr(args, key)
    if args.cpu_set is not None:
        said["cpu_set"] = parse_cpu_set(args.cpu_set)
    if args.servers:
        said["servers"] = tuple(args.servers)
    if args.replicas is not None and args.max_replicas is None:
        said["max_replicas"] = max(args.replicas, Choices().max_replicas)
    return Choices(**{key: value for key, value in said.items() if value is not None})


def _size(flag: str, text: str | None) -> int | None:
    from llm_inference.config.values import parse_size
    from llm_inference.errors import ConfigError

    try:
        return None if text is None else parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def _infos(pairs: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    from llm_inference.errors import ConfigError

    infos = {}
    for pair in pairs:
        # From the right: a model's name may hold an equals sign, a folder of this kind hardly does.
        name, equals, folder = pair.rpartition("=")
        if not equals or name not in names:
            raise ConfigError(f"--model-info: {pair!r} is no NAME=DIR; the models here are {', '.join(names)}")
        infos[name] = Path(folder)
    return infos


def _print_figures(figures: Sequence[Figure]) -> None:
    names = max(len(one.name) for one in figures)
    shown = max(len(one.shown) for one in figures)
    for one in figures:
        lines = textwrap.wrap(one.why, 100) or [""]
        print(f"{one.name:<{names}}  {one.shown:>{shown}}  {lines[0]}")
        for line in lines[1:]:
            print(" " * (names + shown + 4) + line)


def _print_files(files: Mapping[str, str]) -> None:
    for name, text in files.items():
        print(f"==> {name} <==\n{text}")


def _warn(facts: DeploymentFacts) -> None:
    if not facts.has_keys:
        _say('without keys everybody who reaches the service may use it; set api_keys: ["${API_KEY}"]')
    else:
        _say("keys are in none of the files: fill in the secrets as they say")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
