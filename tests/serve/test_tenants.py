from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.config.schema import ServerConfig
from llm_inference.config.tenants import RouteGroupName
from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants.failover import FailoverLimits
from llm_inference.gateway.tenants.key import DEFAULT_ROUTES, ROUTE_GROUPS, Scope, digest_of
from llm_inference.gateway.tenants.limit_store import MemoryLimits
from llm_inference.gateway.tenants.limits import Limits
from llm_inference.serve import tenants as module
from llm_inference.serve.tenants import check_tenants, key_of, limit_server, running_tenants, state_dir
from llm_inference.telemetry.metrics import Metrics
from tests.gateway.tenants.charges import charges


def config(**api: Any) -> ServerConfig:
    return ServerConfig.model_validate({"api": api})


async def test_nothing_configured_is_nothing_made(tmp_path: Path) -> None:
    async with running_tenants(ServerConfig(), Metrics(CollectorRegistry()), tmp_path) as tenants:
        assert tenants is None


def test_what_is_not_configured_is_not_imported() -> None:
    code = "import llm_inference.serve.parent, sys; print({'sqlalchemy', 'redis', 'psycopg'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def test_all_kinds_of_keys_open_one_door(tmp_path: Path) -> None:
    api: dict[str, Any] = {
        "api_keys": ["plain"],
        "keys": [{"name": "named", "key": "s", "limits": {"tokens_per_day": 5}}],
    }
    whole = config(**api, key_store="sqlite", state_dir=str(tmp_path))
    store = module.open_key_store(whole.api)
    made, secret = store.create("stored")
    async with running_tenants(whole, Metrics(CollectorRegistry()), tmp_path) as tenants:
        assert tenants is not None
        assert tenants.keys is not None
        found = [await tenants.keys.find(one) for one in ("plain", "s", secret, "other")]
        assert [key.id if key else None for key in found][1:] == ["k_named", made.id, None]
        assert found[1] is not None
        assert found[1].limits == Limits(tokens_per_day=5)
        assert isinstance(tenants.limits, MemoryLimits)
        assert tenants.ledger is None
    assert (tmp_path / "keys.db").exists()
    store.close()


async def test_the_ledger_is_written_at_the_end(tmp_path: Path) -> None:
    whole = config(ledger="sqlite", state_dir=str(tmp_path))
    from llm_inference.gateway.record import RequestRecord

    metrics = Metrics(CollectorRegistry())
    async with running_tenants(whole, metrics, tmp_path) as tenants:
        assert tenants is not None
        tenants.write_down(RequestRecord("r", metrics, model="m"))
    store = module.open_ledger_store(whole.api)
    assert store.usage(["model"])[0]["requests"] == 1
    store.close()
    assert b'llm_inference_ledger_requests_total{outcome="written"} 1.0' in metrics.exposition()


async def test_workers_share_their_parents_count(tmp_path: Path) -> None:
    whole = config(workers=2, address_limits={"requests_per_minute": 4})
    granted = 0
    async with limit_server(whole, tmp_path):
        for _ in range(2):
            async with running_tenants(whole, Metrics(CollectorRegistry()), tmp_path) as tenants:
                assert tenants is not None
                assert isinstance(tenants.limits, FailoverLimits)
                limits = tenants.limits
                verdicts = await asyncio.gather(
                    *(limits.reserve(charges(requests_per_minute=4), "r") for _ in range(3))
                )
                granted += sum(verdict.refused is None for verdict in verdicts)
    assert granted == 4


def test_a_key_of_the_configuration_is_one_of_the_gateway() -> None:
    entry = {"name": "a", "key": "s", "models": ["x"], "routes": ["admin"], "tiers": ["t"], "priority": [1, 2]}
    (key,) = config(keys=[{**entry, "expires": "1970-01-02"}]).api.keys
    made = key_of(key)
    assert made.digest == digest_of("s")
    assert made.scope == Scope(("x",), ("admin",), ("t",), (1, 2))
    assert made.expires == 86_400


def test_both_rooms_know_the_same_groups_of_routes() -> None:
    from typing import get_args

    assert get_args(RouteGroupName) == ROUTE_GROUPS
    (key,) = config(keys=[{"name": "a", "key": "s"}]).api.keys
    assert tuple(key.routes) == DEFAULT_ROUTES


def test_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert state_dir(config().api) == Path("/x/llm-inference")
    assert state_dir(config(state_dir="/y").api) == Path("/y")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_dir(config().api) == Path.home() / ".local" / "state" / "llm-inference"


@pytest.mark.parametrize(
    ("api", "message"),
    [
        ({"key_store": "mysql://x"}, "api.key_store: mysql is not"),
        ({"ledger": "nonsense"}, "api.ledger: is no database URL"),
        ({"ledger": "sqlite", "state_dir": "/proc/x"}, "api.ledger: "),
        ({"limits_store": "http://x"}, "api.limits_store: "),
        ({"trusted_proxies": ["x"]}, "api.trusted_proxies: "),
    ],
)
def test_mistakes_are_known_before_a_model_is_loaded(api: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_tenants(config(**api))
    assert refusal.value.message.startswith(message)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ConfigError, match=r"needs the package sqlalchemy; install llm-inference\[store\]"):
        check_tenants(config(ledger="sqlite"))


def test_a_database_that_is_away_is_no_reason_not_to_start(caplog: pytest.LogCaptureFixture) -> None:
    from tests.gateway.tenants.services import free_port

    check_tenants(config(key_store=f"postgresql://u:hunter2@127.0.0.1:{free_port()}/d"))
    assert "look whether it is there" in caplog.text
    assert "hunter2" not in caplog.text
