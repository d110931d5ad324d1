"""llm-inference: a language model, from files to an OpenAI-compatible service.

The package is lazy: importing it loads neither torch nor a web framework. `LLM` and `SamplingParams` are the two
names that a Python user needs; both are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llm_inference.version import __version__

if TYPE_CHECKING:
    from llm_inference.engine.types import SamplingParams as SamplingParams
    from llm_inference.llm import LLM as LLM

__all__ = ["LLM", "SamplingParams", "__version__"]

_LAZY = {"LLM": "llm_inference.llm", "SamplingParams": "llm_inference.engine.types"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
