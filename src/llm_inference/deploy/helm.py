"""A small Helm chart whose values hold our own YAML: `config:` is the service's configuration as it is.

The chart's templates are the same for everybody; what was computed stands in `values.yaml`.
"""

from __future__ import annotations

from llm_inference.deploy.config_file import DeployedConfig, deployed_config
from llm_inference.deploy.facts import CACHE_PATH, DeploymentFacts
from llm_inference.deploy.kubernetes import WAITING_PER_POD, egress_ports, mebibytes, scaling
from llm_inference.deploy.quoting import yaml_scalar
from llm_inference.deploy.sizing import GIB, SHARED_MEMORY_BYTES
from llm_inference.deploy.templating import indented, render
from llm_inference.errors import ConfigError
from llm_inference.version import __version__

#: Files of the chart's `templates/`; each has a template of the same name with `.j2`.
_TEMPLATES = (
    "_helpers.tpl",
    "NOTES.txt",
    "autoscaler.yaml",
    "configmap.yaml",
    "deployment.yaml",
    "ingress.yaml",
    "monitoring.yaml",
    "networkpolicy.yaml",
    "pdb.yaml",
    "pvc.yaml",
    "service.yaml",
)


def render_helm(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` for what no container can do, and for models that are files on this machine."""
    facts.require_cluster("helm")
    if facts.mounts:
        raise ConfigError(
            f"{facts.mounts[0].source}: the chart fetches models and mounts none; name the model by a hub id or pypi:, "
            "or use `deploy kubernetes`"
        )
    if facts.choices.hostname is not None:
        facts.require_keys("--hostname")
        if not facts.config.api.api_prefix:
            raise ConfigError("--hostname: api.api_prefix is empty, so a route could not leave /metrics out; set /v1")
    if facts.choices.autoscaler == "keda" or facts.choices.scale_on != "waiting":
        scaling(facts)
        raise ConfigError(
            "--autoscaler keda, --scale-on: the chart scales by an HPA on waiting requests; use `deploy kubernetes`"
        )
    config = deployed_config(facts, "container")
    name = facts.choices.name
    files = {f"{name}/templates/{file}": render(f"helm/{file}.j2", yaml_scalar) for file in _TEMPLATES}
    files[f"{name}/Chart.yaml"] = render("helm/Chart.yaml.j2", yaml_scalar, name=name, version=__version__)
    files[f"{name}/values.yaml"] = render(
        "helm/values.yaml.j2",
        yaml_scalar,
        facts=facts,
        name=name,
        image=_split_image(facts.choices.image),
        config=_config_block(config),
        secrets=config.secrets,
        memory=mebibytes(facts.memory_bytes),
        shm=mebibytes(SHARED_MEMORY_BYTES) if facts.gpus else "",
        cache_size=f"{facts.cache_bytes // GIB}Gi",
        cache_path=CACHE_PATH,
        waiting=WAITING_PER_POD,
        egress_ports=egress_ports(facts),
    )
    files[f"{name}/.helmignore"] = "*.tgz\nsecret*.yaml\n"
    return dict(sorted(files.items()))


def _config_block(config: DeployedConfig) -> str:
    """The configuration's lines without its heading."""
    lines = config.text().splitlines()
    return indented("\n".join(line for line in lines if not line.startswith("#")), 2)


def _split_image(image: str) -> dict[str, str]:
    """Repository and tag; a digest stays with the repository."""
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag or "@" in image:
        return {"repository": image, "tag": ""}
    return {"repository": repository, "tag": tag}
