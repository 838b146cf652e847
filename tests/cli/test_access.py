"""``caliber access`` and ``caliber conflicts``."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json

import caliber as package
from caliber.cli.observing.trace import step_text
from caliber.config import CaliberConfig
from caliber.config.manual.render import render_toml
from caliber.model import EntityRef, Principal
from caliber.model.events import EventType


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaliberConfig:
    """A store with a task of Ana and one of Ben, in the folder where commands run."""
    config = package.profiles.reference(str(tmp_path / "shop.db"), embedding_provider=None)
    (tmp_path / "caliber.toml").write_text(render_toml(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    with package.open(config, create=True) as memory:
        for name in ("ana@example.com", "ben"):
            memory.remember([{"role": "user", "content": f"The passport of {name} is in the drawer."}], user=name)
    return config


def found(*arguments: str) -> set[str]:
    """Return the names in the turns that a search finds."""
    hits = caliber_json(*arguments, "search", "passport drawer", "--kind", "turn")["hits"]
    return {hit["content"].split()[3] for hit in hits}


def test_commands_act_for_whom_as_names(shop: CaliberConfig) -> None:
    assert found() == found("--as", "admin") == found("--as", "admin:root") == {"ana@example.com", "ben"}
    assert found("--as", "user:ana@example.com") == {"ana@example.com"}
    assert found("--as", "user:ben") == {"ben"}
    assert found("--as", "app") == found("--as", "agent:planner") == found("--as", "user:chiara") == set()
    # Also after the name of the command, which then counts.
    hits = caliber_json("--as", "admin", "search", "passport", "--kind", "turn", "--as", "user:ben")["hits"]
    assert len(hits) == 1

    def latest(*arguments: str) -> str:
        return str(caliber_json("context", "latest", *arguments)["window_id"])

    assert latest("--as", "user:ana@example.com")
    own = latest("--as", "user:ben")
    whole = latest("--as", "admin")
    served = latest("--as", "app")
    assert "window" in caliber("context", "latest", "--as", "app").stdout
    assert caliber_json("explain", "latest", "--as", "user:ben")["window_id"] == own
    assert caliber_json("replay", own, "--as", "user:ben")["identical"]
    for window in (whole, served):
        assert "not found" in caliber("explain", window, "--as", "user:ben", code=2).stderr
        caliber("explain", window)
    assert "no window yet" in caliber("explain", "latest", "--as", "user:chiara", code=2).stderr
    assert "no active trajectory" in caliber("context", "latest", "--as", "agent:planner", code=2).stderr
    with package.open("caliber.toml", principal=package.Principal.agent("cron")) as memory:
        shared = str(memory.start_trajectory("a shared task").trajectory_id)
    assert caliber_json("context")["trajectory_id"] == shared
    theirs = caliber_json("context", "--as", "user:ben")
    assert theirs["trajectory_id"] != shared, "the newest task that is the user's own"
    assert caliber_json("explain", "--as", "user:ben")["window_id"] == theirs["window_id"]
    assert "of chiara yet" in caliber("context", "--as", "user:chiara", code=2).stderr
    assert "add --as user:NAME" in caliber("explain", own, "--as", "app", code=2).stderr
    plan = caliber_json("plan", "--as", "user:ana@example.com")["trajectory_id"]
    assert plan != caliber_json("plan", "--as", "user:ben")["trajectory_id"]


def test_what_administers_is_for_administrators(shop: CaliberConfig, tmp_path: Path) -> None:
    commands = [
        ("jobs", "list"),
        ("db", "backup", str(tmp_path / "copy.db")),
        ("db", "status"),
        ("db", "list", "notes"),
    ]
    for command in commands:
        for who in ("user:ben", "app", "agent:planner"):
            refused = caliber(*command, "--as", who, code=2).stderr
            assert "may not" in refused
            assert "--as admin" in refused
        caliber(*command, "--as", "admin", *(("--force",) if "backup" in command else ()))
    assert "acts for no principal" in caliber("--as", "user:ben", "check", code=2).stderr
    assert "No such option" in caliber("check", "--as", "user:ben", code=2).stderr


def test_figures_of_a_user_are_printed(shop: CaliberConfig) -> None:
    lines = caliber("stats", "--as", "user:ben").stdout.splitlines()
    assert lines[0] == "records"
    assert caliber_json("stats", "--as", "user:ben").keys() == {"records"}
    assert "kernels" in caliber("stats").stdout
    assert "may not watch" in caliber("top", "--once", "--as", "user:ben", code=2).stderr


@pytest.mark.parametrize(
    "wrong",
    ["", "ana", "user", "user:", "user: ", "human:ana", "root:x", "agent", "app:", "admin:", "user:" + "x" * 9_999],
)
def test_bad_principals_are_mistakes_in_the_call(shop: CaliberConfig, wrong: str) -> None:
    message = caliber("search", "x", "--as", wrong, code=2).stderr
    assert "error: --as" in message
    assert "user:ana@example.com, agent:planner, app or admin" in message


def test_a_configured_principal_stays(shop: CaliberConfig, tmp_path: Path) -> None:
    summary = caliber("check").stdout
    assert "principal      application:app  (commands act for admin:owner)" in summary
    shown = caliber_json("check")
    assert (shown["principal"], shown["administers"], shown["commands_act_for"]) == (
        "application:app",
        False,
        "admin:owner",
    )
    for knobs, seen, who in (
        ({"principal": {"kind": "human", "id": "ben", "admin": False}}, {"ben"}, "human:ben"),
        ({"principal": {"kind": "human", "id": "me", "admin": True}}, {"ana@example.com", "ben"}, "admin:me"),
    ):
        (tmp_path / "caliber.toml").write_text(render_toml(shop.with_overrides(**knobs)))
        assert found() == seen
        assert caliber_json("check")["commands_act_for"] == who
        assert found("--as", "user:ana@example.com") == {"ana@example.com"}
        assert "kernels" in caliber("doctor", "--json", code=None).stdout
        assert caliber_json("db", "check")["ok"]


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


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[CaliberConfig, list[str]]:
    """A store with a conflict of two notes, in the folder where commands run; and the ids of the notes."""
    config = package.profiles.reference(str(tmp_path / "homes.db"), embedding_provider=None)
    (tmp_path / "caliber.toml").write_text(render_toml(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    with package.open(config, create=True, principal=Principal.admin()) as memory:
        task = memory.start_trajectory("plan", user="ana").trajectory_id
        made = [
            memory.add_note(
                entity="Nadia",
                entity_type="person",
                note_type="fact",
                content=f"Nadia lives in {place}.",
                confidence=0.8,
                source_trajectory_ids=[task],
            )
            for place in ("Berlin", "Lisbon")
        ]
        assert len(memory.pcp.validate(task, record=True).conflicts) == 1
    return config, [str(note.note_id) for note in made]


def test_a_conflict_is_listed_and_resolved(homes: tuple[CaliberConfig, list[str]]) -> None:
    config, notes = homes
    (found,) = caliber_json("--as", "admin", "conflicts", "list")["conflicts"]
    assert found["status"] == "escalated"
    assert {found["item_a"], found["item_b"]} == {f"note:{each}" for each in notes}
    key = found["conflict_id"]
    assert key in caliber("--as", "admin", "conflicts", "list").stdout
    refused = caliber("--as", "admin", "conflicts", "resolve", key, "--keep", notes[1], code=2)
    assert "--yes" in refused.stderr
    done = caliber_json("--as", "admin", "conflicts", "resolve", key, "--keep", notes[1], "--reason", "moved", "--yes")
    assert (done["conflict"]["kept"], done["conflict"]["ended"]) == (notes[1], notes[0])
    assert done["conflict"]["resolution_reason"] == "moved"
    assert "there are no conflicts" in caliber("--as", "admin", "conflicts", "list").stdout
    assert caliber_json("--as", "admin", "conflicts", "list", "--status", "resolved")["conflicts"] == [done["conflict"]]
    again = caliber("--as", "admin", "conflicts", "resolve", key, "--keep", notes[0], "--yes", code=2)
    assert "resolved" in again.stderr
    with package.open(config, principal=Principal.admin()) as memory:
        assert memory.get(uuid.UUID(notes[0])).valid_until is not None


def test_conflicts_of_the_latest_task_are_listed(homes: tuple[CaliberConfig, list[str]]) -> None:
    (found,) = caliber_json("--as", "admin", "conflicts", "list", "--task", "latest")["conflicts"]
    assert {found["item_a"], found["item_b"]} == {f"note:{each}" for each in homes[1]}


@pytest.mark.parametrize(("kind", "words"), [("detect", "a conflict is found"), ("resolve", "a conflict is resolved")])
def test_a_trace_has_words_for_conflicts(kind: str, words: str) -> None:
    assert (
        step_text({"what": EventType(f"conflict_{kind}"), "details": {"strategy": "newest"}})
        == f"{words} (strategy newest)"
    )


def test_a_side_is_an_id_or_both(homes: tuple[CaliberConfig, list[str]]) -> None:
    (found,) = caliber_json("--as", "admin", "conflicts", "list")["conflicts"]
    key = found["conflict_id"]
    refused = caliber("--as", "admin", "conflicts", "resolve", key, "--keep", "newest", "--yes", code=2)
    assert 'must be the id of a side, or "both"' in refused.stderr
    done = caliber_json("--as", "admin", "conflicts", "resolve", key, "--keep", "both", "--yes")["conflict"]
    assert (done["status"], done["kept"], done["ended"]) == ("resolved", None, None)


def test_a_conflict_that_nobody_knows_is_an_error(homes: tuple[CaliberConfig, list[str]]) -> None:
    assert homes
    key = str(uuid.uuid4())
    assert key in caliber("--as", "admin", "conflicts", "resolve", key, "--strategy", "newest", "--yes", code=2).stderr
