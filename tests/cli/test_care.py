"""``caliber db status|views|vacuum|backup|restore|check``: thin faces, printing what there is. P-084."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from support.cli_runs import caliber


@pytest.fixture
def here(here: Path) -> Path:
    Path("notes").mkdir()
    Path("notes/one.md").write_text("# One\n\nAbout engines.\n")
    caliber("ingest", "files", "notes")
    return here


def test_status_views_and_vacuum(here: Path) -> None:
    status = json.loads(caliber("db", "status", "--json").stdout)
    assert {each["name"]: each["rows"] for each in status["relations"]}["trajectory"] >= 1
    shown = caliber("db", "status").stdout
    assert "position" in shown
    assert "trajectory" in shown
    made = json.loads(caliber("db", "views", "--json").stdout)["created"]
    assert "caliber_note" in made
    assert f"made {len(made)} views" in caliber("db", "views").stdout
    assert json.loads(caliber("db", "views", "--drop", "--json").stdout)["dropped"] == sorted(made)
    assert json.loads(caliber("db", "vacuum", "--json").stdout)["bytes_after"] > 0
    assert " now" in caliber("db", "vacuum").stdout


def test_check_says_what_is_wrong_and_what_to_do(here: Path) -> None:
    assert json.loads(caliber("db", "check", "--json").stdout) == {"ok": True, "findings": []}
    connection = sqlite3.connect(here / "caliber.db")
    with connection:
        connection.execute("UPDATE note SET content = 'other'")
    connection.close()
    found = json.loads(caliber("db", "check", "--json", code=1).stdout)
    assert not found["ok"]
    assert {item["relation"] for item in found["findings"]} == {"note"}
    said = caliber("db", "check", code=1).stdout
    assert "note: content is not what its hash was made of" in said
    assert "restore a backup" in said


def test_backup_and_restore(here: Path) -> None:
    assert "position" in caliber("db", "backup", "all.zip").stdout
    again = caliber("db", "backup", "all.zip", code=2)
    assert "--force" in again.stderr
    copied = json.loads(caliber("db", "backup", "copy.db", "--json").stdout)
    assert copied["rows"] is None
    assert "must end in .zip" in caliber("db", "backup", "all.tar", code=2).stderr
    before = json.loads(caliber("db", "status", "--json").stdout)
    assert "--force" in caliber("db", "restore", "all.zip", code=2).stderr
    for name in ("all.zip", "copy.db"):
        done = json.loads(caliber("db", "restore", name, "--force", "--json").stdout)
        assert done["epoch"] != before["epoch"]
    (here / "caliber.db").unlink()
    shown = caliber("db", "restore", "all.zip").stdout
    assert "read back and compared" in shown
    after = json.loads(caliber("db", "status", "--json").stdout)
    rows = [{each["name"]: each["rows"] for each in found["relations"]} for found in (before, after)]
    assert rows[0].pop("change") >= rows[1].pop("change") == 1
    assert rows[0] == rows[1]


@pytest.mark.parametrize("table", ["note", "artifact"])
def test_verify_sees_content_that_is_not_what_was_written(here: Path, table: str) -> None:
    """A page with other bytes in a text is a whole page to SQLite, and memory is loaded from it."""
    (here / "docs").mkdir()
    (here / "docs" / "a.py").write_text("print('code is kept as an artifact')\n")
    caliber("ingest", "files", "docs")
    caliber("db", "check")
    connection = sqlite3.connect(here / "caliber.db")
    with connection:
        value = "'KEEP'" if table == "note" else "CAST('KEEP' AS BLOB)"
        assert connection.execute(f"UPDATE {table} SET content = {value}").rowcount == 1
    connection.close()
    said = caliber("db", "check", code=1).stdout
    assert f"{table}: content is not what its hash was made of" in said
