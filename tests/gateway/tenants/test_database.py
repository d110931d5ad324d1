"""The database itself: tables are made once, when they are needed; what is wrong with it is said, and where."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select

from llm_inference.errors import ConfigError, NotReadyError
from llm_inference.gateway.tenants.database import Database

METADATA = MetaData()
NUMBERS = Table("numbers", METADATA, Column("number", Integer, primary_key=True))


def test_tables_are_made_when_they_are_first_needed(tmp_path: Path) -> None:
    file = tmp_path / "state" / "one.db"
    database = Database(f"sqlite:///{file}", "api.ledger", METADATA)
    assert database.dialect == "sqlite"
    assert not file.stat().st_size, "the file is made for this user alone, and nothing is connected to yet"
    with database.transaction() as connection:
        connection.execute(insert(NUMBERS).values(number=7))
    database.prepare()
    with database.transaction() as connection:
        assert connection.execute(select(NUMBERS.c.number)).scalars().all() == [7]
    database.close()
    assert (stat.S_IMODE(file.parent.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'one.db'}", "api.ledger", METADATA)
    with pytest.raises(NotReadyError), database.transaction() as connection:
        connection.execute(insert(NUMBERS), [{"number": 7}, {"number": 7}])
    with database.transaction() as connection:
        assert connection.execute(select(NUMBERS.c.number)).all() == []
    database.close()


@pytest.mark.parametrize("url", ["no url", "mysql://localhost/x"])
def test_a_url_that_is_wrong_names_its_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"api\.key_store"):
        Database(url, "api.key_store", METADATA)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"api\.ledger: .*cannot be written"):
        Database(f"sqlite:///{tmp_path}", "api.ledger", METADATA)


def test_a_database_that_is_away_is_not_ready() -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/none", "api.ledger", METADATA)
    assert database.dialect == "postgresql"
    with pytest.raises(NotReadyError):
        database.prepare()
    database.close()
