from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import NotReadyError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.key import ROUTE_GROUPS, ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.ledger_store import LedgerStore
from llm_inference.gateway.tenants.prices import Price
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.gateway.ui import usage as usage_module
from tests.gateway.serving import serving

DAY_S = 86_400
KEYS = KeyRing(
    [
        ApiKey("k_a", "a", digest_of("a")),
        ApiKey("k_b", "b", digest_of("b")),
        ApiKey("k_admin", "admin", digest_of("admin"), scope=Scope(routes=ROUTE_GROUPS)),
    ]
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    """Of key a: two today, one on the day before, one long ago. Of b one today. Keyless: one today."""
    now = time.time()
    rows = [("k_a", "m", 0), ("k_a", "n", 0), ("k_a", "m", 1), ("k_a", "m", 40), ("k_b", "m", 0), ("", "m", 0)]
    ledger = LedgerStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.write(
        [
            Entry(f"r{number}", now - days * DAY_S, "r", key, model, "/x", "", "", 200, "stop", 100, 10, 4, None, 0.5)
            for number, (key, model, days) in enumerate(rows)
        ]
    )
    yield ledger
    ledger.close()


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_a_key_sees_its_own_and_an_admin_all(store: LedgerStore) -> None:
    tenants = Tenants(keys=KEYS, ledger_sums=store, prices={"m": Price(1, 2)})
    async with serving(tenants=tenants) as service:
        report = (await service.get("/usage.json?by=model&days=30", headers=bearer("a"))).json
        assert (report["ledger"], report["all_keys"], report["by"]) == (True, False, ["model"])
        assert [(row["model"], row["requests"], row["prompt_tokens"]) for row in report["rows"]] == [
            ("m", 2, 200),
            ("n", 1, 100),
        ]
        # 200 at 1 and 20 at 2 for a million; n has no price
        assert [row["price"] for row in report["rows"]] == [0.00024, 0.0]
        by_key = (await service.get("/usage.json?by=key", headers=bearer("b"))).json["rows"]
        assert [(row["key"], row["requests"]) for row in by_key] == [("k_b", 1)]
        everything = (await service.get("/usage.json?by=key&days=366", headers=bearer("admin"))).json
        assert everything["all_keys"] is True
        assert [(row["key"], row["requests"]) for row in everything["rows"]] == [("", 1), ("k_a", 4), ("k_b", 1)]


async def test_days_begin_at_midnight(store: LedgerStore) -> None:
    async with serving(tenants=Tenants(keys=KEYS, ledger_sums=store)) as service:
        days = (await service.get("/usage.json?days=2", headers=bearer("a"))).json
        assert days["since"] % DAY_S == 0
        assert [(row["model"], row["requests"]) for row in days["rows"]] == [("m", 1), ("m", 1), ("n", 1)]
        today = (await service.get("/usage.json?days=1&by=", headers=bearer("a"))).json["rows"]
        assert [row["requests"] for row in today] == [2]
        assert "price" not in today[0]


async def test_without_keys_what_was_used_without_one(store: LedgerStore) -> None:
    async with serving(tenants=Tenants(ledger_sums=store)) as service:
        report = (await service.get("/usage.json?by=key")).json
        assert (report["all_keys"], [(row["key"], row["requests"]) for row in report["rows"]]) == (False, [("", 1)])


async def test_without_a_ledger() -> None:
    async with serving() as service:
        report = (await service.get("/usage.json")).json
        assert (report["ledger"], report["rows"], report["by"]) == (False, [], ["day", "model"])


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("by=colour", "by"),
        ("by=day,status", "by"),
        ("days=0", "days"),
        ("days=367", "days"),
        ("days=-1", "days"),
        ("days=x", "days"),
        ("days=1.5", "days"),
        ("days=%D9%A1", "days"),
    ],
)
async def test_mistakes(query: str, param: str) -> None:
    async with serving() as service:
        reply = await service.get(f"/usage.json?{query}")
        assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_ledger_that_is_away_and_one_that_is_too_long(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away:
        def usage(
            self, by: Sequence[str], since: float | None = None, *, key: str | None = None
        ) -> list[dict[str, Any]]:
            raise NotReadyError("The database is away.", code="store_unavailable", retry_after_s=1.0)

    async with serving(tenants=Tenants(ledger_sums=Away())) as service:
        reply = await service.get("/usage.json")
        assert (reply.status, reply.error["code"]) == (503, "store_unavailable")
    monkeypatch.setattr(usage_module, "_MAX_ROWS", 2)
    async with serving(tenants=Tenants(keys=KEYS, ledger_sums=store)) as service:
        reply = await service.get("/usage.json?by=day,model", headers=bearer("admin"))
        assert reply.status == 400
        assert "fewer days" in reply.error["message"]
