"""Rules on the command line: ``caliber plan`` tries them, ``caliber explain`` says what one changed rule changed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber, caliber_json
from support.configs import USER, policy

from caliber.admin.rule_outcomes import plan_rules
from caliber.api.opening import create
from caliber.api.opening import open as open_store
from caliber.config import profiles
from caliber.config.manual.render import render_toml

NOTES = {"memory": "note", "mode": {"kind": "full"}, "priority": 60, "max_tokens": 40}


def written(path: Path, *rules: dict[str, Any], **more: Any) -> Any:
    """Write a configuration of one store with some rules, and return it."""
    config = profiles.reference(
        path.parent / "a.db",
        embedding_provider=None,
        **{"search.keyword.similar_words": "none", "injection_rules": list(rules), **more},
    )
    path.write_text(render_toml(config), encoding="utf-8")
    return config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with three notes and a conversation, whose configuration brings notes that are sure."""
    monkeypatch.chdir(tmp_path)
    rules = [
        {**NOTES, "filter": "confidence > 0.5"},
        {"memory": "turn_buffer", "mode": {"kind": "full"}, "priority": 9},
    ]
    config = written(
        tmp_path / "caliber.toml",
        *rules,
        policies=[policy("task_start", {"action": "inject", "target": "note", "mode": {"kind": "full"}}, name="greet")],
    )
    create(config)
    with open_store(config) as memory:
        task = memory.start_trajectory("plan", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content="hello")
        for text, confidence in (("make builds it", 0.9), ("tea is hot " * 20, 0.8), ("perhaps rain", 0.3)):
            memory.add_note(entity=text[:4], entity_type="topic", note_type="fact", content=text, confidence=confidence)
    return tmp_path


def test_plan_says_what_each_rule_brings_and_what_it_costs(folder: Path) -> None:
    # issue item 5
    found = caliber_json("plan", folder / "caliber.toml")
    first, once, turns = found["rules"]
    assert (first["rule"], first["memory"], first["mode"], first["priority"], first["cap_tokens"]) == (
        "note", "note", "full", 60, 40,
    )  # fmt: skip
    assert (first["considered"], first["through"], first["selected"], first["included"]) == (3, 2, 2, 1)
    assert first["excluded"] == {"section_limit": 1}
    assert first["cost_tokens"] > 40 >= first["used_tokens"]
    assert (once["once"], once["selected"], once["considered"]) == ("greet[0][0] on task_start", 1, 3)
    assert (turns["rule"], turns["considered"], turns["included"]) == ("turn_buffer", 1, 1)
    assert found["left_tokens"] == found["max_tokens"] - found["used_tokens"]
    assert found == caliber_json("plan", folder / "caliber.toml", "--trajectory", found["trajectory_id"])
    assert (found["query"], found["query_from"]) == ("hello", "last_user_turn")
    text = caliber("plan").stdout
    assert "asked by the last user message: hello" in text
    assert "nothing is asked" in caliber("plan", "--query", "").stdout
    assert "asked: tea" in caliber("plan", "--query", "tea").stdout
    assert "note: full of note, priority 60, at most 40 tokens" in text
    assert "where confidence > 0.5" in text
    assert "3 considered, 2 pass the filter, 2 selected" in text
    assert f"{found['left_tokens']} left" in text


def test_plan_makes_the_window_that_would_be_assembled(folder: Path) -> None:
    # O-16: also the query is that of the window
    config = written(
        folder / "ranked.toml", {"memory": "turn_buffer", "mode": {"kind": "top_k", "count": 2}, "priority": 9}
    )
    with open_store(config) as memory:
        task = memory.start_trajectory("which tea is hot?", initiator=USER)
        goal = plan_rules(config, task.trajectory_id)
        assert (goal.query, goal.query_from) == ("which tea is hot?", "goal")
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        for text in ("green tea is hot", "rain is cold", "small talk", "which tea is hot?"):
            memory.append_turn(scope.scope_id, role="user", content=text)
        window = memory.assemble_context(task.trajectory_id)
        assert "green tea is hot" in window.text
        found = plan_rules(config, task.trajectory_id)
        assert (found.window.text, found.query_from) == (window.text, "last_user_turn")
        assert [(item.rule, item.selected, item.considered) for item in found.rules] == [("turn_buffer", 2, 4)]


def test_plan_writes_nothing(folder: Path) -> None:
    # the window is not kept, nothing is counted, what waits for a window waits on, the file is not recorded
    written(folder / "changed.toml", {**NOTES, "max_tokens": 12})

    def everything() -> str:
        with closing(sqlite3.connect(folder / "a.db")) as store:
            return "\n".join(store.iterdump())

    before = everything()
    assert "once_note" in caliber("plan", folder / "changed.toml", "--query", "tea").stdout
    assert everything() == before


def test_plan_of_a_changed_file_against_the_same_memory(folder: Path) -> None:
    written(folder / "changed.toml", {**NOTES, "filter": "confidence > 0.85"}, {**NOTES, "memory": "artifact"})
    found = caliber_json("plan", folder / "changed.toml", "--query", "make")
    assert [(item["rule"], item["through"], item["selected"]) for item in found["rules"]][:2] == [
        ("note", 1, 1),
        ("artifact", 0, 0),
    ]
    broken = written(folder / "broken.toml", {**NOTES, "filter": "confidance > 0.85"})
    assert broken.injection_rules
    told = caliber("plan", folder / "broken.toml", code=None)
    assert told.exit_code != 0
    assert "confidence" in told.stderr
    plain = written(folder / "plain.toml")
    assert plain.injection_rules == ()
    assert "there are no rules of injection" in caliber("plan", folder / "plain.toml").stdout
    assert caliber("plan", "--trajectory", "nonsense", code=None).exit_code != 0


def test_changing_one_rule_visibly_changes_the_window(folder: Path) -> None:
    # issue, done when: "changing one rule visibly changes the window, shown by `caliber explain`"
    first = caliber_json("context", "latest")
    second = caliber_json("context", "latest")  # what a trigger asked for is gone
    written(folder / "caliber.toml", {**NOTES, "filter": "confidence > 0.2"})
    third = caliber_json("context", "latest")
    ids = [window["window_id"] for window in (first, second, third)]
    told = [json.loads(caliber("explain", window, "--json").stdout) for window in ids]
    assert [[item["rule"] for item in window["rules"]] for window in told] == [
        ["note", "once_note", "turn_buffer"],
        ["note", "turn_buffer"],
        ["note"],
    ]
    (doubtful,) = [item["id"] for item in told[2]["inclusions"] if item.get("rule") == "note"][:1]
    assert told[2]["rules"][0]["filter"] == "confidence > 0.2"
    left_out = json.loads(caliber("explain", ids[1], "--exclusion", doubtful, "--json").stdout)
    assert left_out["reason"] == "the rule note filters it: confidence 0.3 is not > 0.5"


KILLED = """
import os, signal, sys, uuid
import caliber
memory = caliber.open(sys.argv[1], principal=caliber.Principal.admin())
if sys.argv[2] == "start":
    memory.start_trajectory("killed", initiator=caliber.EntityRef(caliber.EntityType.USER, uuid.uuid4()))
else:
    task = max(memory.storage.trajectories.list_by_status("active"), key=lambda item: item.last_activity_at)
    assert "once_note" in [item.name for item in memory.assemble_context(task.trajectory_id).sections]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_trigger_asked_for_outlives_a_kill(folder: Path) -> None:
    # K-065: killed after the trigger, and killed before the window that took it was kept
    greet = [policy("task_start", {"action": "inject", "target": "note", "mode": {"kind": "full"}}, name="greet")]
    written(
        folder / "late.toml",
        {**NOTES, "memory": "artifact"},
        policies=greet,
        **{"write_behind.flush_interval_ms": 600_000},
    )
    for step in ("start", "assemble"):
        done = subprocess.run([sys.executable, "-c", KILLED, "late.toml", step], check=False, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    kept = caliber_json("context", "latest", "-c", "late.toml")
    assert "once_note" in [item["rule"] for item in caliber_json("explain", kept["window_id"])["rules"]]
    again = caliber_json("context", "latest", "-c", "late.toml")
    assert "once_note" not in [item["rule"] for item in caliber_json("explain", again["window_id"])["rules"]]


# --- policies --------------------------------------------------------------------------------------


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
