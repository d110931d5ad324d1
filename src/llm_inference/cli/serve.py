"""Serve one or more models over HTTP until told to stop.

Only reads flags; everything else is `llm_inference.serve`.
"""

from __future__ import annotations

import argparse

from llm_inference.cli import options

HELP = "serve models over HTTP"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser, api=True)


def run(args: argparse.Namespace) -> int:
    config = options.load(args).config
    from llm_inference import serve

    return serve.run(config)
