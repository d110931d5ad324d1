"""The databases of keys and ledger: SQLite files and PostgreSQL, through SQLAlchemy Core. Knows no table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import CreateIndex, CreateTable

from llm_inference.errors import ConfigError, NotReadyError

#: A database that does not answer within this time is as good as away.
TIMEOUT_S = 2


class Database:
    """`sqlite:///FILE` or `postgresql://…` with the tables of `metadata`, which are made when they are first needed.

    Connects to nothing yet; `where` names the setting in the `ConfigError` of a URL that is wrong.
    """

    def __init__(self, url: str, where: str, metadata: MetaData) -> None:
        self._engine = _open(url, where)
        self._metadata = metadata
        self._prepared = False

    @property
    def dialect(self) -> str:
        """Either "sqlite" or "postgresql"."""
        return self._engine.dialect.name

    def prepare(self) -> None:
        """Make the tables if they are not there. Raises `NotReadyError`."""
        if not self._prepared:
            _create_tables(self._engine, self._metadata)
            self._prepared = True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A connection in a transaction of its own. Raises `NotReadyError` where the database cannot be reached."""
        self.prepare()
        try:
            with self._engine.begin() as connection:
                yield connection
        except (DBAPIError, PoolTimeoutError) as error:
            raise _unreachable(self._engine, error) from error

    def close(self) -> None:
        self._engine.dispose()


def _open(url: str, where: str) -> Engine:
    """A SQLite file's directory is made, for this user alone. Raises `ConfigError`."""
    if url.startswith("postgres://"):  # an older spelling that hosters still give out
        url = f"postgresql{url.removeprefix('postgres')}"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigError(f"{where}: is no database URL; {_FORMS}") from error
    if backend == "sqlite":
        return _sqlite(parsed, where)
    if backend == "postgresql":
        try:
            return create_engine(
                parsed.set(drivername="postgresql+psycopg"),
                pool_pre_ping=True,
                pool_size=2,
                max_overflow=6,
                pool_timeout=TIMEOUT_S,
                connect_args={
                    "connect_timeout": TIMEOUT_S,
                    "options": f"-c statement_timeout={TIMEOUT_S * 1000}",
                    "application_name": "llm-inference",
                },
            )
        except ImportError as error:
            raise ConfigError(f"{where}: PostgreSQL needs the package psycopg; install llm-inference[store]") from error
    raise ConfigError(f"{where}: {backend} is not a database that is known here; {_FORMS}")


_FORMS = "write sqlite:///FILE or postgresql://user:password@host/database"


def _sqlite(url: URL, where: str) -> Engine:
    if not url.database or url.database == ":memory:":
        raise ConfigError(f"{where}: a database in memory is shared by nobody; write sqlite:///FILE")
    file = Path(url.database).expanduser()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(f"{where}: {file} cannot be written ({error.strerror}); choose another file") from error
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(file)),
        connect_args={"timeout": TIMEOUT_S, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        # WAL: readers never wait for the writer, and a killed process leaves every committed row.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    return engine


def _create_tables(engine: Engine, metadata: MetaData) -> None:
    """Make what is missing. Processes may do so at the same time. Raises `NotReadyError`."""
    for last in (False, True):
        try:
            with engine.begin() as connection:
                for table in metadata.sorted_tables:
                    connection.execute(CreateTable(table, if_not_exists=True))
                    for index in table.indexes:
                        connection.execute(CreateIndex(index, if_not_exists=True))
            return
        except (DBAPIError, PoolTimeoutError) as error:
            # "if not exists" of two PostgreSQL sessions may collide in the catalogue; the second time it is there.
            if last:
                raise _unreachable(engine, error) from error


def _unreachable(engine: Engine, error: Exception) -> NotReadyError:
    cause = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    place = engine.url.render_as_string(hide_password=True)
    return NotReadyError(
        f"The database {place} failed: {cause[0]}; look whether it is there, and can be written.",
        code="store_unavailable",
        retry_after_s=1.0,
    )
