"""A model over several machines: the groups against the operator's schema, and both halves saying the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.config.load import load_config
from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import compute_facts
from llm_inference.deploy.helm import render_helm
from llm_inference.deploy.kubernetes import render_kubernetes
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.errors import ConfigError
from llm_inference.tools.footprint import measure
from tests.deploy.cases import CPU_NEEDS, VLLM_NEEDS, nodes
from tests.deploy.crds import check
from tests.deploy.test_kubernetes import OVERLAYS, kustomized
from tests.deploy.tools import run, tool

TWO = Choices(nodes=2)


def group(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files["base/leaderworkerset.yaml"])["spec"]["leaderWorkerTemplate"]
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("autoscaler", ["none", "hpa", "keda"])
def test_the_cluster_accepts_it(autoscaler: Any, overlay: str, written: Any, tmp_path: Path) -> None:
    facts = nodes(Choices(nodes=2, autoscaler=autoscaler))
    objects = kustomized(facts, overlay, written(render_kubernetes(facts)))
    [lws] = [one for one in objects if one["kind"] == "LeaderWorkerSet"]
    check(lws, tmp_path)
    assert not [one for one in objects if one["kind"] == "Deployment"]
    said = overlay == "dev" or autoscaler == "none"
    assert ("replicas" in lws["spec"]) is said, "an autoscaler owns that number"
    for scaler in (one for one in objects if one["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")):
        assert scaler["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    [config] = [one for one in objects if one["kind"] == "ConfigMap"]
    leader = lws["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    assert {"name": config["metadata"]["name"]} in [volume.get("configMap") for volume in leader["volumes"]]
    builtin = [one for one in objects if one["kind"] in ("NetworkPolicy", "PersistentVolumeClaim", "Service")]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(builtin))
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))


def test_both_halves_say_the_same(tmp_path: Path) -> None:
    files = render_kubernetes(nodes())
    (tmp_path / "c.yaml").write_text(files["base/config.yaml"])
    environ = {"LLM_INFERENCE_API_KEYS_1": "k", "LWS_LEADER_ADDRESS": "leader.example"}
    [model] = load_config(tmp_path / "c.yaml", environ=environ).config.models
    assert model.engine_args == {
        "env": {"NCCL_DEBUG": "WARN"}, "nnodes": 2, "node_rank": 0, "master_addr": "leader.example",
    }  # fmt: skip
    [worker] = group(files)["workerTemplate"]["spec"]["containers"]
    assert worker["command"][:3] == ["vllm", "serve", model.model]
    words = worker["command"][3:]
    assert words[words.index("--tensor-parallel-size") + 1] == str(model.tensor_parallel_size)
    assert words[words.index("--nnodes") + 1] == "2"
    assert words[words.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert words[words.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "--headless" in words
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in worker["env"]


def test_each_machine_has_its_share() -> None:
    facts = nodes()
    template = group(render_kubernetes(facts))
    [leader] = template["leaderTemplate"]["spec"]["containers"]
    [worker] = template["workerTemplate"]["spec"]["containers"]
    assert leader["resources"]["limits"] == worker["resources"]["limits"]
    assert leader["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert template["size"] == 2
    # The workers outlast the leader's drain.
    spec = template["workerTemplate"]["spec"]
    wait = int(worker["lifecycle"]["preStop"]["exec"]["command"][1])
    assert facts.config.api.shutdown_grace_s < wait < spec["terminationGracePeriodSeconds"]


def test_requests_reach_leaders_alone() -> None:
    files = render_kubernetes(nodes())
    selector = yaml.safe_load(files["base/service.yaml"])["spec"]["selector"]
    template = group(files)
    assert selector.items() <= template["leaderTemplate"]["metadata"]["labels"].items()
    assert not selector.items() <= template["workerTemplate"]["metadata"]["labels"].items()


def test_a_workers_flags_are_those_of_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16", "hidden_size": 64,'
        ' "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256, "num_attention_heads": 4,'
        ' "num_key_value_heads": 2, "max_position_embeddings": 512, "rope_theta": 10000.0}'
    )
    args = {"enforce_eager": True, "max_model_len": 256}
    model = ModelConfig(
        name="m", model="org/m", engine="vllm", tensor_parallel_size=4, max_num_seqs=8, engine_args=args
    )
    need = measure(model, TWO, tmp_path)
    flags = list(need.worker_flags)
    assert need.worker_program == "vllm"
    assert not {"--host", "--port", "--served-model-name", "m", "org/m"} & set(flags)
    for name, value in (("--tensor-parallel-size", "4"), ("--max-num-seqs", "8"), ("--max-model-len", "256")):
        assert flags[flags.index(name) + 1] == value
    assert "--enforce-eager" in flags


def facts_of(model: ModelConfig, need: ModelNeeds = VLLM_NEEDS, choices: Choices = TWO) -> Any:
    return compute_facts(ServerConfig(models=(model,)), [need], choices)


def vllm_model(**more: Any) -> ModelConfig:
    return ModelConfig.model_validate(
        {"name": "m", "model": "org/m", "engine": "vllm", "tensor_parallel_size": 4, **more}
    )


@pytest.mark.parametrize(
    ("model", "need", "message"),
    [
        (ModelConfig(), CPU_NEEDS, "vllm alone computes a model on several machines"),
        (vllm_model(tensor_parallel_size=3), VLLM_NEEDS, "which 2 machines cannot share evenly"),
        (vllm_model(model="pypi:m==1"), VLLM_NEEDS, "fetches by hub id"),
        (
            vllm_model(engine_args={"nnodes": 3}),
            VLLM_NEEDS,
            r"engine_args\.nnodes: with --nodes each machine",
        ),
        (vllm_model(engine_args={"program": "x"}), VLLM_NEEDS, r"engine_args\.program"),
    ],
)
def test_refused(model: ModelConfig, need: ModelNeeds, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        facts_of(model, need)


def test_two_models_do_not_share_a_group() -> None:
    config = ServerConfig(models=(vllm_model(), vllm_model(name="n")))
    with pytest.raises(ConfigError, match="2 machines serve one model, and the configuration has 2"):
        compute_facts(config, [VLLM_NEEDS, VLLM_NEEDS], TWO)


def test_a_secret_is_not_told_in_the_open() -> None:
    facts = facts_of(vllm_model(engine_args={"hf_token": "not-in-any-file"}))
    with pytest.raises(ConfigError, match=r"engine_args\.hf_token: with --nodes it would stand in the files"):
        render_kubernetes(facts)


def test_other_forms_have_none() -> None:
    with pytest.raises(ConfigError, match="helm has no form for a model over several machines"):
        render_helm(facts_of(vllm_model()))


def test_a_program_is_no_variable() -> None:
    need = dataclasses.replace(VLLM_NEEDS, worker_program="vllm", worker_flags=("--x", "$(HOME)"))
    files = render_kubernetes(facts_of(vllm_model(), need))
    assert "$$(HOME)" in group(files)["workerTemplate"]["spec"]["containers"][0]["command"]
