"""Make, list, revoke and rotate API keys in a key store.

The store is `--store`, else `api.key_store` of `--config`, else a SQLite file in the state directory. A running server
follows within seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_inference.gateway.tenants.key import ApiKey
    from llm_inference.gateway.tenants.key_store import KeyStore

HELP = "make, list, revoke and rotate API keys"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Flags of `create` that are fields of `Limits`.
_LIMITS: tuple[tuple[str, type], ...] = (
    ("requests_per_minute", int),
    ("tokens_per_minute", int),
    ("max_concurrent_requests", int),
    ("max_prompt_tokens", int),
    ("max_output_tokens", int),
    ("tokens_per_day", int),
    ("tokens_per_month", int),
    ("price_per_day", float),
    ("price_per_month", float),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, metavar="FILE", help="whose api.key_store is meant")
    common.add_argument("--store", metavar="URL", help="sqlite:///FILE or postgresql://… instead")
    common.add_argument("--json", action="store_true", help="print JSON")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")

    create = actions.add_parser("create", parents=[common], help="make a key and print its secret, once")
    create.add_argument("--name", required=True, help="for people")
    create.add_argument("--models", metavar="GLOBS", help="comma-separated; default: all")
    create.add_argument("--routes", metavar="GROUPS", help="of inference, tokenize, models, metrics, admin")
    create.add_argument(
        "--tiers", metavar="GLOBS", help="comma-separated; kept, not checked: no service has tiers so far"
    )
    create.add_argument("--priority", metavar="LOWEST:HIGHEST", help="range that its requests are brought into")
    create.add_argument("--expires", metavar="WHEN", help="a time from now (12h, 30d) or a date (2027-01-31)")
    limits = create.add_argument_group("limits")
    for name, kind in _LIMITS:
        limits.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N")

    actions.add_parser("list", parents=[common], help="all keys, without their secrets")
    revoke = actions.add_parser("revoke", parents=[common], help="make a key invalid, for good")
    revoke.add_argument("id", metavar="ID")
    rotate = actions.add_parser("rotate", parents=[common], help="give a key a new secret, and print it once")
    rotate.add_argument("id", metavar="ID")
    rotate.add_argument("--overlap", metavar="TIME", default="0s", help="how long the old secret is good, too (1h)")


def run(args: argparse.Namespace) -> int:
    store = _store(args)
    try:
        _act(args, store)
    finally:
        store.close()
    return 0


def _act(args: argparse.Namespace, store: KeyStore) -> None:
    if args.action == "list":
        keys = store.all()
        if args.json:
            print(json.dumps([_plain(key) for key in keys], indent=2))
        else:
            _print_table(keys)
    elif args.action == "revoke":
        _print(args, store.revoke(args.id), None)
    elif args.action == "rotate":
        _print(args, *store.rotate(args.id, _duration(args.overlap, "--overlap")))
    else:
        _print(args, *_create(args, store))


def _create(args: argparse.Namespace, store: KeyStore) -> tuple[ApiKey, str]:
    """Checked as an entry of `api.keys` is: the same words, the same errors."""
    from pydantic import ValidationError

    from llm_inference.config.tenants import KeyConfig
    from llm_inference.errors import ConfigError
    from llm_inference.serve.tenants import key_of

    given: dict[str, Any] = {"name": args.name, "key": "-"}
    for name in ("models", "routes", "tiers"):
        if getattr(args, name) is not None:
            given[name] = [part.strip() for part in getattr(args, name).split(",") if part.strip()]
    if args.priority is not None:
        match = re.fullmatch(r"(-?\d+):(-?\d+)", args.priority)
        if match is None:
            raise ConfigError(f"--priority: must be LOWEST:HIGHEST such as 0:10, not {args.priority}")
        given["priority"] = [int(match[1]), int(match[2])]
    given["limits"] = {name: value for name, _ in _LIMITS if (value := getattr(args, name)) is not None}
    try:
        wanted = key_of(KeyConfig.model_validate(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = next((str(part) for part in reversed(first["loc"]) if isinstance(part, str)), "name")
        raise ConfigError(f"--{place.replace('_', '-')}: {first['msg'].removeprefix('Value error, ')}") from error
    expires = None if args.expires is None else _moment(args.expires)
    return store.create(wanted.name, scope=wanted.scope, limits=wanted.limits, expires=expires)


def _store(args: argparse.Namespace) -> KeyStore:
    from llm_inference.config.load import load_config
    from llm_inference.serve.tenants import open_key_store

    api = load_config(args.config).config.api
    return open_key_store(api, args.store, "--store" if args.store else "api.key_store")


def _duration(text: str, flag: str) -> float:
    from llm_inference.errors import ConfigError

    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ConfigError(f"{flag}: must be a time such as 90s, 12h or 30d, not {text}")
    return float(int(match[1]) * _UNITS[match[2]])


def _moment(text: str) -> float:
    from llm_inference.config.tenants import parse_time
    from llm_inference.errors import ConfigError

    if re.fullmatch(r"\d+[smhd]", text):
        return time.time() + _duration(text, "--expires")
    try:
        return parse_time(text)
    except ValueError as error:
        raise ConfigError(f"--expires: {error}") from error


def _print(args: argparse.Namespace, key: ApiKey, secret: str | None) -> None:
    if args.json:
        print(json.dumps({**_plain(key), **({"secret": secret} if secret is not None else {})}, indent=2))
        return
    print(f"{key.id}  {key.name}  {_state(key)}")
    if secret is not None:
        print(f"secret: {secret}")
        print("It is shown this once and stored nowhere.")


def _print_table(keys: list[ApiKey]) -> None:
    rows = [("ID", "NAME", "STATE", "MODELS", "ROUTES")]
    rows += [(key.id, key.name, _state(key), ",".join(key.scope.models), ",".join(key.scope.routes)) for key in keys]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _state(key: ApiKey) -> str:
    if key.revoked is not None:
        return f"revoked {_day(key.revoked)}"
    if key.expires is not None:
        return f"{'expires' if key.valid_at(time.time()) else 'expired'} {_day(key.expires)}"
    return "valid"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(at))


def _plain(key: ApiKey) -> dict[str, Any]:
    found = dataclasses.asdict(key)
    del found["digest"]  # nobody's business, though nothing could be done with it
    found["limits"] = {name: value for name, value in found["limits"].items() if value is not None}
    return found
