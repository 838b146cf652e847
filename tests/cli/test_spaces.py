"""Changing the embedding model from the command line, as somebody does who has never done it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber, caliber_json
from support.configs import HASH_PROVIDER, config

import caliber as package
from caliber.config.manual.render import render_toml
from caliber.config.profiles import services

OLD_NAME, NEW_NAME = "hash-1:test@32", "hash-1:newer@48"
NEW = {**HASH_PROVIDER, "model": "newer", "dimensions": 48}


def configure(provider: dict[str, Any], **changes: Any) -> None:
    settings = config(
        "caliber.db",
        embedding_provider=provider,
        **{
            "vector.dimensions": provider["dimensions"],
            "embedding.reembed": "manual",
            "search.keyword.similar_words": "none",
            **changes,
        },
    )
    Path("caliber.toml").write_text(render_toml(settings))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    configure(HASH_PROVIDER)
    caliber("create")
    (tmp_path / "facts.md").write_text("# Drivers\n\nSQLite is reached through apsw.\n\n# Bees\n\nBees dance.\n")
    caliber("ingest", "files", "facts.md")
    return tmp_path


def test_a_model_is_changed_step_by_step(here: Path) -> None:
    assert "no embedding spaces" not in caliber("db", "spaces").stdout
    configure(NEW)
    said = caliber("search", "bees", code=1)
    assert f"note: {NEW_NAME} is being filled; until it is complete, nothing is found by meaning" in said.stderr
    assert "`caliber db reembed`" in said.stderr
    assert f"degraded: space_being_filled: {NEW_NAME}" in said.stderr
    assert "Bees dance" in said.stdout
    configure(NEW, previous_embedding_provider=HASH_PROVIDER)
    said = caliber("search", "bees")
    assert f"questions are answered with {OLD_NAME}" in said.stderr
    listed = caliber("db", "spaces").stdout
    assert f"{OLD_NAME}   in use" in listed
    assert "previous_embedding_provider" in listed
    assert f"{NEW_NAME} is being filled: `caliber db reembed` does it now" in listed
    assert f"searched is {OLD_NAME}, until {NEW_NAME} is complete" in caliber("stats").stdout
    assert f"{NEW_NAME} is being filled" in caliber("doctor").stdout
    assert "is the active search space" in caliber("db", "drop-space", OLD_NAME, code=2).stderr
    assert "would be filled again" in caliber("db", "drop-space", NEW_NAME, code=2).stderr
    assert "`caliber db spaces`" in caliber("db", "drop-space", "hash-1:none@8", code=2).stderr
    assert "cannot be filled here" in caliber("db", "reembed", "--space", OLD_NAME, code=2).stderr
    done = caliber("db", "reembed", "--space", NEW_NAME)
    assert "2 records got a vector; 2 of 2 have one" in done.stdout
    assert f"search uses {NEW_NAME} now, instead of {OLD_NAME}" in done.stdout
    assert f"caliber db drop-space {OLD_NAME}" in done.stdout
    assert "previous_embedding_provider is not needed" in caliber("doctor").stdout
    assert "note:" not in caliber("search", "bees").stderr
    assert f"dropped {OLD_NAME}: 2 vectors" in caliber("db", "drop-space", OLD_NAME).stdout
    spaces = caliber_json("db", "spaces")["spaces"]
    assert [(space["name"], space["state"], space["pending"]) for space in spaces] == [(NEW_NAME, "in use", 0)]
    assert "as before" in caliber("db", "reembed").stdout
    assert caliber_json("db", "reembed")["made"] == 0


def test_strays_and_rebuilding_are_told(here: Path) -> None:
    assert "no strays" in caliber("db", "sweep", "--dry-run").stdout
    with package.open("caliber.toml", principal=package.Principal.admin()) as memory:
        note = next(iter(memory.storage.notes.all()))
        memory.storage.notes.update(note.note_id, archived_at=note.created_at)
    planned = caliber("db", "sweep", "--dry-run").stdout
    assert "would remove 1 vector of records out of use" in planned
    assert "without --dry-run they go" in planned
    assert "would remove 1 vector" in caliber("db", "rebuild-search", "--dry-run").stdout
    assert caliber_json("db", "sweep")["count"] == 1
    rebuilt = caliber("db", "rebuild-search")
    assert "no strays" in rebuilt.stdout
    assert "sound" in rebuilt.stdout
    assert "verifying" in rebuilt.stderr
    document = caliber_json("db", "rebuild-search")
    assert (document["ok"], document["vectors"], document["outdated"]) == (True, 0, 0)


def test_an_outage_says_how_far_it_came_and_what_to_do(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A service that nobody answers for: the port is closed.
    quick = {"timeout_ms": 500}
    known = dict(services.EMBEDDING["ollama"])
    remote = {**known, "endpoint": "http://127.0.0.1:9", "dimensions": 48, "http": {**known["http"], **quick}}
    configure(remote, **{"llm_retry_config.max_retries": 0})
    said = caliber("db", "reembed", code=1)
    assert "stopped:" in said.stderr
    assert "0 of 2 records have a vector" in said.stderr
    assert "run `caliber db reembed` again to go on from there" in said.stderr
    document = caliber_json("db", "reembed", code=1)
    assert (document["done"], document["total"], document["error"]["exit_code"]) == (0, 2, 1)
