"""A model over several machines: what each of them is told. Today that is tensor parallelism with vLLM.

The leader's share is started by our server, from the configuration; the others' by the command that stands here, which
must say the same of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_inference.config.schema import ServerConfig
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.errors import ConfigError

if TYPE_CHECKING:
    from llm_inference.deploy.config_file import SecretVariable
    from llm_inference.deploy.facts import DeploymentFacts

#: Set by the operator in every container of a group.
_LEADER, _INDEX = "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"

#: Kustomize knows where Kubernetes' own kinds name a ConfigMap, and must be told it of others.
NAMES = """\
nameReference:
  - kind: ConfigMap
    version: v1
    fieldSpecs:
      - kind: LeaderWorkerSet
        path: spec/leaderWorkerTemplate/leaderTemplate/spec/volumes/configMap/name
"""


def refuse_impossible(config: ServerConfig, needs: Sequence[ModelNeeds], nodes: int) -> None:
    """Raises `ConfigError` unless the one model is vLLM's and its GPUs can be shared out evenly."""
    if nodes == 1:
        return
    if len(config.models) > 1:
        raise ConfigError(f"--nodes: {nodes} machines serve one model, and the configuration has {len(config.models)}")
    [model], [need] = config.models, needs
    if need.engine != "vllm" or need.place != "cuda":
        raise ConfigError(
            f"--nodes: of the engines here vllm alone computes a model on several machines, and {model.name} runs with "
            f"{need.engine} on {need.place}"
        )
    if model.tensor_parallel_size % nodes:
        raise ConfigError(
            f"--nodes: tensor_parallel_size is {model.tensor_parallel_size}, which {nodes} machines cannot share evenly"
        )
    if model.model.startswith("pypi:"):
        raise ConfigError(f"--nodes: {model.model}: vLLM on the other machines fetches by hub id or reads a directory")
    for key in ("nnodes", "node_rank", "master_addr", "headless", "program", "command"):
        if key in model.engine_args:
            raise ConfigError(f"engine_args.{key}: with --nodes each machine has its own; leave it out")


def refuse_secrets(secrets: Sequence[SecretVariable]) -> None:
    """Raises `ConfigError` for a secret among `engine_args`: it would be told to the other machines in the open."""
    for secret in secrets:
        if "engine_args" in secret.what:
            raise ConfigError(
                f"{secret.what}: with --nodes it would stand in the files; give it as an environment variable that the "
                "engine reads, in the Secret"
            )


def leader_args(nodes: int) -> dict[str, Any]:
    """`engine_args` of the leader; the text is final, its `${…}` filled where it runs."""
    return {"nnodes": nodes, "node_rank": 0, "master_addr": f"${{{_LEADER}}}"} if nodes > 1 else {}


def worker_command(facts: DeploymentFacts) -> list[str]:
    """vLLM on another machine of the group. `$(…)` is filled by Kubernetes."""
    [model], [need] = facts.config.models, facts.needs
    source = facts.mounts[0].target if facts.mounts else model.model
    words = [need.worker_program, "serve", source, *need.worker_flags]
    own = {"--nnodes": str(facts.choices.nodes), "--node-rank": f"$({_INDEX})", "--master-addr": f"$({_LEADER})"}
    return [
        *(word.replace("$(", "$$(") for word in words),
        "--headless",
        *(word for pair in own.items() for word in pair),
    ]


def worker_env(facts: DeploymentFacts) -> dict[str, str]:
    """`engine_args.env`, as our server gives it to the leader's share."""
    [model] = facts.config.models
    found = model.engine_args.get("env", {})
    return {str(name): str(value).replace("$(", "$$(") for name, value in found.items()}
