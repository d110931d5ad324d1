"""The configuration of routing: how the deployments of one name share its requests.

What it means is said in `gateway/routing/`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from llm_inference.config.section import Section
from llm_inference.config.values import ByteSize, ListOf, Text

PolicyName = Literal["least_tokens", "round_robin", "prefix_affinity", "session_affinity"]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


def _is_free(tier: str) -> str:
    """Clients of OpenAI's API say these without meaning a tier of ours."""
    if tier in ("auto", "default"):
        raise ValueError(f'"{tier}" leaves the choice to the service; give the tier another name')
    return tier


VersionName = Annotated[str, Field(pattern=_NAME)]
TierName = Annotated[str, Field(pattern=_NAME), AfterValidator(_is_free)]
SpillOver = Literal["never", "default", "always"]


class AgreementConfig(Section):
    """`routing.agreement:` lower tiers are compared with the best one, and demoted when they differ too much."""

    sample: float = Field(default=0.05, ge=0, le=1, description="Share of greedy requests that are compared; 0: none.")
    threshold: float = Field(default=0.8, ge=0, le=1, description="Mean agreement below this demotes a tier.")
    window: int = Field(default=50, ge=1, le=10_000, description="Comparisons that the mean is of.")
    min_samples: int = Field(default=10, ge=1, le=10_000, description="Fewer comparisons than this demote nothing.")
    restore_after: int = Field(
        default=20, ge=1, le=10_000, description="Good comparisons in a row after which a tier comes back by itself."
    )
    max_queue: int = Field(default=16, ge=1, le=10_000, description="Comparisons that may wait; more are dropped.")

    @model_validator(mode="after")
    def _window_holds_enough(self) -> AgreementConfig:
        if self.min_samples > self.window:
            raise ValueError("`min_samples` must not be more than `window`")
        return self


class RoutingConfig(Section):
    """`routing:` of a name. Said in one of its entries, it holds for all of them."""

    policy: PolicyName = Field(default="least_tokens", description="Which replica takes a request.")
    prefix_bytes: ByteSize = Field(
        default=1024, ge=16, le=2**20, description="prefix_affinity: bytes of a prompt's beginning that decide."
    )
    load_factor: float = Field(
        default=1.25, ge=1, le=100, description="prefix_affinity: a replica's load is at most so many times the mean."
    )
    max_in_flight: int | None = Field(
        default=None, ge=1, description="Requests at which a replica counts as full; null: its max_num_seqs."
    )
    retry: bool = Field(default=True, description="Once, on another replica, before the first token.")
    attempt_timeout_s: float | None = Field(
        default=None, gt=0, description="Longest wait for the first token from one replica; null: no limit."
    )
    fallbacks: ListOf[Text] = Field(default=(), description="Names of models that answer when no replica can.")
    eject_after: int = Field(default=3, ge=1, description="Failures in a row after which a replica is left alone.")
    eject_s: float = Field(default=2.0, gt=0, description="For so long at first; twice as long each time again.")
    max_eject_s: float = Field(default=60.0, gt=0, description="And never longer than this.")
    tiers: ListOf[TierName] = Field(default=(), description="The tiers, best first; none: by their precision.")
    default_tier: TierName | None = Field(default=None, description="Where nobody says one; null: the best.")
    spill_over: SpillOver = Field(
        default="default",
        description="From a full tier to the next lower one: never, where nobody named a tier, or always.",
    )
    spill_to: dict[str, TierName] = Field(default={}, description="Tier → tier, where it is not the next lower one.")
    agreement: AgreementConfig | None = Field(default=None, description="null: tiers are not compared.")

    @model_validator(mode="after")
    def _agrees(self) -> RoutingConfig:
        if self.max_eject_s < self.eject_s:
            raise ValueError("`max_eject_s` must not be less than `eject_s`")
        if len(set(self.tiers)) != len(self.tiers):
            raise ValueError("`tiers` must name each tier once")
        return self
