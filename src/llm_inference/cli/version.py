"""Print the version."""

from __future__ import annotations

import argparse

from llm_inference.version import __version__

HELP = "print the version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(args: argparse.Namespace) -> int:
    print(f"llm-inference {__version__}")
    return 0
