"""What watches the service, the same in every form: scrape configuration, alert rules, Grafana dashboards.

The rules are `alerts.py`'s and the panels `dashboards.py`'s; here they become files. Forms that need the rules wrapped
(a PrometheusRule) take `rules`.
"""

from __future__ import annotations

from llm_inference.config.telemetry import AlertsConfig
from llm_inference.deploy.alerts import alerts
from llm_inference.deploy.dashboards import dashboards
from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.quoting import yaml_scalar
from llm_inference.deploy.templating import render

_DASHBOARDS = "monitoring/grafana/dashboards"


def rules(limits: AlertsConfig) -> str:
    """Groups of rules as Prometheus reads them from a file."""
    return render("monitoring/rules.yaml.j2", yaml_scalar, alerts=alerts(limits))


def prometheus(facts: DeploymentFacts, target: str) -> str:
    """Prometheus's own configuration for one static target, `host:port`."""
    return render("monitoring/prometheus.yaml.j2", yaml_scalar, facts=facts, target=target)


def render_monitoring(facts: DeploymentFacts) -> dict[str, str]:
    """For a Prometheus and a Grafana that are there already: nothing but the service on this machine is named."""
    host = facts.config.api.host
    target = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{facts.port}"  # noqa: S104 - compared, not bound
    return {
        "monitoring/prometheus.yaml": prometheus(facts, target),
        "monitoring/rules.yaml": rules(facts.config.telemetry.alerts),
        **dashboard_files(_DASHBOARDS),
    }


def dashboard_files(folder: str) -> dict[str, str]:
    """Each dashboard by its path in `folder`."""
    return {f"{folder}/{name}.json": text for name, text in dashboards().items()}
