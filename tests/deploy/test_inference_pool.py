"""The InferencePool and what goes with it, against the schemas of its operators and of Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.deploy.choices import Choices
from llm_inference.deploy.kubernetes import render_kubernetes
from llm_inference.errors import ConfigError
from llm_inference.telemetry.metrics.table import METRICS
from tests.deploy.cases import cpu
from tests.deploy.crds import check
from tests.deploy.test_kubernetes import check_custom, kustomized
from tests.deploy.tools import run, tool

POOL = Choices(inference_pool=True, picker_image="picker:1", hostname="llm.example.org")


@pytest.fixture
def objects(written: Any) -> dict[str, dict[str, Any]]:
    found = kustomized(cpu(POOL), "prod", written(render_kubernetes(cpu(POOL))))
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def test_the_cluster_accepts_it(objects: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    check(objects["InferencePool/llm-inference"], tmp_path)
    check_custom([objects["HTTPRoute/llm-inference-pool"]])
    builtin = [one for name, one in objects.items() if name.endswith("/llm-inference-picker")]
    assert [one["kind"] for one in builtin] == ["ServiceAccount", "Role", "RoleBinding", "Service", "Deployment"]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(builtin))
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))


def test_everything_points_at_something(objects: dict[str, dict[str, Any]]) -> None:
    pool, picker = objects["InferencePool/llm-inference"]["spec"], objects["Service/llm-inference-picker"]
    assert pool["endpointPickerRef"]["name"] == picker["metadata"]["name"]
    assert pool["endpointPickerRef"]["port"]["number"] == picker["spec"]["ports"][0]["port"]
    server = objects["Deployment/llm-inference"]["spec"]["template"]
    assert pool["selector"]["matchLabels"].items() <= server["metadata"]["labels"].items()
    assert pool["targetPorts"] == [{"number": server["spec"]["containers"][0]["ports"][0]["containerPort"]}]
    [rule] = objects["HTTPRoute/llm-inference-pool"]["spec"]["rules"]
    assert [ref["name"] for ref in rule["backendRefs"]] == ["llm-inference"]
    picker_pod = objects["Deployment/llm-inference-picker"]["spec"]["template"]
    assert not pool["selector"]["matchLabels"].items() <= picker_pod["metadata"]["labels"].items()
    [subject] = objects["RoleBinding/llm-inference-picker"]["subjects"]
    assert (subject["name"], subject["namespace"]) == ("llm-inference-picker", "llm-inference")
    assert "Ingress/llm-inference" not in objects, "the pool's route takes its place"


def test_the_picker_reads_metrics_that_there_are(objects: dict[str, dict[str, Any]]) -> None:
    [container] = objects["Deployment/llm-inference-picker"]["spec"]["template"]["spec"]["containers"]
    asked = {word.partition("=")[2] for word in container["args"] if "-metric=" in word}
    assert len(asked) == 3
    assert asked <= {f"llm_inference_{metric.name}" for metric in METRICS}


@pytest.mark.parametrize(
    ("api", "message"),
    [
        ({"api_keys": ()}, "--inference-pool: the configuration has no keys"),
        ({"api_prefix": ""}, "--inference-pool: api.api_prefix is empty"),
        ({"open_metrics": False}, "the endpoint picker reads /metrics without a key"),
    ],
)
def test_refused(api: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render_kubernetes(cpu(Choices(inference_pool=True, picker_image="picker:1"), **api))
