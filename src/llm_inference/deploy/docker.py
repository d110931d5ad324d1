"""A Dockerfile for CPUs and one for NVIDIA GPUs, with what their build context needs.

The context is the rendered folder itself: a wheel of llm-inference in `wheels/`, or the package from an index.
"""

from __future__ import annotations

from typing import Literal

from llm_inference.deploy import pins
from llm_inference.deploy.choices import show_cpu_set
from llm_inference.deploy.config_file import DeployedConfig, deployed_config
from llm_inference.deploy.facts import CACHE_PATH, CONFIG_PATH, DeploymentFacts
from llm_inference.deploy.quoting import dockerfile_text, json_text, yaml_scalar
from llm_inference.deploy.sizing import PROBE_PERIOD_S
from llm_inference.deploy.templating import render
from llm_inference.version import __version__

Kind = Literal["cpu", "cuda"]


def render_docker(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` for what no container can do."""
    facts.require_container("docker")
    return build_files(facts) | config_files(facts, deployed_config(facts, "container"))


def kinds(facts: DeploymentFacts) -> tuple[Kind, ...]:
    """Images that can serve this configuration: the native engine runs on both, unless the config wants a GPU."""
    if facts.gpus or facts.engines:
        return ("cuda",)
    pinned_to_cpu = any(model.device == "cpu" for model in facts.config.models) or facts.choices.device == "cpu"
    remote = all(need.place == "remote" for need in facts.needs)
    return ("cpu",) if pinned_to_cpu or remote else ("cpu", "cuda")


def build_files(facts: DeploymentFacts) -> dict[str, str]:
    """Everything that `docker build` reads."""
    files = {f"Dockerfile.{kind}": _dockerfile(facts, kind) for kind in kinds(facts)}
    files[".dockerignore"] = _DOCKERIGNORE
    files["constraints.txt"] = _constraints(facts)
    files["wheels/README.md"] = _WHEELS
    return files


def config_files(facts: DeploymentFacts, config: DeployedConfig) -> dict[str, str]:
    """The configuration to be mounted, and the names of its secrets."""
    files = {"config/config.yaml": config.text()}
    if config.secrets:
        files["secrets.env.example"] = secrets_example(config)
    return files


def secrets_example(config: DeployedConfig) -> str:
    """An environment file with every secret empty; an empty key is refused at the start."""
    lines = [
        "# Copy to secrets.env, fill in, chmod 600, and keep it out of version control.",
        "# While a key is empty the server refuses to start: a forgotten one never means an open door.",
    ]
    for secret in config.secrets:
        lines += [f"# {secret.what}", f"{secret.name}="]
    return "\n".join(lines) + "\n"


def _dockerfile(facts: DeploymentFacts, kind: Kind) -> str:
    return render(
        "docker/Dockerfile.j2",
        dockerfile_text,
        facts=facts,
        kind=kind,
        base_image=pins.CUDA_IMAGE if kind == "cuda" else pins.PYTHON_IMAGE,
        torch=pins.TORCH,
        version=__version__,
        requirement=f"llm-inference[{','.join(_extras(facts, kind))}]=={__version__}",
        engines=[(name, pins.ENGINE_PACKAGES[name]) for name in facts.engines],
        compiles=any(pins.ENGINE_PACKAGES[name].compiles for name in facts.engines),
        config_path=CONFIG_PATH,
        cache_path=CACHE_PATH,
        period_s=PROBE_PERIOD_S,
        secrets=deployed_config(facts, "container").secrets,
        cpu_set=show_cpu_set(facts.choices.cpu_set),
        title=", ".join(model.name for model in facts.config.models),
        yaml=yaml_scalar,
        json=json_text,
    )


def _extras(facts: DeploymentFacts, kind: Kind) -> list[str]:
    """Extras of our package: what the configuration may come to use without a new image, and what it needs."""
    extras = ["cpu", "store"] if kind == "cpu" else ["store"]
    extras += ["ray"] if facts.on_ray else []
    return [*extras, "triton"] if any(need.engine == "triton" for need in facts.needs) else extras


def _constraints(facts: DeploymentFacts) -> str:
    head = "# Versions in the image. Raise them here, build, run your tests, deploy.\n"
    packages = [*pins.PACKAGES, *([f"ray=={pins.RAY_VERSION}"] if facts.on_ray else [])]
    return head + "".join(f"{package}\n" for package in packages)


_DOCKERIGNORE = """\
# Only what the Dockerfiles copy gets into the build: no secret, no model, no configuration.
*
!constraints.txt
!wheels
"""

_WHEELS = """\
# Wheels for the image

A wheel of llm-inference that lies here is installed; without one the package index is asked for it.

    pip wheel --no-deps --wheel-dir wheels PATH_OF_THE_REPOSITORY
"""
