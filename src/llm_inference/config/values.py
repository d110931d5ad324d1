"""The scalar values that a config may hold beyond plain numbers and text: sizes, precisions, lists.

Pure functions and annotated types. Raises `ValueError` with a message for people; where the value stood is the
loader's business.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema

DType = Literal["auto", "float32", "float16", "bfloat16"]
Precision = Literal["auto", "float32", "float16", "bfloat16", "int8", "int4"]

_PRECISION_ALIASES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
_FLOATS = ("float32", "float16", "bfloat16")
_SIZE_UNITS = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")


def parse_size(value: Any) -> int:
    """Bytes, from a whole number or text such as "512MB" (10**6) or "2 GiB" (2**30)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError('must be a number of bytes or a size with its unit, such as "2GiB" or "512MB"')
    size = float(match[1]) * unit
    if math.isinf(size):
        raise ValueError("is larger than any memory")
    return math.floor(size)


def parse_precision(value: Any) -> Any:
    """The long name of a precision ("fp16" → "float16"); anything else unchanged, for the type to judge."""
    return _PRECISION_ALIASES.get(value, value) if isinstance(value, str) else value


def parse_dtype(value: Any) -> Any:
    """Like `parse_precision`, but integer formats are sent to the key where they belong."""
    if value in ("int8", "int4", "fp8", "awq", "gptq"):
        raise ValueError(f'"{value}" is a quantization, not a dtype: write `quantization: {value}`')
    return parse_precision(value)


def parse_quantization(value: Any) -> Any:
    """Lower-cased; a float format is sent to `dtype`."""
    if isinstance(value, str) and parse_precision(value) in _FLOATS:
        raise ValueError(f'"{value}" is a dtype, not a quantization: write `dtype: {parse_precision(value)}`')
    return value.lower() if isinstance(value, str) else value


def parse_urls(value: Any) -> Any:
    """A list of URLs as one text, with spaces between them; anything else unchanged, for the type to judge."""
    if isinstance(value, (list, tuple)):
        if not value or not all(isinstance(url, str) and url and not re.search(r"\s", url) for url in value):
            raise ValueError("must be a URL, or a list of at least one")
        return " ".join(value)
    return value


def check_urls(text: str) -> None:
    """Of servers, with white space or commas between them."""
    for url in re.split(r"[\s,]+", text.strip()):
        parts = urlsplit(url)
        try:
            host = (parts.hostname or "").encode("idna")
        except UnicodeError:
            host = b""
        if parts.scheme not in ("http", "https", "grpc") or not host.strip(b"."):
            raise ValueError('must begin with http:// or https:// and name a host, such as "http://10.0.0.5:8000"')
        if parts.port == 0:  # asking for it raises `ValueError` for what is none
            raise ValueError("nobody listens on port 0")


def parse_warmup(value: Any) -> Any:
    """False means no prompts; True would say nothing and is refused."""
    if value is False:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of prompts, or false for no warm-up")
    return value


def check_secret(value: SecretStr) -> SecretStr:
    """A key as a header can carry it. Files often end with a line break, which then is in the variable, too."""
    text = value.get_secret_value()
    if not (text.isascii() and text.isprintable()) or text != text.strip():
        raise ValueError(
            "holds white space at its end, a line break or another character that no header carries; "
            "look at what fills it"
        )
    return value


def parse_device_map(value: Any) -> Any:
    """A strategy's name, or a mapping of module names to devices."""
    devices = value.values() if isinstance(value, dict) else ()
    if isinstance(value, str) or (isinstance(value, dict) and all(type(device) in (str, int) for device in devices)):
        return value
    raise ValueError('must be the name of a strategy such as "auto", or a mapping of module names to devices')


Item = TypeVar("Item")
#: A YAML list that becomes a tuple: config is never mutated.
ListOf = Annotated[tuple[Item, ...], Field(strict=False)]
ByteSize = Annotated[
    int,
    Field(ge=1),
    BeforeValidator(parse_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}),
]
Text = Annotated[str, Field(min_length=1)]
Secret = Annotated[SecretStr, AfterValidator(check_secret)]
_URL = {"type": "string", "minLength": 1}
RemoteUrls = Annotated[
    Text,
    BeforeValidator(parse_urls),
    WithJsonSchema({"anyOf": [_URL, {"type": "array", "minItems": 1, "items": _URL}]}),
]
_FLOAT_NAMES = ["auto", "float32", "fp32", "float16", "fp16", "bfloat16", "bf16"]
DTypeName = Annotated[DType, BeforeValidator(parse_dtype), WithJsonSchema({"enum": _FLOAT_NAMES})]
PrecisionName = Annotated[
    Precision, BeforeValidator(parse_precision), WithJsonSchema({"enum": [*_FLOAT_NAMES, "int8", "int4"]})
]
QuantizationName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$"), BeforeValidator(parse_quantization)]
DeviceMap = Annotated[str | dict[str, str | int], BeforeValidator(parse_device_map)]
WarmupPrompts = Annotated[
    ListOf[Text],
    BeforeValidator(parse_warmup),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}, {"const": False}]}),
]
