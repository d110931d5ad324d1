"""A systemd unit for one machine without containers."""

from __future__ import annotations

import re

from llm_inference.deploy.choices import show_cpu_set
from llm_inference.deploy.config_file import deployed_config
from llm_inference.deploy.docker import secrets_example
from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.quoting import comment_text, systemd_text
from llm_inference.deploy.sizing import MIB, TEARDOWN_S
from llm_inference.deploy.templating import render
from llm_inference.errors import ConfigError

#: Where the unit looks; `docs/deployment.md` says how things come there.
PROGRAM = "/opt/llm-inference/bin/llm-inference"


def render_systemd(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` for models in places that the unit hides from the service."""
    name = facts.choices.name
    for need in facts.needs:
        if need.local_path is not None and re.match(r"/(home|root|run/user|tmp|var/tmp)(/|$)", need.local_path):
            raise ConfigError(
                f"{need.local_path}: the unit runs without home directories and with a /tmp of its own; move the model "
                f"elsewhere, such as to /srv/models"
            )
    config = deployed_config(facts, "host")
    unit = render(
        "systemd.service.j2",
        systemd_text,
        facts=facts,
        name=name,
        program=PROGRAM,
        secrets=config.secrets,
        cpu_set=show_cpu_set(facts.choices.cpu_set or tuple(range(facts.cpus))),
        # Not quoted: the rest of the line is the text.
        description=comment_text(f"llm-inference: {', '.join(m.name for m in facts.config.models)}").replace("%", "%%"),
        memory_mib=facts.memory_bytes // MIB,
        stop_s=facts.times.drain_s + TEARDOWN_S,
    )
    files = {f"{name}.service": unit, "config.yaml": config.text()}
    if config.secrets:
        files["secrets.env.example"] = secrets_example(config)
    return files
