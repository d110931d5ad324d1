"""How a value of somebody else's is written into a file, so that it can be nothing but a value there.

One function for each kind of file. Templates interpolate through these alone (`templating.py`). What a format cannot
say is refused by name rather than left out. Knows nothing of what is written.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from llm_inference.errors import ConfigError

#: Words, paths, and numbers with a unit that no reader takes for a bare number.
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*|[0-9]+(Mi|Gi|s)")
#: Words that some reader of YAML takes for a boolean, a null or a number.
_NOT_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "inf", "nan"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def yaml_scalar(value: Any) -> str:
    """A number, a boolean, a text, or a list or mapping of them in flow style; it reads back as the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _yaml_float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_scalar(str(key))}: {yaml_scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_scalar(item) for item in value) + "]"
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    if ('"' in text or "\\" in text) and "'" not in text and re.fullmatch(r"[ -~]+", text):
        return f"'{text}'"
    return '"' + "".join(_yaml_character(char) for char in text) + '"'


def compose_scalar(value: Any) -> str:
    """As `yaml_scalar`; a `$` is doubled, since Compose fills variables after it has read the YAML."""
    return yaml_scalar(value).replace("$", "$$")


def dockerfile_text(value: Any) -> str:
    """A double-quoted text for ENV, LABEL and ARG. Raises `ConfigError` for line breaks and control characters."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", _one_line(value, "a Dockerfile")) + '"'


def systemd_text(value: Any) -> str:
    """One word of a unit file's setting, `%` and `$` taken literally. Raises `ConfigError` for control characters."""
    text = _one_line(value, "a unit file").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("%", "%%").replace("$", "$$") + '"'


def nginx_text(value: Any) -> str:
    """One word. Raises `ConfigError` for control characters and for `$`, which nginx cannot take literally."""
    text = _one_line(value, "an nginx configuration")
    if "$" in text:
        raise ConfigError(f"{text!r} holds a `$`, which nginx takes for a variable and cannot take literally")
    if re.fullmatch(r"[A-Za-z0-9_./:@-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def shell_word(value: Any) -> str:
    """One word for a POSIX shell. Raises `ConfigError` for control characters."""
    return shlex.quote(_one_line(value, "a shell script"))


def comment_text(value: Any) -> str:
    """Text for a comment: one line, without control characters."""
    return " ".join(_CONTROL.sub(" ", str(value)).split())


def json_text(value: Any) -> str:
    return json.dumps(value)


def _yaml_character(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if " " <= char <= "~":
        return char
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"  # half of a character is none
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _yaml_float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    # YAML 1.1 wants a dot and a sign in an exponent: 1e-05 would be a text.
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    sign = "" if exponent.startswith(("-", "+")) else "+"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{exponent}"


def _one_line(value: Any, where: str) -> str:
    text = str(value)
    if _CONTROL.search(text):
        raise ConfigError(f"{text!r} holds a line break or a control character, which {where} cannot hold")
    return text
