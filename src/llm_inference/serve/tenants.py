"""Keys, limits and ledger from configuration: what is configured is made and started, the rest is not even imported."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llm_inference.config.schema import ApiConfig, ServerConfig
from llm_inference.config.tenants import KeyConfig, LimitsConfig
from llm_inference.errors import ConfigError, NotReadyError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.caller import TrustedProxies
from llm_inference.gateway.tenants.carry_over import carry_over
from llm_inference.gateway.tenants.directory import KeyDirectory
from llm_inference.gateway.tenants.failover import FailoverLimits
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of, plain_key
from llm_inference.gateway.tenants.ledger import Ledger
from llm_inference.gateway.tenants.limit_socket import AWAY, LimitServer, SocketLimits
from llm_inference.gateway.tenants.limit_store import LimitStore, MemoryLimits
from llm_inference.gateway.tenants.limits import NO_LIMITS, Limits
from llm_inference.gateway.tenants.prices import Price
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from llm_inference.gateway.tenants.key_store import KeyStore
    from llm_inference.gateway.tenants.ledger_store import LedgerStore

logger = logging.getLogger(__name__)

#: `key_store: sqlite` and `ledger: sqlite` are these files of the state directory.
KEYS_FILE = "keys.db"
LEDGER_FILE = "ledger.db"
_SOCKET = "limits.sock"


def state_dir(api: ApiConfig) -> Path:
    """`api.state_dir`, else `llm-inference` under `XDG_STATE_HOME` or `~/.local/state`."""
    if api.state_dir is not None:
        return Path(api.state_dir).expanduser()
    shared = os.environ.get("XDG_STATE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".local" / "state") / "llm-inference"


def open_key_store(api: ApiConfig, url: str | None = None, where: str = "api.key_store") -> KeyStore:
    """The store at `url`, else the configured one, else the file in the state directory. Raises `ConfigError`."""
    _require_sqlalchemy(where)
    from llm_inference.gateway.tenants.key_store import KeyStore

    return KeyStore(_url(api, url or api.key_store or "sqlite", KEYS_FILE), where)


def open_ledger_store(api: ApiConfig, url: str | None = None, where: str = "api.ledger") -> LedgerStore:
    """Like `open_key_store`, for the ledger."""
    _require_sqlalchemy(where)
    from llm_inference.gateway.tenants.ledger_store import LedgerStore

    return LedgerStore(_url(api, url or api.ledger or "sqlite", LEDGER_FILE), where)


def prices(config: ServerConfig) -> dict[str, Price]:
    """Of the models that have one."""
    return {
        model.name: Price(model.price.input, model.price.output, model.price.cached)
        for model in config.models
        if model.price is not None
    }


def check_tenants(config: ServerConfig) -> None:
    """Make tables, and raise `ConfigError` for what can be known to be wrong before a model is loaded.

    A database that is only away now is a warning: it may come.
    """
    TrustedProxies(config.api.trusted_proxies)
    if config.api.limits_store is not None:
        _redis(config.api)
    try:
        if config.api.key_store is not None:
            keys = open_key_store(config.api)
            keys.find(())
            keys.close()
        if config.api.ledger is not None:
            ledger = open_ledger_store(config.api)
            ledger.prepare()
            ledger.close()
    except NotReadyError as error:
        logger.warning("%s", error.message)


@asynccontextmanager
async def running_tenants(config: ServerConfig, metrics: Metrics, run_dir: Path) -> AsyncIterator[Tenants | None]:
    """What the gateway of this process needs, started; closed afterwards. None: nothing is configured.

    With several workers `limit_server` of their parent must be up.
    """
    api = config.api
    key_store = open_key_store(api) if api.key_store is not None else None
    directory = _directory(api, key_store)
    limits = _limit_store(config, run_dir)
    ledger_store = open_ledger_store(api) if api.ledger is not None else None
    ledger = None if ledger_store is None else Ledger(ledger_store, metrics.in_ledger)
    if directory is None and limits is None and ledger is None:
        yield None
        return
    tenants = Tenants(
        keys=directory,
        limits=limits,
        key_limits=limits_of(api.key_limits),
        address_limits=limits_of(api.address_limits),
        model_limits={model.name: limits_of(model.limits) for model in config.models if _limited(model.limits)},
        prices=prices(config),
        proxies=TrustedProxies(api.trusted_proxies),
        ledger=ledger,
        ledger_sums=ledger_store,
    )
    if isinstance(limits, MemoryLimits):
        await _carry_over(config, limits, ledger_store)
    if directory is not None:
        directory.start()
    if ledger is not None:
        ledger.start()
    try:
        yield tenants
    finally:
        if directory is not None:
            await directory.close()
        if limits is not None:
            await limits.close()
        if ledger is not None:
            await asyncio.to_thread(ledger.close)
        for store in (key_store, ledger_store):
            if store is not None:
                store.close()


@asynccontextmanager
async def limit_server(config: ServerConfig, run_dir: Path) -> AsyncIterator[None]:
    """The parent's part of limits that several workers share without Redis."""
    if config.api.limits_store is not None or not _has_limits(config):
        yield
        return
    server = LimitServer()
    ledger_store = open_ledger_store(config.api) if config.api.ledger is not None else None
    await _carry_over(config, server.limits, ledger_store)
    if ledger_store is not None:
        ledger_store.close()
    await server.start(run_dir / _SOCKET)
    try:
        yield
    finally:
        await server.close()


def limits_of(config: LimitsConfig) -> Limits:
    return Limits(**{field.name: getattr(config, field.name) for field in dataclasses.fields(Limits)})


def key_of(config: KeyConfig) -> ApiKey:
    secret = config.key.get_secret_value() if config.key is not None else ""
    priority = config.priority
    return ApiKey(
        id=config.public_id,
        name=config.name,
        digest=config.digest or digest_of(secret),
        expires=config.expires_at,
        scope=Scope(
            models=tuple(config.models),
            routes=tuple(config.routes),
            tiers=tuple(config.tiers),
            priority=None if priority is None else (priority[0], priority[1]),
        ),
        limits=limits_of(config.limits),
    )


def _directory(api: ApiConfig, store: KeyStore | None) -> KeyDirectory | None:
    keys = [*map(key_of, api.keys), *(plain_key(key.get_secret_value()) for key in api.api_keys)]
    if not keys and store is None:
        return None
    return KeyDirectory(KeyRing(keys), store)


async def _carry_over(config: ServerConfig, limits: MemoryLimits, ledger: LedgerStore | None) -> None:
    if ledger is None:
        return
    try:
        await asyncio.to_thread(carry_over, limits, ledger, prices(config), time.time())
    except NotReadyError as error:
        logger.warning("budgets begin anew, since the ledger cannot be read: %s", error.message)


def _limit_store(config: ServerConfig, run_dir: Path) -> LimitStore | None:
    if not _has_limits(config):
        return None
    api = config.api
    if api.limits_store is not None:
        return _redis(api)
    if api.workers > 1:
        return FailoverLimits(SocketLimits(run_dir / _SOCKET), "local", AWAY)
    return MemoryLimits()


def _has_limits(config: ServerConfig) -> bool:
    api = config.api
    of_keys = (key.limits for key in api.keys)
    of_models = (model.limits for model in config.models)
    # Keys of a store may have limits: nobody knows before they come.
    return api.key_store is not None or any(map(_limited, (api.key_limits, api.address_limits, *of_keys, *of_models)))


def _limited(limits: LimitsConfig) -> bool:
    return limits_of(limits) != NO_LIMITS


def _redis(api: ApiConfig) -> LimitStore:
    assert api.limits_store is not None
    try:
        from llm_inference.gateway.tenants import redis_limits
    except ImportError as error:
        raise ConfigError("api.limits_store: needs the package redis; install llm-inference[store]") from error
    return FailoverLimits(redis_limits.RedisLimits(api.limits_store), api.limits_fail, redis_limits.AWAY)


def _url(api: ApiConfig, url: str, file: str) -> str:
    return f"sqlite:///{state_dir(api).absolute() / file}" if url == "sqlite" else url


def _require_sqlalchemy(where: str) -> None:
    try:
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{where}: needs the package sqlalchemy; install llm-inference[store]") from error
