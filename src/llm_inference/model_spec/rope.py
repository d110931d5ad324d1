"""Rotary embedding parameters of a config, from `rope_theta` + `rope_scaling` or transformers 5's `rope_parameters`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from llm_inference.model_spec.fields import JsonFields

_NO_SCALING: Final = ("default", "none")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """`rope_type` is default, linear, dynamic, yarn, longrope, llama3 or whatever else the file says, unjudged.

    `parameters` holds the remaining keys of the scaling section as they are (`low_freq_factor`, `beta_fast`, …).
    """

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_config(cls, config: JsonFields) -> RopeSpec:
        """Raises `SourceError` for wrong types."""
        section = config.section("rope_parameters") or config.section("rope_scaling")
        if section is None:
            return cls(config.number("rope_theta", 10000.0), partial_rotary_factor=_partial(config))
        # "type" is the older spelling, "su" the older name of longrope.
        rope_type = section.text("rope_type", section.text("type", "default"))
        rope_type = {"su": "longrope", "none": "default"}.get(rope_type, rope_type)
        theta = section if section.has("rope_theta") else config
        original = section if section.has("original_max_position_embeddings") else config
        known = ("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings")
        return cls(
            theta=theta.number("rope_theta", 10000.0),
            rope_type=rope_type,
            factor=section.number("factor", 1.0),
            original_max_position_embeddings=original.optional_integer("original_max_position_embeddings"),
            partial_rotary_factor=_partial(section if section.has("partial_rotary_factor") else config),
            parameters={key: value for key, value in section.content.items() if key not in known},
        )

    def max_positions(self, declared: int) -> int:
        """The usable context, given `max_position_embeddings`.

        linear and dynamic declare the length before scaling: it is multiplied by the factor. llama3 and longrope
        declare the final one. yarn files do either: the larger of the declared and the scaled original length counts.
        """
        if self.rope_type in ("linear", "dynamic"):
            return int(declared * self.factor)
        if self.rope_type == "yarn":
            original = self.original_max_position_embeddings or declared
            return max(declared, int(original * self.factor))
        return declared


def _partial(fields: JsonFields) -> float:
    return fields.number("partial_rotary_factor", 1.0)
