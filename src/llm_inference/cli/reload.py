"""Let a running server read its configuration anew. What is wrong with it is said, and the old one goes on."""

from __future__ import annotations

import argparse

from llm_inference.cli import admin_api

HELP = "let a running server read its configuration anew"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    admin_api.add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Raises `ConfigError` with the server's own words where it refuses, or where there is none."""
    report = admin_api.ask(args, "POST", "reload", {})
    for what in ("started", "stopped", "kept", "needs_restart"):
        print(f"{what.replace('_', ' ')}: {', '.join(report[what]) or 'none'}")
    return 0
