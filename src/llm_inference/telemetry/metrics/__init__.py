"""Prometheus metrics of the gateway and of the engines behind it: one table, and what is measured by it."""

from __future__ import annotations

from llm_inference.telemetry.metrics.exposition import CONTENT_TYPE
from llm_inference.telemetry.metrics.recorder import EngineLoad, Metrics

__all__ = ["CONTENT_TYPE", "EngineLoad", "Metrics"]
