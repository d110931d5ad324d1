"""generation_config.json: where generation ends and what a model's author wants sampled with.

transformers reads `temperature`, `top_p`, `top_k` and `min_p` only when `do_sample` is true, and leaves `do_sample` out
of the file when it is false. So they are defaults here only if the file says `do_sample: true`; otherwise they are None
and the API's own defaults hold. (vLLM takes them whatever `do_sample` says.) `repetition_penalty` acts on greedy search
too and always counts. The request, and `generation:` in the YAML, go above all of it; that is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_inference.errors import SourceError
from llm_inference.model_spec.fields import JsonFields


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """None means not said. `eos_token_ids` is the union of generation_config.json and config.json, in that order."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    do_sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def read_generation_config(directory: Path) -> GenerationConfig:
    """Read generation_config.json (which may be absent) and the special ids of config.json.

    Raises `SourceError` naming file and key for a wrong type or a value out of range.
    """
    config = JsonFields.read(directory / "config.json")
    path = directory / "generation_config.json"
    own = JsonFields.read(path) if path.exists() else JsonFields(path, {})
    do_sample = own.boolean("do_sample", False)
    sampling = own if do_sample else JsonFields(path, {})
    bos = own.token_ids("bos_token_id") or config.token_ids("bos_token_id")
    pad = own.token_ids("pad_token_id") or config.token_ids("pad_token_id")
    return GenerationConfig(
        eos_token_ids=tuple(dict.fromkeys(own.token_ids("eos_token_id") + config.token_ids("eos_token_id"))),
        bos_token_id=bos[0] if bos else None,
        pad_token_id=pad[0] if pad else None,
        do_sample=do_sample,
        temperature=_within(sampling, "temperature", 0.0, 100.0),
        top_p=_within(sampling, "top_p", 0.0, 1.0),
        top_k=sampling.optional_integer("top_k", minimum=-1),
        min_p=_within(sampling, "min_p", 0.0, 1.0),
        repetition_penalty=_within(own, "repetition_penalty", 0.0, 100.0),
        max_new_tokens=own.optional_integer("max_new_tokens"),
    )


def _within(fields: JsonFields, key: str, low: float, high: float) -> float | None:
    value = fields.optional_number(key)
    if value is not None and not low <= value <= high:
        raise SourceError(f"{fields.path}: {key!r} must lie between {low:g} and {high:g}, not {value!r}")
    return value
