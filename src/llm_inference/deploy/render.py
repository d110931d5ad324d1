"""`render(target, facts)`: every form of deployment by its name, facts in, `{path: text}` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_inference.deploy.ci import render_ci
from llm_inference.deploy.compose import render_compose
from llm_inference.deploy.docker import render_docker
from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.helm import render_helm
from llm_inference.deploy.kubernetes import render_kubernetes
from llm_inference.deploy.monitoring import render_monitoring
from llm_inference.deploy.nginx import render_nginx
from llm_inference.deploy.ray import ray_figures, render_ray
from llm_inference.deploy.sizing import Figure
from llm_inference.deploy.systemd import render_systemd

TARGETS: Mapping[str, Callable[[DeploymentFacts], dict[str, str]]] = {
    "docker": render_docker,
    "compose": render_compose,
    "kubernetes": render_kubernetes,
    "helm": render_helm,
    "ray": render_ray,
    "systemd": render_systemd,
    "nginx": render_nginx,
    "monitoring": render_monitoring,
    "ci": render_ci,
}


def explained(target: str, facts: DeploymentFacts) -> tuple[Figure, ...]:
    """The numbers in the files of `target`, each with its reason."""
    return ray_figures(facts) if target == "ray" else facts.figures


def render(target: str, facts: DeploymentFacts) -> dict[str, str]:
    """`target` is a key of `TARGETS`. Raises `ConfigError` for combinations that cannot work there."""
    return TARGETS[target](facts)
