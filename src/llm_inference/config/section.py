"""The root of all configuration models: strict, frozen, and quiet about values in errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Strict: `true` is no number, "yes" is no boolean, "8" is no integer; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)
