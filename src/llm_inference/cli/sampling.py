"""Flags that say how to choose tokens, for the commands that talk to a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_inference.engine.types import SamplingParams


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (up to the context where absent)")
    group.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    group.add_argument("--top-p", type=float, metavar="P", help="choose among the likeliest that make up this share")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")


def sampling_of(args: argparse.Namespace) -> SamplingParams:
    """What was said; the model's own defaults fill the rest."""
    from llm_inference.engine.types import SamplingParams

    return SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, top_p=args.top_p, seed=args.seed)
