"""From a file, flags and defaults to one checked `ServerConfig` that knows where each value came from.

    defaults  <  file (its `${VAR}` filled from the environment)  <  command-line flags

The file may hold `models:` or, for one model, that model's keys at the top level beside `api:`. Every failure is a
`ConfigError` that names file, line, key and the nearest right thing. Environment variables change nothing by
themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from llm_inference.config.document import Document, KeyPath, dotted, read_document
from llm_inference.config.messages import explain
from llm_inference.config.schema import DEFAULT_MODEL, DEFAULT_MODEL_GENERATION, ModelConfig, ServerConfig
from llm_inference.errors import ConfigError

DEFAULT = "default"


#: Sections that stand at the top, also beside the keys of a single model.
_TOP = tuple(name for name in ServerConfig.model_fields if name != "models")
_WRITTEN_TOP = tuple((section,) for section in _TOP)


@dataclass(frozen=True, slots=True)
class Override:
    """A flag's value: `path` is ("api", key) or ("model", key), the latter for the only model there is."""

    path: tuple[str, ...]
    value: Any
    flag: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """`provenance`: for each value of `config`, by its dotted path ("models[0].max_model_len"), where it came from."""

    config: ServerConfig
    provenance: dict[str, str] = field(default_factory=dict)


def load_config(
    path: str | Path | None = None,
    overrides: Sequence[Override] = (),
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """The effective configuration. `environ` is the process's own where it is None. Raises `ConfigError`."""
    document = Document("the defaults") if path is None else read_document(Path(path), environ)
    draft = _Draft.from_document(document)
    for override in overrides:
        draft.apply(override)
    config = draft.validate()
    return LoadedConfig(config, {dotted(leaf): draft.origin(leaf) for leaf in leaves(config)})


class _Draft:
    """The data before it is checked, always in the long form. `short_form`: the file has its model at the top level."""

    def __init__(self, document: Document, data: dict[str, Any], short_form: bool) -> None:
        self._document = document
        self._data = data
        self._short_form = short_form
        self._flags: dict[KeyPath, str] = {}

    @classmethod
    def from_document(cls, document: Document) -> _Draft:
        data = {} if document.data is None else document.data
        if not isinstance(data, dict):
            raise ConfigError(f"{document.source}: must be a mapping of keys such as `model:` and `api:`")
        # `api:` with nothing under it is as good as no `api:`; so are a model's sections.
        data = {
            key: value for key, value in data.items() if key != "$schema" and (key not in _TOP or value is not None)
        }
        if "models" not in data:
            model = _without_empty_sections({key: value for key, value in data.items() if key not in _TOP})
            long = {key: value for key, value in data.items() if key in _TOP}
            return cls(document, {**long, "models": [model]}, short_form=True)
        stray = [key for key in data if key in ModelConfig.model_fields]
        if stray:
            raise ConfigError(
                f"{document.place((stray[0],))}: {stray[0]}: one model's key beside `models:`; "
                "move it into an entry of `models:`"
            )
        if isinstance(data["models"], list):
            data["models"] = [_without_empty_sections(model) for model in data["models"]]
        return cls(document, data, short_form=False)

    def apply(self, override: Override) -> None:
        """Set a flag's value over whatever stood there."""
        section, *keys = override.path
        models = self._data.get("models")
        if section == "model":
            if not isinstance(models, list) or len(models) != 1:
                number = len(models) if isinstance(models, list) else "no list of"
                raise ConfigError(
                    f"{override.flag} means one model, but {self._document.source} has {number} models; "
                    "set it in the file, in the model's own entry"
                )
            path: KeyPath = ("models", 0, *keys)
            target = models[0]
        else:
            path = (section, *keys)
            target = self._data.setdefault(section, {})
        for key in keys[:-1]:
            target = target.setdefault(key, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise ConfigError(
                f"{self._document.place(self._written(path[:-1]))}: {dotted(path[:-1])}: must be a mapping"
            )
        target[keys[-1]] = override.value
        self._flags[path] = override.flag

    def validate(self) -> ServerConfig:
        try:
            return ServerConfig.model_validate(self._data)
        except ValidationError as error:
            if not self._use_other_readings(error):
                raise self._config_error(error) from error
        try:
            return ServerConfig.model_validate(self._data)
        except ValidationError as error:
            raise self._config_error(error) from error

    def origin(self, path: KeyPath) -> str:
        """Where the value at `path` (long form) came from."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._flags:
                return f"flag {self._flags[path[:end]]}"
        written = self._written(path)
        for end in range(len(written), 0, -1):
            if written[:end] not in self._document.lines:
                continue
            if end < len(written) and not self._is_leaf(written[:end]):
                break  # the section is in the file, this key of it is not
            place = f"file {self._document.place(written[:end])}"
            names = self._variables_in(written[:end])
            return f"environment variable {', '.join(names)} via {place}" if names else place
        return self._default_origin(path)

    def _default_origin(self, path: KeyPath) -> str:
        if path[-2:-1] == ("generation",) and path[-1] in DEFAULT_MODEL_GENERATION:
            model = self._value(path[:2])
            if isinstance(model, dict) and model.get("model", DEFAULT_MODEL) == DEFAULT_MODEL:
                return f"{DEFAULT} (for the default model)"
        if path[-1] == "name":
            return f"{DEFAULT} (from model)"
        return DEFAULT

    def _variables_in(self, written: KeyPath) -> list[str]:
        """Environment variables that filled the value at `written`, or one of its items."""
        every = self._document.variables.items()
        return [name for path, names in every if path[: len(written)] == written for name in names]

    def _is_leaf(self, written: KeyPath) -> bool:
        value = self._value(self._long(written))
        return not isinstance(value, (dict, list))

    def _use_other_readings(self, error: ValidationError) -> bool:
        """Give each filled-in value that did not fit its type its other reading; say whether there was one."""
        used = False
        for details in error.errors(include_url=False):
            written = self._written(details["loc"])
            for end in range(len(written), 0, -1):
                if written[:end] in self._document.alternatives and not self._is_flag(details["loc"]):
                    self._set(self._long(written[:end]), self._document.alternatives[written[:end]])
                    used = True
        return used

    def _is_flag(self, path: KeyPath) -> bool:
        return any(path[:end] in self._flags for end in range(len(path) + 1))

    def _config_error(self, error: ValidationError) -> ConfigError:
        """Every problem a line, in the file's order, flags last."""
        messages: list[tuple[int, str]] = []
        for details in error.errors(include_url=False):
            path = details["loc"]
            written = self._written(path)
            flag = next((self._flags[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._flags), None)
            names = () if flag is not None else self._document.variables.get(written, ())
            # A variable's value is not shown: it may be a secret that stands in the wrong place.
            what = explain(details, self._value(path), short_form=self._short_form, hide_value=bool(names))
            filled = f" (filled from the environment variable {', '.join(names)})" if names else ""
            line = self._document.line(written)
            if flag is not None:
                messages.append((sys.maxsize, f"{flag}: {what}"))
            else:
                key = f" {dotted(written)}:" if written else ""
                messages.append((line or 0, f"{self._document.place(written)}:{key} {what}{filled}"))
        return ConfigError("\n".join(dict.fromkeys(message for _, message in sorted(messages))))

    def _written(self, path: KeyPath) -> KeyPath:
        """The path as the file has it."""
        return path[2:] if self._short_form and path[:1] == ("models",) else path

    def _long(self, written: KeyPath) -> KeyPath:
        return ("models", 0, *written) if self._short_form and written[:1] not in _WRITTEN_TOP else written

    def _value(self, path: KeyPath) -> Any:
        value: Any = self._data
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _set(self, path: KeyPath, value: Any) -> None:
        self._value(path[:-1])[path[-1]] = value


def _without_empty_sections(model: Any) -> Any:
    if not isinstance(model, dict):
        return model
    sections = ("generation", "speculation", "engine_args", "limits")
    return {key: value for key, value in model.items() if value is not None or key not in sections}


def leaves(config: BaseModel, path: KeyPath = ()) -> list[KeyPath]:
    """The paths of all values that hold no other model; an empty list or mapping is a value, its items are too."""
    found: list[KeyPath] = []
    for name in type(config).model_fields:
        found += _leaves_of(getattr(config, name), (*path, name))
    return found


def _leaves_of(value: Any, path: KeyPath) -> list[KeyPath]:
    if isinstance(value, BaseModel):
        return leaves(value, path)
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in _leaves_of(item, (*path, str(key)))]
    if isinstance(value, (list, tuple)) and any(isinstance(item, BaseModel) for item in value):
        return [leaf for index, item in enumerate(value) for leaf in _leaves_of(item, (*path, index))]
    return [path]
