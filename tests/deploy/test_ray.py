"""The RayService against the operator's schema and Kubernetes' own, and what it must say. A real Ray deploys the
applications in `tests/adapters/ray/test_application.py`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.config.load import load_config
from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy import sizing
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import compute_facts
from llm_inference.deploy.ray import RAY_NODE_BYTES, render_ray
from llm_inference.deploy.render import explained
from llm_inference.errors import ConfigError
from tests.deploy.cases import CPU_NEEDS, MIB, REMOTE_NEEDS, cpu, on_ray
from tests.deploy.crds import check
from tests.deploy.tools import run, tool


def kustomized(folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(folder))))


def service(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files["rayservice.yaml"])
    return found


def groups(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {group["groupName"]: group for group in service(files)["spec"]["rayClusterConfig"]["workerGroupSpecs"]}


def test_the_cluster_accepts_it(written: Any, tmp_path: Path) -> None:
    folder = written(render_ray(on_ray()))
    objects = kustomized(folder)
    [ray] = [one for one in objects if one["kind"] == "RayService"]
    check(ray, tmp_path)
    file = tmp_path / "all.yaml"
    builtin = [one for one in objects if one["kind"] != "RayService"]
    file.write_text(yaml.safe_dump_all([*builtin, yaml.safe_load((folder / "secret.example.yaml").read_text())]))
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))
    assert {"Namespace", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"} <= {
        one["kind"] for one in builtin
    }


def test_a_changed_configuration_is_a_changed_cluster(written: Any) -> None:
    objects = kustomized(written(render_ray(on_ray())))
    [ray] = [one for one in objects if one["kind"] == "RayService"]
    [config] = [one for one in objects if one["kind"] == "ConfigMap"]
    cluster = ray["spec"]["rayClusterConfig"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    names = {
        volume["configMap"]["name"]
        for pod in pods
        for volume in pod["template"]["spec"]["volumes"]
        if volume["name"] == "config"
    }
    assert names == {config["metadata"]["name"]}
    assert config["metadata"]["name"].startswith("llm-inference-config-")


def test_each_pod_holds_one_replica() -> None:
    found = groups(render_ray(on_ray()))
    assert list(found) == ["gateway", "engine-1", "engine-2"]
    small, large = found["engine-1"], found["engine-2"]
    assert (small["minReplicas"], small["maxReplicas"]) == (2, 4)
    for number, group in ((1, small), (2, large)):
        # KubeRay writes it into a shell's command line, which takes one pair of quotes away.
        assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {f"engine-{number}": 1}
    [container] = small["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert container["resources"]["requests"] == limits
    own = sizing.host_bytes(ModelConfig(kv_cache_memory=2**30), CPU_NEEDS)
    assert int(limits["memory"].removesuffix("Mi")) * MIB >= own + RAY_NODE_BYTES
    assert large["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert large["rayStartParams"]["num-gpus"] == "2"


def test_gateways_serve_what_ray_deploys(tmp_path: Path) -> None:
    files = render_ray(on_ray())
    (tmp_path / "config.yaml").write_text(files["config.yaml"])
    config = load_config(tmp_path / "config.yaml", environ={"LLM_INFERENCE_API_KEYS_1": "k"}).config
    assert [(m.engine, m.ray.engine, m.ray.attach, m.ray.address) for m in config.models] == [
        ("ray", "native", True, "auto"),
        ("ray", "vllm", True, "auto"),
    ]
    assert [(m.ray.num_gpus, m.ray.resources) for m in config.models] == [(0, {"engine-1": 1}), (2, {"engine-2": 1})]
    applications = yaml.safe_load(service(files)["spec"]["serveConfigV2"])
    assert applications == yaml.safe_load(files["serve.yaml"])
    assert [one["name"] for one in applications["applications"]] == [
        "llm-inference-SmolLM2-135M-Instruct",
        "llm-inference-large",
    ]
    assert [one["args"]["model"] for one in applications["applications"]] == [m.deployment for m in config.models]
    assert {one["route_prefix"] for one in applications["applications"]} == {None}, "clients come through the gateways"


def test_a_gateway_is_the_first_process_and_a_member_of_the_cluster() -> None:
    gateway = groups(render_ray(on_ray()))["gateway"]
    [container] = gateway["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/bash", "-c"]
    assert container["args"] == ["$KUBERAY_GEN_RAY_START_CMD & exec llm-inference serve --config /config/config.yaml"]
    assert gateway["template"]["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    assert gateway["rayStartParams"]["num-cpus"] == "0", "no replica may land here"
    spec = gateway["template"]["spec"]
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pre_stop + on_ray().config.api.shutdown_grace_s


def test_only_the_service_and_the_cluster_itself_reach_it() -> None:
    documents = {one["kind"]: one for one in yaml.safe_load_all(render_ray(on_ray())["gateway.yaml"])}
    selector = documents["Service"]["spec"]["selector"]
    labels = groups(render_ray(on_ray()))["gateway"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    # Only so, and only as a number, for pods whose owner Kubernetes does not know how to scale.
    assert "maxUnavailable" not in documents["PodDisruptionBudget"]["spec"]
    assert documents["PodDisruptionBudget"]["spec"]["minAvailable"] == on_ray().choices.replicas - 1
    inside, outside = documents["NetworkPolicy"]["spec"]["ingress"]
    assert "ports" not in inside
    assert outside["ports"] == [{"port": "http"}]
    assert service(render_ray(on_ray()))["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_the_image_has_ray(written: Any) -> None:
    files = render_ray(on_ray())
    assert "llm-inference[store,ray]==" in files["image/Dockerfile.cuda"]
    assert "ln -s /opt/llm-inference/bin/ray /usr/local/bin/ray" in files["image/Dockerfile.cuda"]
    assert "ray==2." in files["image/constraints.txt"]
    folder = written(files)
    run(tool("hadolint"), str(folder / "image" / "Dockerfile.cuda"))


def revisions(facts: Any) -> list[str]:
    applications = yaml.safe_load(render_ray(facts)["serve.yaml"])["applications"]
    return [one["args"]["revision"] for one in applications]


def test_a_changed_model_is_deployed_anew_and_no_other() -> None:
    before = on_ray()
    small, large = before.config.models
    changed = before.config.model_copy(update={"models": (small.model_copy(update={"max_num_seqs": 3}), large)})
    after = revisions(dataclasses.replace(before, config=changed))
    assert [one == two for one, two in zip(revisions(before), after, strict=True)] == [False, True]


def test_the_numbers_explained_are_those_of_the_pods() -> None:
    figures = {figure.name: figure.shown for figure in explained("ray", on_ray())}
    found = groups(render_ray(on_ray()))
    for name in ("gateway", "engine-1", "engine-2"):
        limit = found[name]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
        assert figures[f"{name} pods"] == sizing.show_bytes(int(limit.removesuffix("Mi")) * MIB)
    assert "memory" not in figures, "there is no service as a whole"


def test_refused() -> None:
    remote = ServerConfig(models=(ModelConfig(name="m", model="m", url="http://10.0.0.1:1"),))
    with pytest.raises(ConfigError, match="nothing for a Ray cluster to do"):
        render_ray(compute_facts(remote, [REMOTE_NEEDS], Choices()))
    with pytest.raises(ConfigError, match="nothing for a Ray cluster to do"):
        render_ray(cpu())
    local = dataclasses.replace(CPU_NEEDS, local_path="/srv/m", download_bytes=0)
    config = ServerConfig(models=(ModelConfig(model="/srv/m").on_ray(),))
    with pytest.raises(ConfigError, match="pods on many machines do not see this directory"):
        render_ray(compute_facts(config, [local], Choices()))


def test_other_forms_have_no_ray() -> None:
    with pytest.raises(ConfigError, match="use `deploy ray`"):
        on_ray().require_cluster("kubernetes")
