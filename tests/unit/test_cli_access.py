"""``caliber access``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json

import caliber as package
from caliber.config.manual.render import render_toml
from caliber.model import EntityRef, Principal


def test_rights_are_granted_listed_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = package.profiles.reference(str(tmp_path / "shop.db"), embedding_provider=None)
    (tmp_path / "caliber.toml").write_text(render_toml(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    with package.open(config, create=True) as memory:
        task = str(memory.acting_as(Principal.user("ana")).start_trajectory("renew the passport").trajectory_id)
    made = caliber_json("access", "grant", task, "--to", "ben", "--until", "2099-01-01")["grant"]
    assert made["to"] == f"user:{EntityRef.user('ben').id}"
    assert made["on"] == f"trajectory:{task}"
    caliber("access", "grant", task, "--agent", "helper", "--right", "write")
    listed = caliber("access", "list", "--on", task).stdout
    assert f"read   trajectory:{task}" in listed
    assert "until 2099-01-01" in listed
    assert len(caliber_json("access", "revoke", "--on", task, "--to", "ben")["revoked"]) == 1
    (left,) = caliber_json("access", "list")["grants"]
    assert left["to"] == f"agent:{EntityRef.agent('helper').id}"
    assert len(caliber_json("access", "list", "--ended")["grants"]) == 2
    caliber("access", "grant", task, code=2)
    caliber("access", "grant", task, "--to", "ben", "--agent", "helper", code=2)
