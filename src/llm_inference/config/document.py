"""A YAML or JSON file as plain data that remembers where each value stood.

YAML's core rules only: `true` and `false` are the booleans (`yes`, `on` and `no` are text), `1e-3` is a number, dates
are text. Duplicate keys, cycles and a second document are errors. JSON files are checked by JSON's own rules first.

`${VAR}` and `${VAR:-fallback}` inside a value are filled from the environment: the result is one value, never markup. A
filled value has two readings, as text and as what YAML would take it for (`${PORT}` → "80" or 80). `data` has the
second where the value stood without quotes; `alternatives` keeps the other one for the loader, which knows the types.
`$${` stands for a literal `${`.

Knows nothing of which keys exist.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llm_inference.errors import ConfigError

#: Keys and indices from the root: ("models", 0, "model").
KeyPath = tuple[str | int, ...]

MAX_FILE_BYTES = 2**20
#: More than any config needs; stops aliases that multiply.
MAX_NODES = 100_000
MAX_DEPTH = 50

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
_MAP, _SEQ = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"


@dataclass(slots=True)
class Document:
    """`lines` are 1-based, of each key (or list item); `variables` names the environment variables in a value."""

    source: str
    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    variables: dict[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    alternatives: dict[KeyPath, Any] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """The line of the value at `path`, or of the nearest thing around it."""
        return next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), None)

    def place(self, path: KeyPath) -> str:
        """ "FILE:LINE" of the value at `path`, or "FILE" where nothing around it has a line."""
        line = self.line(path)
        return self.source if line is None else f"{self.source}:{line}"


def read_document(path: Path, environ: Mapping[str, str] | None = None) -> Document:
    """Read `path`. Raises `ConfigError` that names the file, the line and, for a missing variable, the key."""
    source = str(path)
    try:
        if path.is_dir():
            raise ConfigError(f"{source} is a directory; name the YAML or JSON file in it")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {source}{_neighbours(path)}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the config file {source}: {error.strerror or error}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{source} is larger than {MAX_FILE_BYTES} bytes; that is no config file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{source}:{line}: not UTF-8 text (byte {raw[error.start]:#04x})") from error
    return parse_document(text, source, os.environ if environ is None else environ, is_json=path.suffix == ".json")


def parse_document(text: str, source: str, environ: Mapping[str, str], *, is_json: bool = False) -> Document:
    """Parse `text`; `source` is what messages call it. Raises `ConfigError`."""
    if is_json:
        _check_json(text, source)
        text = _as_yaml(text)
    try:
        loader = _CoreLoader(text)
        root = loader.get_single_node()
        document = Document(source)
        if root is not None:
            document.data = _Builder(document, loader, environ).build(root, (), 0)
        return document
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax_message(error, text, source)) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ConfigError(f"{source}:{line}: a control character ({error.character:#04x}) has no place here") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{source}: not readable as YAML: {type(error).__name__}") from error


class _CoreLoader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's core resolvers instead of 1.1's."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own protocol)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", None),
    ("merge", r"<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _first or list("-+.0123456789")
    )


class _Builder:
    """Nodes to data. Mutates the document it was given."""

    def __init__(self, document: Document, loader: _CoreLoader, environ: Mapping[str, str]) -> None:
        self._document = document
        self._loader = loader
        self._environ = environ
        self._num_nodes = 0

    def build(self, node: yaml.Node, path: KeyPath, depth: int) -> Any:
        self._num_nodes += 1
        self._check_size(node, path, depth)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self._item(item, (*path, index), depth) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise self._error(node, path, f"the tag {node.tag} has no meaning here")

    def _check_size(self, node: yaml.Node, path: KeyPath, depth: int) -> None:
        if self._num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self._error(node, path, "nested or repeated beyond reason; check the aliases (`*name`)")

    def _item(self, node: yaml.Node, path: KeyPath, depth: int) -> Any:
        self._document.lines[path] = node.start_mark.line + 1
        return self.build(node, path, depth + 1)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own_lines: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, path, "a key must be plain text")
            key = _joined_halves(str(key_node.value))
            line = key_node.start_mark.line + 1
            if key in own_lines:
                raise self._error(key_node, (*path, key), f"duplicate key (first in line {own_lines[key]}); keep one")
            own_lines[key] = line
            key_path = (*path, key)
            self._document.lines[key_path] = line
            result[key] = self.build(value_node, key_path, depth + 1)
        for value_node in merged:
            self._merge(value_node, path, depth, result)
        return result

    def _merge(self, node: yaml.Node, path: KeyPath, depth: int, result: dict[str, Any]) -> None:
        """`<<: *other`: the other mapping's keys that are not set here."""
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, path, "`<<` takes a mapping (`*name`) or a list of them")
        self._check_size(node, path, depth)
        self._num_nodes += len(node.value)  # also of keys that are passed over
        for key_node, value_node in node.value:
            if str(key_node.value) not in result:
                rest = yaml.MappingNode(_MAP, [(key_node, value_node)], node.start_mark, node.end_mark)
                result.update(self._mapping(rest, path, depth + 1))

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = str(node.value)
        if "${" not in text:
            return self._read(node.tag, text, node, path)
        filled = _VARIABLE.sub(lambda match: self._variable(match, node, path), text)
        tag = self._loader.resolve(yaml.ScalarNode, filled, (True, False))  # type: ignore[no-untyped-call]
        readings = [self._read(tag, filled, node, path), filled]
        if node.style is not None:  # quoted: text first
            readings.reverse()
        self._document.variables[path] = tuple(match[1] for match in _VARIABLE.finditer(text) if match[1])
        self._document.alternatives[path] = readings[1]
        return readings[0]

    def _variable(self, match: re.Match[str], node: yaml.Node, path: KeyPath) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise self._error(
                node, path, "`${` begins no variable; write ${NAME} or ${NAME:-fallback}, or `$${` for the text"
            )
        if match[2] is not None and "${" in match[2]:
            raise self._error(node, path, f"the fallback of {match[1]} is itself a variable; it must be plain text")
        value = self._environ.get(match[1], "")
        if not value and match[2] is not None:
            return match[2]
        if match[1] not in self._environ:
            advice = f"set it, or give a fallback: ${{{match[1]}:-…}}"
            raise self._error(node, path, f"the environment variable {match[1]} is not set; {advice}")
        return value

    def _read(self, tag: str, text: str, node: yaml.Node, path: KeyPath) -> Any:
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if kind == "str":
            if "\0" in text:
                raise self._error(node, path, "a control character (0x00) has no place here")
            return _joined_halves(text)
        if kind == "null" and text.lower() in ("", "~", "null"):
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            if kind == "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            raise self._error(node, path, f"{text[:40]!r} is not a number that can be read") from None
        if kind in ("bool", "null"):
            raise self._error(node, path, f"{text[:40]!r} is not what its tag {node.tag} says")
        raise self._error(node, path, f"the tag {tag} has no meaning here")

    def _error(self, node: yaml.Node, path: KeyPath, what: str) -> ConfigError:
        where = f"{self._document.source}:{node.start_mark.line + 1}"
        return ConfigError(f"{where}: {dotted(path)}: {what}" if path else f"{where}: {what}")


def _joined_halves(text: str) -> str:
    """JSON spells characters beyond 16 bits as two escapes, which PyYAML leaves as two halves."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dotted(path: KeyPath) -> str:
    """("models", 0, "name") → "models[0].name"."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _check_json(text: str, source: str) -> None:
    try:
        json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not valid JSON: {error}") from error


def _as_yaml(json_text: str) -> str:
    """The same JSON, spelt so that YAML reads it alike: no tabs between tokens, strings in ASCII.

    Valid JSON has raw tabs only between tokens, and characters beyond ASCII only in strings.
    """
    escaped = re.sub(r"[^\x00-\x7e]", lambda match: json.dumps(match[0])[1:-1].replace("\x7f", "\\u007f"), json_text)
    return escaped.replace("\t", " ")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _syntax_message(error: yaml.MarkedYAMLError, text: str, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or "not readable as YAML"
    if mark is None:
        return f"{source}: not valid YAML: {problem}"
    lines = text.splitlines()
    hint = ""
    if mark.line < len(lines) and "${" in lines[mark.line]:
        hint = ' (inside [] or {}, quote a variable: "${VAR}")'
    if "document" in problem:
        problem = "a second document begins here; one file is one config"
    return f"{source}:{mark.line + 1}:{mark.column + 1}: not valid YAML: {problem}{hint}"


def _neighbours(path: Path) -> str:
    """ "; did you mean …?" with a file of that folder whose name is close."""
    import difflib

    try:
        names = [one.name for one in path.parent.iterdir() if one.suffix in (".yaml", ".yml", ".json")]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""
