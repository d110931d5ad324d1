"""Custom resources of operators whose schemas no package registry carries: KubeRay, LeaderWorkerSet, InferencePool.

Always checked: the names of fields against the tables below, and every pod template in them against Kubernetes' own
schema. Where `$LLM_DEPLOY_TOOLS/crds/` holds the operator's CustomResourceDefinition (from a cluster: `kubectl get crd
rayservices.ray.io -o yaml`), also against that, unknown fields included; and then the tables are checked against it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.deploy.tools import VARIABLE, run, tool

#: A table of names: what is under a name, `...` for what this does not look into, "pod" for a pod template.
Fields = Mapping[str, Any]
_GROUP: Fields = {
    "groupName": ..., "replicas": ..., "minReplicas": ..., "maxReplicas": ..., "numOfHosts": ...,
    "rayStartParams": ..., "template": "pod",
}  # fmt: skip
FIELDS: Mapping[str, tuple[str, str, Fields]] = {
    "RayService": (
        "ray.io/v1",
        "rayservices.ray.io",
        {
            "serveConfigV2": ..., "serviceUnhealthySecondThreshold": ..., "deploymentUnhealthySecondThreshold": ...,
            "rayClusterDeletionDelaySeconds": ..., "upgradeStrategy": {"type": ...},
            "rayClusterConfig": {
                "rayVersion": ..., "enableInTreeAutoscaling": ..., "authOptions": {"mode": ..., "secretName": ...},
                "autoscalerOptions": {"resources": ..., "securityContext": ...},
                "headGroupSpec": {"rayStartParams": ..., "template": "pod"},
                "workerGroupSpecs": [_GROUP],
            },
        },
    ),
    "LeaderWorkerSet": (
        "leaderworkerset.x-k8s.io/v1",
        "leaderworkersets.leaderworkerset.x-k8s.io",
        {
            "replicas": ..., "startupPolicy": ...,
            "rolloutStrategy": {"type": ..., "rollingUpdateConfiguration": {"maxUnavailable": ..., "maxSurge": ...}},
            "leaderWorkerTemplate": {
                "size": ..., "restartPolicy": ..., "leaderTemplate": "pod", "workerTemplate": "pod",
            },
        },
    ),
    "InferencePool": (
        "inference.networking.k8s.io/v1",
        "inferencepools.inference.networking.k8s.io",
        {
            "selector": {"matchLabels": ...}, "targetPorts": [{"number": ...}],
            "endpointPickerRef": {"name": ..., "kind": ..., "port": {"number": ...}, "failureMode": ...},
        },
    ),
}  # fmt: skip


def check(thing: dict[str, Any], folder: Path) -> None:
    """Raises `AssertionError` for an object that its operator or Kubernetes would not take. `folder` is for scratch."""
    version, name, fields = FIELDS[thing["kind"]]
    assert thing["apiVersion"] == version
    pods: list[dict[str, Any]] = []
    _walk(thing["spec"], fields, "spec", pods)
    templates = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"t{number}"}, "template": pod}
        for number, pod in enumerate(pods)
    ]
    if templates:
        file = folder / "pod-templates.yaml"
        file.write_text(yaml.safe_dump_all(templates))
        run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))
    schema = definition(name)
    if schema is not None:
        try:
            jsonschema.validate(thing, strict(schema))
        except jsonschema.ValidationError as error:
            raise AssertionError(f"{thing['kind']}: {error.json_path}: {error.message}") from error


def definition(name: str) -> dict[str, Any] | None:
    """The schema of a CustomResourceDefinition that lies among the tools; None where there is none."""
    for file in (Path(os.environ.get(VARIABLE, ".")) / "crds").glob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        if content["metadata"]["name"] == name:
            [stored] = [version for version in content["spec"]["versions"] if version["storage"]]
            schema: dict[str, Any] = stored["schema"]["openAPIV3Schema"]
            return schema
    return None


def strict(schema: Any) -> Any:
    """As the API server reads it: a number or a text where it says so, and no field that it does not know."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    loose = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    # An object without properties is metadata, which the API server checks by itself.
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not loose:
        made["additionalProperties"] = False
    return made


def _walk(value: Any, fields: Any, path: str, pods: list[dict[str, Any]]) -> None:
    if fields == "pod":
        pods.append(value)
    elif isinstance(fields, list):
        for number, item in enumerate(value):
            _walk(item, fields[0], f"{path}[{number}]", pods)
    elif isinstance(fields, Mapping):
        for key, item in value.items():
            assert key in fields, f"{path}.{key}: the operator knows no such field"
            _walk(item, fields[key], f"{path}.{key}", pods)


def unknown_to(schema: dict[str, Any], fields: Any, path: str = "spec") -> list[str]:
    """Names of a table that the operator's schema does not have."""
    if isinstance(fields, list):
        return unknown_to(schema["items"], fields[0], path + "[]")
    if not isinstance(fields, Mapping):
        return []
    known, missing = schema.get("properties", {}), []
    for key, inner in fields.items():
        here = f"{path}.{key}"
        missing += unknown_to(known[key], inner, here) if key in known else [here]
    return missing
