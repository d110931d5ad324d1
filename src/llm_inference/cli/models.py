"""List the replicas of a running server, or load, unload, restart or drain one of its models.

Without an action they are listed.
"""

from __future__ import annotations

import argparse
from typing import Any

from llm_inference.cli import admin_api

HELP = "list, load, unload, restart or drain models of a running server"
ACTIONS = ("load", "unload", "restart", "drain")

_COLUMNS = ("replica", "state", "engine", "requests", "running", "waiting", "memory", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    admin_api.add_server_arguments(parser)
    parser.add_argument("action", nargs="?", choices=("list", *ACTIONS), default="list", help="what to do (list)")
    parser.add_argument("model", nargs="?", help="the model's name; not for list")
    parser.add_argument("--replica", metavar="ID", help="this one of its replicas alone")


def run(args: argparse.Namespace) -> int:
    """Raises `ConfigError` with the server's own words where it refuses, or where there is none."""
    from llm_inference.errors import ConfigError

    if args.action == "list":
        report = admin_api.ask(args, "GET", "models")
        _print([_COLUMNS, *(_row(replica) for model in report["models"] for replica in model["replicas"])])
        return 0
    if args.model is None:
        raise ConfigError(f"{args.action}: say which model; `llm-inference models list` shows them")
    body = {"model": args.model, **({} if args.replica is None else {"replica": args.replica})}
    report = admin_api.ask(args, "POST", f"models/{args.action}", body)
    for name, engine in report["replicas"].items():
        print(f"{name}: {engine['state']}{' (' + engine['reason'] + ')' if engine['reason'] else ''}")
    return 0


def _row(replica: dict[str, Any]) -> tuple[str, ...]:
    resident = replica["resident_bytes"] or replica["memory_bytes"]
    return (
        replica["id"],
        replica["state"],
        replica["engine"],
        str(replica["num_requests"]),
        _number(replica["num_running"]),
        _number(replica["num_waiting"]),
        "-" if resident is None else f"{resident / 2**30:.1f} GiB",
        replica["reason"],
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _print(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
