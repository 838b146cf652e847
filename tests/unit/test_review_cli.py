"""Messages of the command line for mistakes that looked like successes. Source: issue, item 9."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    caliber("init")
    caliber("create")
    return tmp_path


def _changed(folder: Path, old: str, new: str) -> Path:
    text = (folder / "caliber.toml").read_text()
    assert old in text
    target = folder / "changed.toml"
    target.write_text(text.replace(old, new))
    return target


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('provider_type = "extractive"', 'provider_type = "cohere"', "not supported"),
        ('on = "task_end"', 'on = "schedule"\ncron = "0 3 * * *"', "a schedule has none"),
    ],
)
def test_check_lists_what_would_keep_the_store_from_opening(store: Path, old: str, new: str, says: str) -> None:
    changed = _changed(store, old, new)
    document = caliber_json("check", changed, code=1)
    assert not document["ok"]
    assert any(says in fault["message"] for fault in document["faults"])
    caliber("stats", "-c", changed, code=2)


def test_importing_nothing_is_a_mistake_and_leaves_nothing_behind(store: Path) -> None:
    (store / "empty").mkdir()
    assert "nothing to remember" in caliber("ingest", "files", "empty", code=2).stderr
    (store / "large.txt").write_text("a" * 2_000)
    refused = caliber("ingest", "files", "large.txt", "--max-bytes", "1000", code=2).stderr
    assert "1 larger than 1,000 bytes" in refused
    assert caliber_json("db", "list", "trajectories")["total"] == 0


def test_a_folder_whose_files_are_gone_may_be_imported_again(store: Path) -> None:
    folder = store / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n\nWe decided to keep this one.\n")
    (folder / "b.md").write_text("# B\n\nThis one will stay as well.\n")
    first = caliber_json("ingest", "files", "docs")
    assert first["counts"]["documents"] == 2
    (folder / "a.md").unlink()
    (folder / "b.md").unlink()
    gone = caliber_json("ingest", "files", "docs")
    assert gone["trajectory_id"] == first["trajectory_id"]
    assert gone["counts"]["notes_archived"] == first["counts"]["notes"]


def test_one_conversation_is_one_conversation(store: Path) -> None:
    (store / "a.jsonl").write_text('{"role": "user", "content": "hi"}\nnot json\n')
    said = caliber("ingest", "chat", "a.jsonl", "--skip-bad").stdout
    assert "1 conversation:" in said
    assert "1 bad line\n" in said


def test_a_folder_as_store_is_called_a_folder(store: Path) -> None:
    (store / "place").mkdir()
    changed = _changed(store, 'path = "caliber.db"', 'path = "place"')
    assert "is a folder" in caliber("create", "-c", changed, code=2).stderr


def test_a_configuration_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / ".c.toml.x1y2"))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    said = caliber("init", "--path", tmp_path / "c.toml", code=1).stderr
    assert f"{tmp_path / 'c.toml'}: Permission denied" in said


@pytest.mark.parametrize("table", ["note", "artifact"])
def test_verify_sees_content_that_is_not_what_was_written(store: Path, table: str) -> None:
    """A page with other bytes in a text is a whole page to SQLite, and memory is loaded from it."""
    (store / "docs").mkdir()
    (store / "docs" / "a.md").write_text("# A\n\nWe decided to keep this one.\n")
    (store / "docs" / "a.py").write_text("print('code is kept as an artifact')\n")
    caliber("ingest", "files", "docs")
    caliber("db", "check")
    connection = sqlite3.connect(store / "caliber.db")
    with connection:
        value = "'KEEP'" if table == "note" else "CAST('KEEP' AS BLOB)"
        assert connection.execute(f"UPDATE {table} SET content = {value}").rowcount == 1
    connection.close()
    said = caliber("db", "check", code=1).stdout
    assert f"{table}: content is not what its hash was made of" in said
