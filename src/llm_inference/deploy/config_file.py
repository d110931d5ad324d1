"""The configuration as the deployed service reads it: what the user said, and what the place demands.

Only keys that were said are written. Secrets are not: each becomes an environment variable, `${NAME}`, and an empty one
lets nothing start, so that a forgotten secret never means an open service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from llm_inference.config.document import dotted
from llm_inference.config.schema import ModelConfig
from llm_inference.deploy import multi_node
from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.deploy.quoting import comment_text, yaml_scalar
from llm_inference.errors import ConfigError

Path = tuple[str | int, ...]

#: User and password of an address: what stands between its slashes and the last at sign of that part.
_USER = re.compile(r"(?<=://)([^/\s]*)(?=@)")
_SECRET_QUERY = re.compile(r"://[^\s]*[?&](password|passwd|token|secret|(api_?)?key)=", re.IGNORECASE)
_SECRET_WORDS = re.compile(r"(^|[_-])(key|token|password|passwd|secret|credentials?|auth)s?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SecretVariable:
    """An environment variable whose value is set outside of the files that are rendered."""

    name: str
    what: str


@dataclass(frozen=True, slots=True)
class DeployedConfig:
    """`data` is the configuration's long form; texts in it are final, `${…}` included. `comments`: path → why."""

    data: dict[str, Any]
    secrets: tuple[SecretVariable, ...]
    comments: Mapping[Path, str]

    def text(self) -> str:
        lines = ["# The service's configuration, made by `llm-inference deploy` from the one that you wrote."]
        if self.secrets:
            lines.append("# ${…} is filled from the environment: no secret stands in this file.")
        return "\n".join([*lines, *self._lines(self.data, (), 0)]) + "\n"

    def _lines(self, section: Mapping[str, Any], path: Path, indent: int) -> list[str]:
        pad, lines = " " * indent, []
        for key, value in section.items():
            here = (*path, key)
            comment = f"  # {comment_text(self.comments[here])}" if here in self.comments else ""
            name = yaml_scalar(key)
            if isinstance(value, dict) and value:
                lines.append(f"{pad}{name}:{comment}")
                lines += self._lines(value, here, indent + 2)
            elif isinstance(value, list) and value and all(isinstance(item, dict) and item for item in value):
                lines.append(f"{pad}{name}:{comment}")
                for index, item in enumerate(value):
                    nested = self._lines(item, (*here, index), indent + 4)
                    lines += [f"{pad}  - {nested[0].lstrip()}", *nested[1:]]
            else:
                lines.append(f"{pad}{name}: {yaml_scalar(value)}{comment}")
        return lines


def deployed_config(facts: DeploymentFacts, place: Literal["container", "host"]) -> DeployedConfig:
    """`place`: a container has its own paths and listens on every interface; a host keeps what the config says."""
    writer = _Writer(facts, in_container=place == "container")
    data = {"api": writer.api(), **writer.sections()}
    data["models"] = [writer.model(index) for index in range(len(facts.needs))]
    return DeployedConfig(data, tuple(writer.secrets), writer.comments)


class _Writer:
    """Collects secrets and comments while the data is made."""

    def __init__(self, facts: DeploymentFacts, *, in_container: bool) -> None:
        self._facts = facts
        self._in_container = in_container
        self._targets = {mount.source: mount.target for mount in facts.mounts}
        self.secrets: list[SecretVariable] = []
        self.comments: dict[Path, str] = {}

    def api(self) -> dict[str, Any]:
        said = self._section(self._facts.config.api, ("api",))
        if self._in_container:
            said |= {"host": "0.0.0.0", "port": self._facts.port}  # noqa: S104 - inside a container there is no other
            self._comment(("api",), "host", "the container's only address; who reaches it is decided outside")
        elif self._facts.config.api.uds is None:
            said["port"] = self._facts.port
        said["log_format"] = "json"
        return said

    def sections(self) -> dict[str, Any]:
        """What is neither `api` nor `models`, each under its own key, where anything of it was said."""
        config = self._facts.config
        found: dict[str, Any] = {}
        for name in type(config).model_fields:
            if name not in ("api", "models"):
                said = self._section(getattr(config, name), (name,))
                found |= {name: said} if said else {}
        return found

    def model(self, index: int) -> dict[str, Any]:
        model, need = self._facts.config.models[index], self._facts.needs[index]
        path: Path = ("models", index)
        said: dict[str, Any] = {"name": _literal(model.name), "model": _literal(model.model)}
        said |= {key: value for key, value in self._section(model, path).items() if key not in said}
        if model.engine == "ray":
            said["ray"] = self._ray(index, path)
        elif need.place != "remote" or model.engine != "auto":
            said["engine"] = need.engine
        nodes = self._facts.choices.nodes
        if nodes > 1:
            said["engine_args"] = said.get("engine_args", {}) | multi_node.leader_args(nodes)
            self._comment(path, "engine_args", f"this machine is the first of {nodes}")
        if need.local_path is not None:
            target = self._targets[need.local_path] if self._in_container else need.local_path
            said["model"] = _literal(target)
        if need.chat_template is not None:
            said["chat_template"] = _literal(need.chat_template)
            self._comment(path, "chat_template", "the file's content, so that one file is all there is")
        if need.place == "cpu" and need.kv_bytes:
            said["kv_cache_memory"] = need.kv_bytes
            self._comment(path, "kv_cache_memory", "pinned: the memory limit was computed with it")
        if need.place in ("cpu", "cuda") and need.engine == "native" and model.device == "auto":
            said["device"] = need.place
        return said

    def _ray(self, index: int, path: Path) -> dict[str, Any]:
        """What both sides must know: those who deploy the application, and the gateway that finds it."""
        model, need = self._facts.config.models[index], self._facts.needs[index]
        said = self._section(model.ray, (*path, "ray"))
        said |= {"engine": need.engine, "address": model.ray.address or "auto", "attach": True}
        said["num_gpus"] = model.ray.num_gpus if model.ray.num_gpus is not None else num_gpus(model, need)
        said["resources"] = dict(model.ray.resources) | {engine_resource(index): 1}
        self._comment((*path, "ray"), "attach", "the replicas are Ray's; this service finds them")
        self._comment((*path, "ray"), "resources", "offered by the machines that are sized for a replica of this model")
        return said

    def _comment(self, path: Path, key: str, why: str) -> None:
        place = (*path, key)
        self.comments[place] = why

    def _section(self, section: BaseModel, path: Path) -> dict[str, Any]:
        """The keys that were said, as plain data; secrets as variables."""
        found: dict[str, Any] = {}
        for key in type(section).model_fields:
            value = getattr(section, key)
            if key not in section.model_fields_set:
                continue
            if key == "warmup" and not value:
                found[key] = False
                continue
            plain = self._plain(value, (*path, key))
            if plain != {} or not isinstance(value, BaseModel):
                found[key] = plain
        return found

    def _plain(self, value: Any, path: Path) -> Any:
        """`value` as the loader must read it to get `value` again."""
        if isinstance(value, BaseModel):
            return self._section(value, path)
        if isinstance(value, SecretStr):
            return self._secret(path)
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, Mapping):
            return {str(key): self._plain(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return value

    def _text(self, text: str, path: Path) -> str:
        """Secrets in a text become variables: user and password of an address, and what is called a secret."""
        if "engine_args" in path and isinstance(path[-1], str) and _SECRET_WORDS.search(path[-1]):
            return self._secret(path)
        if _SECRET_QUERY.search(text):
            raise ConfigError(
                f"{dotted(path)}: the address holds a secret behind its `?`, where it cannot be kept out of files; "
                "write it as scheme://user:password@host"
            )
        # Only that part, so that an empty variable leaves an address which is refused, not an absent one.
        pieces = _USER.split(text)
        for index in range(1, len(pieces), 2):
            pieces[index] = self._secret(path)
        return "".join(piece if index % 2 else _literal(piece) for index, piece in enumerate(pieces))

    def _secret(self, path: Path) -> str:
        """`${NAME}`, with a name made of the path: models[0].api_key is LLM_INFERENCE_MODELS_1_API_KEY."""
        parts = [str(part + 1) if isinstance(part, int) else part for part in path if part != "api"]
        name = re.sub(r"[^A-Z0-9]+", "_", "_".join(["llm_inference", *parts]).upper()).strip("_")
        while name in (secret.name for secret in self.secrets):
            name += "_2"
        self.secrets.append(SecretVariable(name, comment_text(dotted(path))))
        return f"${{{name}}}"


def engine_resource(index: int) -> str:
    """What a Ray node offers that has room for one replica of the model at `index`."""
    return f"engine-{index + 1}"


def num_gpus(model: ModelConfig, need: ModelNeeds) -> int:
    """GPUs of one engine."""
    return model.tensor_parallel_size if need.place == "cuda" else 0


def _literal(text: str) -> str:
    return text.replace("${", "$${")
