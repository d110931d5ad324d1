"""Fixtures of this room."""

from __future__ import annotations

from tests.serve.works import works

__all__ = ["works"]
