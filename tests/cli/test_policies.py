"""``caliber policies``: what happens by itself, and when next. Source: C-238."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json

SCHEDULE = """
[[policies]]
name = "nightly"

[[policies.rules]]
on = "schedule"
cron = "30 3 * * *"

[[policies.rules.actions]]
action = "prune"
target = "note"
below_confidence = 0.3
"""


def test_rules_are_listed_with_when_they_are_due_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    caliber("init", "--full")
    text = (tmp_path / "caliber.toml").read_text().replace("# time_zone =", 'time_zone = "Asia/Kolkata"')
    (tmp_path / "caliber.toml").write_text(text + SCHEDULE)
    caliber("create")
    first = caliber("policies").stdout
    assert 'nightly: on schedule("30 3 * * *"): prune note' in first
    assert "03:30 Asia/Kolkata, new: counts from the first look" in first
    ran = caliber_json("policies", "--run")
    rule = ran["rules"][-1]
    assert (ran["actions_done"], rule["policy"], rule["actions"]) == (0, "nightly", ["prune note"])
    assert rule["next_at"][10:] == "T03:30:00+05:30"
    assert "done up to" in caliber("policies").stdout
    assert any(other["on"] != "schedule" and "next_at" not in other for other in ran["rules"])
