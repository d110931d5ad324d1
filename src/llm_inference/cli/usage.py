"""Who used how much: sums over the ledger.

The ledger is `--ledger`, else `api.ledger` of `--config`, else a SQLite file in the state directory. Prices are the
`price` of the models of `--config`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

HELP = "sum up the ledger: requests, tokens and prices by key, model, day, …"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by", default="key,model", metavar="GROUPS", help="of key, model, day, month, tier, replica, route, status"
    )
    parser.add_argument("--since", metavar="DATE", help="from this date or time (UTC) on")
    parser.add_argument("--until", metavar="DATE", help="before this date or time (UTC)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="whose api.ledger and prices are meant")
    parser.add_argument("--ledger", metavar="URL", help="sqlite:///FILE or postgresql://… instead")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from llm_inference.config.load import load_config
    from llm_inference.gateway.tenants.usage_sums import SUMS, join
    from llm_inference.serve.tenants import open_ledger_store, prices

    config = load_config(args.config).config
    by = tuple(dict.fromkeys(part.strip() for part in args.by.split(",") if part.strip()))
    store = open_ledger_store(config.api, args.ledger, "--ledger" if args.ledger else "api.ledger")
    try:
        rows = store.usage(by, _moment(args.since, "--since"), _moment(args.until, "--until"))
    finally:
        store.close()
    known = prices(config)
    joined = join(rows, by, known)
    columns = [*by, *SUMS, *(["price"] if known else [])]
    if args.json:
        print(json.dumps(joined, indent=2))
    elif args.csv:
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(joined)
    else:
        _print_table(joined, columns)
    return 0


def _moment(text: str | None, flag: str) -> float | None:
    from llm_inference.config.tenants import parse_time
    from llm_inference.errors import ConfigError

    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


def _print_table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    from llm_inference.gateway.tenants.usage_sums import SUMS

    table = [columns, *([str(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    numbers = {*SUMS, "price"}
    for line in table:
        cells = [
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())
