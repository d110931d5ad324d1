"""`GET /usage.json`: the ledger's sums for the page. A key sees its own usage, one with the route group `admin` all.

Where there are no keys, callers are nobody in particular and see what was used without a key.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.record import record_of
from llm_inference.gateway.state import gateway_of
from llm_inference.gateway.tenants.usage_sums import join

#: What the page may group by. Finer groups are for `llm-inference usage`, which asks the database itself.
GROUPS = ("day", "month", "key", "model")
DEFAULT_GROUPS = "day,model"
DEFAULT_DAYS = 30
MAX_DAYS = 366
_DAY_S = 86_400
_MAX_ROWS = 5000


class UsageReport(msgspec.Struct, frozen=True):
    """`rows` have the names of `by`, the sums, and a price where models have one.

    `ledger` is false where none is configured: then nothing was counted. `all_keys`: not the caller's rows alone.
    `since` is in Unix seconds, the beginning of a day in UTC.
    """

    ledger: bool
    all_keys: bool
    since: float
    by: list[str]
    rows: list[dict[str, Any]]


async def usage(request: Request) -> Response:
    """`?by=day,model&days=30`. Raises `InvalidRequestError`, and `NotReadyError` while the ledger cannot be read."""
    record = record_of(request.scope)
    record.quiet = True
    by = _groups(request.query_params.get("by", DEFAULT_GROUPS))
    days = _days(request.query_params.get("days", str(DEFAULT_DAYS)))
    since = time.time() // _DAY_S * _DAY_S - (days - 1) * _DAY_S
    key = record.key
    sees_all = key is not None and "admin" in key.scope.routes
    owner = None if sees_all else "" if key is None else key.id
    tenants = gateway_of(request).tenants
    if tenants is None or tenants.ledger_sums is None:
        return _reply(UsageReport(False, sees_all, since, by, []))
    async with tenants.reading_ledger:  # one at a time: reports must not take the writer's connections
        rows = await asyncio.to_thread(tenants.ledger_sums.usage, by, since, key=owner)
    joined = join(rows, by, tenants.prices)
    if len(joined) > _MAX_ROWS:
        raise InvalidRequestError(
            f"The report would have {len(joined)} rows; ask for fewer days or groups, or use `llm-inference usage`.",
            param="by",
        )
    return _reply(UsageReport(True, sees_all, since, by, joined))


def _groups(text: str) -> list[str]:
    groups = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in groups:
        if name not in GROUPS:
            raise InvalidRequestError(f"by: {name[:40]!r} is not among {', '.join(GROUPS)}.", param="by")
    return groups


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_DAYS):
        raise InvalidRequestError(f"days: a whole number from 1 to {MAX_DAYS}, not {text[:40]!r}.", param="days")
    return int(text)


def _reply(report: UsageReport) -> Response:
    return Response(msgspec.json.encode(report), media_type="application/json", headers={"cache-control": "no-store"})
