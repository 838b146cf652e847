"""``caliber conflicts``."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support.cli_runs import caliber, caliber_json

import caliber as package
from caliber.cli.observing.trace import step_text
from caliber.config import CaliberConfig
from caliber.config.manual.render import render_toml
from caliber.model import Principal
from caliber.model.events import EventType


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
