"""``caliber db tenants``, ``db tenant`` and ``--tenant``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json
from support.tenancy.tenancies import tenancy_config

from caliber.api.opening import create
from caliber.api.tenants import Tenants
from caliber.config.manual.render import render_toml


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration whose tenants go to one of two sets of files."""
    settings = tenancy_config(tmp_path, embedding_provider=None)
    data = settings.to_mapping()["tenancy"]
    files = data["sources"]["files"]
    data["sources"] = {"files": files, "archive": {**files, "path": str(tmp_path / "archive_{tenant}.db")}}
    (tmp_path / "caliber.toml").write_text(render_toml(settings.with_overrides(tenancy=data)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    return tmp_path


def test_a_tenant_from_creation_to_its_end(here: Path) -> None:
    # issue 5 item 8: create, list, move, drop
    assert "alice.db in files" in caliber("db", "tenant", "create", "alice").stdout
    (here / "talk.jsonl").write_text('{"role": "user", "content": "Which paint is on the door?"}\n')
    caliber("--tenant", "alice", "ingest", "chat", "talk.jsonl")
    moved = caliber_json("db", "tenant", "move", "alice", "--to", "archive")
    assert moved["source"] == "archive"
    assert moved["rows"]["turn"] == 1
    assert len(moved["hashes"]["turn"]) == 64
    (listed,) = caliber_json("db", "tenants")["tenants"]
    assert listed["left_behind"].endswith("alice.db in files")
    assert "paint" in caliber("search", "paint", "-t", "alice").stdout
    assert "removed" in caliber("db", "tenant", "drop", "alice", "--old").stdout
    assert not (here / "alice.db").exists()
    refused = caliber("db", "tenant", "drop", "alice", "--json", code=2)
    assert "--yes" in refused.stdout + refused.stderr
    assert "dropped" in caliber("db", "tenant", "drop", "alice", "--yes").stdout
    assert caliber_json("db", "tenants")["tenants"] == []


def test_mistakes_say_what_to_do(here: Path) -> None:
    caliber("db", "tenant", "create", "alice")
    assert "--abort" in caliber("db", "tenant", "move", "alice", code=2).stderr
    assert "not moving" in caliber("db", "tenant", "move", "alice", "--abort", code=2).stderr
    assert "there are archive, files" in caliber("db", "tenant", "move", "alice", "--to", "moon", code=2).stderr
    assert "no tenant carol" in caliber("stats", "--tenant", "carol", code=2).stderr
    assert "db tenant create" in caliber("create", "--tenant", "carol", code=2).stderr


def test_the_rule_for_names_is_stated_where_names_are_chosen() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "tenants.md").read_text(encoding="utf-8")
    for text in (caliber("db", "tenant", "create", "--help").stdout, create.__doc__, Tenants.create.__doc__, page):
        assert "any text of up to 1,024 bytes of UTF-8 without control characters" in " ".join(str(text).split())


@pytest.mark.parametrize("suffix", ["toml", "json", "caliber"])
def test_init_writes_tenants_beside_the_store(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    on = ("-c", f"app.{suffix}")
    said = caliber("init", "--tenants", "--path", f"app.{suffix}", "--embedding", "none").stdout
    assert "caliber db tenant create" in said
    assert (tmp_path / f"app.{suffix}").read_text().count("\n") <= 40
    caliber("init", "--tenants", "--full", "--path", f"full.{suffix}", "--embedding", "none")
    assert caliber_json("check", *on)["config_hash"] == caliber_json("check", f"full.{suffix}")["config_hash"]
    made = caliber("db", "tenant", "create", "user@example.com", *on).stdout
    assert "--tenant user@example.com" in made
    caliber("db", "tenant", "create", "O'Neil & Sons", *on)
    (tmp_path / "talk.jsonl").write_text('{"role": "user", "content": "Which paint is on the door?"}\n')
    caliber(*on, "--tenant", "user@example.com", "ingest", "chat", "talk.jsonl")
    assert "paint" in caliber(*on, "--tenant", "user@example.com", "search", "paint").stdout
    assert "paint" not in caliber(*on, "--tenant", "O'Neil & Sons", "search", "paint", code=None).stdout
    assert {path.name for path in tmp_path.iterdir()} >= {"tenants", "tenants.db"}
    assert not (tmp_path / "caliber.db").exists()


def test_commands_of_many_tenants_ask_for_a_name_not_for_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caliber("init", "--tenants", "--embedding", "none")
    assert "caliber db tenant create" in caliber("doctor", code=1).stdout, "there is no tenant yet"
    for name in ("user@example.com", "O'Neil & Sons"):
        caliber("db", "tenant", "create", name)
    assert "the directory has 2" in caliber("doctor").stdout
    assert "--tenant" in caliber("check").stdout
    asked = caliber("search", "paint", code=2).stderr
    assert "no tenant is named" in asked
    assert "caliber db tenants" in asked
    caliber("create")
    assert "no tenant" not in caliber("search", "paint", code=None).stderr
