"""``caliber ingest --for``: windows recall what their owner imported and what is shared, nothing of other owners."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.cli_runs import caliber_json, commit, repository
from support.drawn import needs

from caliber import EntityRef, EntityType
from caliber.config import CaliberConfig

pytestmark = pytest.mark.databases("one")

MARIA, BO = EntityRef.user("maria"), EntityRef.user("bo")
ROBOT = EntityRef(EntityType.AGENT, uuid.UUID(int=7))
QUESTION = "What is my dog called, and when does the ferry sail?"
SHARED = "The ferry to the island sails at nine."
DOGS = {"maria": "My dog is called Pixel.", "bo": "My dog is called Biscuit.", f"agent:{ROBOT.id}": "My dog is Rover."}


@pytest.fixture
@needs("reopen")
def store(backend: Any, tmp_path: Path) -> CaliberConfig:
    """The configuration of a store that commands of the program can open."""
    settings: CaliberConfig = backend.config()
    backend.create(settings)
    (tmp_path / "caliber.json").write_text(settings.canonical_json())
    return settings


def talk(folder: Path, name: str, *contents: str) -> Path:
    """Write a conversation in which a user says some things."""
    file = folder / f"{name}.jsonl"
    messages = [{"role": role, "content": text} for text in contents for role in ("user", "assistant")]
    file.write_text(json.dumps({"id": name, "messages": messages}) + "\n")
    return file


def asked(backend: Any, settings: CaliberConfig, initiator: EntityRef, question: str = QUESTION) -> str:
    """Return the window of a question in a new task of an initiator."""
    with backend.open(settings) as memory:
        task = memory.start_trajectory("Answer a question", initiator=initiator)
        scope = memory.current_scope(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content=question)
        memory.flush()  # what was imported by the process before has its vectors
        window = memory.assemble_context(task.trajectory_id, max_tokens=2_000)
        memory.flush()
        assert memory.replay(window.window_id).text == window.text
        text: str = window.text
        return text


def test_imports_of_two_owners_do_not_meet_and_shared_ones_do(
    backend: Any, store: CaliberConfig, tmp_path: Path
) -> None:
    config = ("-c", tmp_path / "caliber.json")
    for owner, dog in DOGS.items():
        talk(tmp_path, owner.split(":")[0], dog, "It likes long walks.")
        run(*config, "ingest", "chat", tmp_path / f"{owner.split(':')[0]}.jsonl", "--for", owner)
    run(*config, "ingest", "chat", talk(tmp_path, "shared", SHARED))
    for owner, who in zip(DOGS, (MARIA, BO, ROBOT), strict=True):
        text = asked(backend, store, who)
        assert [dog in text for dog in DOGS.values()] == [dog == DOGS[owner] for dog in DOGS.values()], owner
        assert SHARED in text, owner
    # A user who imported nothing has what is shared; a shared task has nothing of any owner.
    stranger = asked(backend, store, EntityRef.user("eve"))
    assert SHARED in stranger
    assert not any(dog in stranger for dog in DOGS.values())
    shared = asked(backend, store, EntityRef(EntityType.SYSTEM, uuid.UUID(int=9)))
    assert SHARED in shared
    assert not any(dog in shared for dog in DOGS.values())


def test_documents_of_an_owner_stay_with_the_owner(backend: Any, store: CaliberConfig, tmp_path: Path) -> None:
    # Notes have no owner: what is imported for one becomes artifacts of the owner's task.
    config = ("-c", tmp_path / "caliber.json")
    guide = "# Garden\n\nThe key of the greenhouse hangs behind the blue door.\n"
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "garden.md").write_text(guide)
    source = repository(tmp_path / "project")
    decision = "# 0001: Water at dawn\n\n**Decision.** The greenhouse is watered at dawn.\n\n**Why.** It is cool.\n"
    commit(source, "Write down when to water", {"docs/decisions/0001-water.md": decision})
    found = caliber_json(*config, "ingest", "files", folder, "--for", "maria")
    assert (found["counts"]["notes"], found["counts"]["artifacts"]) == (0, 1)
    found = caliber_json(*config, "ingest", "git", source, "--for", "maria")
    assert (found["counts"]["notes"], found["counts"]["artifacts"], found["counts"]["turns"]) == (0, 1, 1)
    question = "Where is the key of the greenhouse, and when is it watered?"
    for who, hers in ((MARIA, True), (BO, False)):
        text = asked(backend, store, who, question)
        assert ("behind the blue door" in text) is hers
        assert ("watered at dawn" in text) is hers
    # A second import finds the first; a changed document supersedes, and the old words are gone.
    assert caliber_json(*config, "ingest", "files", folder, "--for", "maria")["added"] == 0
    (folder / "garden.md").write_text(guide.replace("blue", "green"))
    again = caliber_json(*config, "ingest", "files", folder, "--for", "maria")["counts"]
    assert (again["artifacts"], again["artifacts_replaced"]) == (1, 1)
    text = asked(backend, store, MARIA, question)
    assert "behind the green door" in text
    assert "behind the blue door" not in text
    # Imported once more for everybody, it is a note that all see.
    shared = caliber_json(*config, "ingest", "files", folder)["counts"]
    assert (shared["notes"], shared["artifacts"]) == (1, 0)
    assert "behind the green door" in asked(backend, store, BO, question)
