"""Docker Compose: the server for CPU or GPU, and beside it Redis, PostgreSQL, Prometheus and Grafana, by profiles."""

from __future__ import annotations

from llm_inference.deploy import docker, monitoring, pins
from llm_inference.deploy.choices import show_cpu_set
from llm_inference.deploy.config_file import deployed_config
from llm_inference.deploy.facts import CACHE_PATH, DeploymentFacts
from llm_inference.deploy.quoting import compose_scalar
from llm_inference.deploy.sizing import PROBE_PERIOD_S
from llm_inference.deploy.templating import render


def render_compose(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` for what no container can do."""
    facts.require_container("compose")
    config = deployed_config(facts, "container")
    files = docker.build_files(facts) | docker.config_files(facts, config)
    files["compose.yaml"] = render(
        "compose/compose.yaml.j2",
        compose_scalar,
        facts=facts,
        kinds=docker.kinds(facts),
        secrets=config.secrets,
        pins=pins,
        cpu_set=show_cpu_set(facts.choices.cpu_set),
        cache_path=CACHE_PATH,
        period_s=PROBE_PERIOD_S,
    )
    files["passwords.env.example"] = _PASSWORDS
    files["monitoring/prometheus.yaml"] = monitoring.prometheus(facts, f"llm-inference:{facts.port}")
    files["monitoring/rules.yaml"] = monitoring.rules(facts.config.telemetry.alerts)
    files |= monitoring.dashboard_files("monitoring/grafana/dashboards")
    files["monitoring/grafana/provisioning/datasources/prometheus.yaml"] = _DATA_SOURCE
    files["monitoring/grafana/provisioning/dashboards/dashboards.yaml"] = _DASHBOARDS
    return files


_PASSWORDS = """\
# Copy to passwords.env, fill in, chmod 600, and keep it out of version control.
# PostgreSQL refuses to start without a password. Grafana's own default is admin/admin: do set it.
POSTGRES_PASSWORD=
GF_SECURITY_ADMIN_PASSWORD=
"""

_DATA_SOURCE = """\
apiVersion: 1
datasources:
  - name: Prometheus
    type: prometheus
    access: proxy  # Grafana's server asks, not the browser
    url: http://prometheus:9090
    isDefault: true
"""

_DASHBOARDS = """\
apiVersion: 1
providers:
  - name: llm-inference
    type: file
    allowUiUpdates: false  # the file is the truth
    options: {path: /var/lib/grafana/dashboards}
"""
