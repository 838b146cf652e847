"""``caliber export`` and ``caliber import``: records to Parquet files and from them. # D-005, issue 5, item 3"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from support.cli_runs import caliber, caliber_json

TALK = """\
{"role": "user", "content": "Which driver do we use for SQLite?"}
{"role": "assistant", "content": "We use apsw, since it exposes all of SQLite."}
"""


@pytest.fixture
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store that remembers something, and a configuration of another, empty one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    caliber("init")
    caliber("create")
    caliber("init", "--path", "other.toml", "--store", "other.db")
    caliber("create", "--config", "other.toml")
    (tmp_path / "talk.jsonl").write_text(TALK)
    (tmp_path / "facts.md").write_text("# Drivers\n\nSQLite is reached through apsw, PostgreSQL through psycopg.\n")
    caliber("ingest", "chat", "talk.jsonl")
    caliber("ingest", "files", "facts.md")
    return tmp_path


def test_records_go_to_another_store(remembered: Path) -> None:
    written = caliber_json("export", "--parquet", "out")
    rows = {item["relation"]: item["rows"] for item in written["files"]}
    assert list(rows) == [
        "session", "trajectory", "scope", "turn", "artifact", "checkpoint", "agent", "agent_group", "group_member",
        "note", "person_fact", "usage", "edge",
        "conflict", "embedding_cache", "delegation", "handoff", "workspace_value", "todo", "todo_dependency",
        "calendar_event", "identity", "access_grant",
    ]  # fmt: skip
    assert rows["turn"] == 2
    assert rows["note"] > 0
    assert sorted(path.name for path in (remembered / "out").iterdir()) == sorted(f"{name}.parquet" for name in rows)
    loaded = caliber_json("import", "--parquet", "out", "--config", "other.toml")
    assert {item["relation"]: item["loaded"] for item in loaded["files"]} == rows
    assert caliber_json("db", "check", "--config", "other.toml")["ok"]
    found = caliber_json("search", "apsw", "--config", "other.toml")
    assert "apsw" in found["hits"][0]["content"]
    assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in caliber_json("search", "apsw")["hits"]]
    # Once more: every row is there.
    assert "such a row exists already" in caliber("import", "--parquet", "out", "-c", "other.toml", code=2).stderr
    again = caliber("import", "--parquet", "out", "--config", "other.toml", "--on-existing", "skip").stdout
    assert "turn                      0 rows loaded  (2 rows there already)" in again


def test_one_relation_is_one_file(remembered: Path) -> None:
    said = caliber("export", "--parquet", "notes.parquet", "--relation", "note").stdout
    assert "notes.parquet" in said
    notes = parquet.read_table("notes.parquet")
    assert notes.schema.field("note_id").type == pa.binary(16)
    loaded = caliber_json("import", "--parquet", "notes.parquet", "--config", "other.toml")
    assert loaded["files"][0]["loaded"] == notes.num_rows
    vectors = caliber_json("export", "--parquet", "v", "--relation", "embedding", "--relation", "embedding_space")
    assert [item["relation"] for item in vectors["files"]] == ["embedding_space", "embedding"]


def test_a_file_of_somebody_elses_is_taken(remembered: Path) -> None:
    table = pa.table(
        {"entity": ["SQLite"], "entity_type": ["database"], "note_type": ["fact"], "content": ["It is one file."],
         "confidence": [1.0]}
    )  # fmt: skip
    parquet.write_table(table, "given.parquet")
    assert "does not name its relation" in caliber("import", "--parquet", "given.parquet", code=2).stderr
    caliber("import", "--parquet", "given.parquet", "--relation", "note")
    found = caliber_json("search", "one file")["hits"][0]
    assert (found["content"], found["trust"]) == ("It is one file.", "web"), "nothing says where it came from"


def test_a_bad_row_is_named_and_what_is_loaded_is_said(remembered: Path) -> None:
    caliber("export", "--parquet", "out")
    turns = parquet.read_table("out/turn.parquet")
    number = turns.schema.get_field_index("token_count")
    parquet.write_table(turns.set_column(number, "token_count", pa.array([3, -1])), "out/turn.parquet")
    said = caliber("import", "--parquet", "out", "--config", "other.toml", code=2).stderr
    assert "row 1, token_count: must be 0 or more" in said
    assert "session, trajectory, scope are loaded; go on with --on-existing skip" in said
    assert caliber_json("db", "check", "--config", "other.toml")["ok"]


def test_what_cannot_be_read_or_written_is_said(remembered: Path) -> None:
    (remembered / "text.parquet").write_text("not Parquet, whatever its name says")
    (remembered / "empty").mkdir()
    for path, said in (
        ("nowhere.parquet", "it is not there"),
        ("text.parquet", "not a Parquet file"),
        ("empty", "holds no records"),
    ):
        assert said in caliber("import", "--parquet", path, code=1 if path.startswith("no") else 2).stderr
    two = ("--relation", "note", "--relation", "turn")
    assert "is one file" in caliber("export", "--parquet", "x.parquet", *two, code=2).stderr
    assert "is one file" in caliber("import", "--parquet", "text.parquet", *two, code=2).stderr
    caliber("export", "--parquet", "x.parquet", "--relation", "note")
    before = (remembered / "x.parquet").read_bytes()
    assert "is there already" in caliber("export", "--parquet", "x.parquet", "--relation", "note", code=2).stderr
    for name, hint in (("notes", "did you mean 'note'?"), ("weather", "it exports session, trajectory, ")):
        assert hint in caliber("export", "--parquet", "y.parquet", "--relation", name, code=2).stderr
    assert (remembered / "x.parquet").read_bytes() == before
    caliber("export", "--parquet", "x.parquet", "--relation", "note", "--force")
    blocked = remembered / "folder" / ".note.parquet.part"
    blocked.mkdir(parents=True)
    assert "cannot be written" in caliber("export", "--parquet", "folder", "--relation", "note", code=1).stderr
