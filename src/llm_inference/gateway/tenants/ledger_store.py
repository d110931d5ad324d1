"""The table of the ledger: rows are added and summed up, never changed. Synchronous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, func, select
from sqlalchemy.dialects import postgresql, sqlite

from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants.database import Database
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.limits import window_at

_METADATA = MetaData()
_LEDGER = Table(
    "ledger",
    _METADATA,
    Column("row_id", Text, primary_key=True),
    Column("time", Double, nullable=False),
    Column("day", Text, nullable=False),  # UTC, of `time`
    Column("request_id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("replica", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("requests", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("ttft_s", Double),
    Column("duration_s", Double, nullable=False),
)
Index("ledger_time", _LEDGER.c.time)

#: What usage may be grouped by.
GROUPS = ("key", "model", "day", "month", "tier", "replica", "route", "status")
_COLUMNS: dict[str, Any] = {
    "key": _LEDGER.c.key_id,
    "month": func.substr(_LEDGER.c.day, 1, 7),
    **{name: _LEDGER.c[name] for name in ("model", "day", "tier", "replica", "route", "status")},
}


class LedgerStore:
    """Over `sqlite:///FILE` or `postgresql://…`. Methods raise `NotReadyError` when it cannot be reached."""

    def __init__(self, url: str, where: str = "api.ledger") -> None:
        self._database = Database(url, where, _METADATA)

    def write(self, entries: Sequence[Entry]) -> None:
        """In one transaction. A row that is there already stays as it is."""
        dialect = postgresql if self._database.dialect == "postgresql" else sqlite
        statement = dialect.insert(_LEDGER).on_conflict_do_nothing(index_elements=["row_id"])
        rows = [{**msgspec.structs.asdict(entry), "day": window_at(entry.time, "day")[0]} for entry in entries]
        with self._database.transaction() as connection:
            connection.execute(statement, rows)

    def usage(
        self,
        by: Sequence[str],
        since: float | None = None,
        until: float | None = None,
        *,
        key: str | None = None,
    ) -> list[dict[str, Any]]:
        """Sums for each combination of `by` (of `GROUPS`), in its order; `since` included, `until` not.

        `key`: of the key with this id alone; "" is what was used without one.

        Always with the model, which decides the price: rows of several models are the caller's to join.
        Raises `ConfigError` for an unknown group.
        """
        for name in by:
            if name not in GROUPS:
                raise ConfigError(f'--by: "{name}" is not among {", ".join(GROUPS)}')
        groups = [_COLUMNS[name].label(f"by_{name}") for name in dict.fromkeys((*by, "model"))]
        sums = [
            func.sum(_LEDGER.c[name]).label(name)
            for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "duration_s")
        ]
        query = select(*groups, *sums).group_by(*groups).order_by(*groups)
        if since is not None:
            query = query.where(_LEDGER.c.time >= since)
        if until is not None:
            query = query.where(_LEDGER.c.time < until)
        if key is not None:
            query = query.where(_LEDGER.c.key_id == key)
        with self._database.transaction() as connection:
            if self._database.dialect == "postgresql":  # a report may take longer than a row
                connection.exec_driver_sql("SET LOCAL statement_timeout = '10min'")
            rows = connection.execute(query).mappings().all()
        return [{name.removeprefix("by_"): _plain(value) for name, value in row.items()} for row in rows]

    def close(self) -> None:
        self._database.close()

    def prepare(self) -> None:
        """Make the table if it is not there. Raises `NotReadyError`."""
        self._database.prepare()


def _plain(value: Any) -> Any:
    """Sums of PostgreSQL's big integers come as decimals."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    return int(value) if value == int(value) else float(value)
