"""A transaction of a file's own ends with its block, however that ends, and ends no other."""

from __future__ import annotations

from typing import Any

import pytest

from caliber.backends.sqlite.connecting.connection import OpenOptions, SqliteConnection
from caliber.model.errors import StorageError
from caliber.storage.compile.session import Counter

OPTIONS = OpenOptions(":memory:", 1, 100, 1_000, 10)


@pytest.fixture
def connection() -> Any:
    made = SqliteConnection(OPTIONS, Counter(), memory_name="transactions")
    made.command("CREATE TABLE said (what TEXT) STRICT")
    yield made
    made.close()


def test_who_is_interrupted_while_it_begins_holds_nothing(connection: Any, monkeypatch: Any) -> None:
    """An interrupt while SQLite waits for the lock reaches Python when SQLite has it."""
    command = SqliteConnection.command

    def interrupted(self: SqliteConnection, text: str) -> Any:
        rows = command(self, text)
        if text.startswith("BEGIN"):
            raise KeyboardInterrupt
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(SqliteConnection, "command", interrupted)
        with pytest.raises(KeyboardInterrupt), connection.transaction():
            raise AssertionError("it did not begin")
        assert not connection.in_transaction, "others would wait for the lock until the next write"
    with connection.transaction():
        connection.command("INSERT INTO said VALUES ('after it')")
    assert connection.command("SELECT what FROM said") == [("after it",)]


def test_what_fails_leaves_nothing_and_one_within_another_ends_only_itself(connection: Any) -> None:
    def fails() -> None:
        with connection.transaction():
            connection.command("INSERT INTO said VALUES ('lost')")
            connection.command("INSERT INTO nothing VALUES (1)")

    with pytest.raises(StorageError):
        fails()
    with connection.transaction():
        connection.command("INSERT INTO said VALUES ('kept')")
        with pytest.raises(StorageError), connection.transaction():
            raise AssertionError("a second one cannot begin")
        assert connection.in_transaction
        connection.command("INSERT INTO said VALUES ('kept too')")
    with connection.transaction():
        connection.command("INSERT INTO said VALUES ('undone by hand')")
        connection.command("ROLLBACK")
    assert connection.command("SELECT what FROM said") == [("kept",), ("kept too",)]
