"""``caliber eval --windows``: the share of what was expected that windows hold, and the step that lost the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.cli_runs import caliber_json
from support.configs import AGENT
from support.drawn import needs

from caliber import Principal
from caliber.model.access import PrincipalKind

pytestmark = pytest.mark.databases("one")

UNKNOWN = "0190f3c2-7c00-7000-8000-000000000000"
MAKER = Principal(PrincipalKind.HUMAN, "maker", is_admin=True)
LONG = "The archive of the harbour office is kept in the cellar. " * 60


class World:
    """A store with a task, its turns and a few notes, and a configuration file for the command line."""

    def __init__(self, backend: Any, folder: Path, **overrides: Any) -> None:
        self.backend = backend
        self.folder = folder
        self.settings = backend.config(embedding__embed__turn="commit", embedding__embed__note="commit", **overrides)
        self.file = folder / "caliber.json"
        self.file.write_text(self.settings.canonical_json())
        with backend.open(self.settings, principal=MAKER) as memory:
            task = memory.start_trajectory("Look after the harbour", initiator=AGENT)
            scope = memory.current_scope(task.trajectory_id)
            turn = memory.append_turn(scope.scope_id, role="user", name="Ines", content="The ferry sails at nine.")
            self.task = task.trajectory_id
            self.turn = turn.turn_id
            self.notes = {
                name: memory.add_note(
                    entity=name, entity_type="place", note_type="fact", content=content, confidence=0.9
                ).note_id
                for name, content in (
                    ("quay", "The quay is closed on Mondays."),
                    ("crane", "The crane lifts forty tons."),
                    ("old crane", "The crane lifts thirty tons."),
                    ("archive", LONG),
                )
            }
            memory.storage.notes.update(self.notes["old crane"], superseded_by=self.notes["crane"])

    def ask(self, *questions: tuple[str, Any]) -> Path:
        file = self.folder / "questions.jsonl"
        file.write_text("\n".join(json.dumps({"query": query, "expected": what}) for query, what in questions))
        return file

    def eval(self, *questions: tuple[str, Any], options: tuple[Any, ...] = (), code: int = 0) -> Any:
        return caliber_json("-c", self.file, "eval", self.ask(*questions), "--windows", *options, code=code)

    def records(self) -> dict[str, int]:
        """Count what evaluating must not leave behind."""
        names = ("trajectory", "scope", "turn", "note", "artifact", "context_window", "embedding")
        with self.backend.open(self.settings, principal=MAKER) as memory:
            counted = memory.admin.stats()["records"]
            return {name: counted[name] for name in names}


@pytest.fixture
@needs("reopen")
def world(backend: Any, tmp_path: Path) -> World:
    return World(backend, tmp_path)


def lost(found: Any, label: str, budget: int) -> Any:
    """Return why a window does not hold what was expected."""
    (entry,) = [entry for entry in found["misses"] if entry["expected"] == str(label)]
    return entry["lost"][str(budget)]


# --- figures ------------------------------------------------------------------------------------


def test_windows_of_a_new_task_hold_what_was_expected_and_leave_nothing_behind(world: World) -> None:
    before = world.records()
    found = world.eval(
        ("When is the quay closed?", str(world.notes["quay"])),
        ("How much does the crane lift?", ["lifts FORTY\ntons", "no record says this"]),
        options=("--budgets", "1000,40"),
    )
    assert world.records() == before
    assert found["questions"] == 2
    assert found["expected"] == 3
    assert list(found["budgets"]) == ["40", "1000"]
    figures = found["budgets"]["1000"]
    assert figures["held"] == 0.75
    assert figures["all_held"] == 0.5
    assert 0 < figures["evidence_tokens"] < figures["used_tokens"] <= 1000
    assert figures["lost"] == {"no_such_record": 1}
    assert found["missed"] == 1 or found["budgets"]["40"]["held"] < 0.75
    assert lost(found, "no record says this", 1000)["code"] == "no_such_record"
    assert found["degraded"] == {}


@needs("reopen")
def test_budgets_are_those_that_the_configuration_allows(backend: Any, tmp_path: Path) -> None:
    world = World(backend, tmp_path, token_budget=1_500, pcp__dosage__max_context_tokens=1_500)
    asked = ("When is the quay closed?", str(world.notes["quay"]))
    assert list(world.eval(asked)["budgets"]) == ["500", "1000"]
    refused = world.eval(asked, options=("--budgets", "1501"), code=2)["error"]
    assert "token_budget = 1500" in refused["message"]


# --- reasons ------------------------------------------------------------------------------------


def test_each_miss_names_the_step_that_lost_it(world: World) -> None:
    archive, quay = str(world.notes["archive"]), str(world.notes["quay"])
    found = world.eval(
        ("Where is the archive of the harbour office?", archive),
        ("How much does the crane lift?", str(world.notes["old crane"])),
        ("When is the quay closed?", [quay, UNKNOWN]),
        options=("--budgets", "2,300"),
    )
    # It is longer than the whole budget: in whatever words, a limit of the window lost it.
    assert lost(found, archive, 300)["code"] in ("section_full", "budget_full", "truncated")
    assert lost(found, archive, 300)["why"]
    superseded = lost(found, world.notes["old crane"], 300)
    assert superseded["code"] == "superseded"
    assert str(world.notes["crane"]) in superseded["why"]
    assert lost(found, UNKNOWN, 300)["code"] == "no_such_record"
    assert lost(found, quay, 2)["code"] in ("budget_too_small", "budget_full", "section_full")
    (entry,) = [entry for entry in found["misses"] if entry["expected"] == archive]
    assert entry["rank"] == 1
    assert entry["id"] == archive
    assert entry["query"] == "Where is the archive of the harbour office?"


@needs("reopen")
def test_a_record_below_the_floor_says_so(backend: Any, tmp_path: Path) -> None:
    world = World(backend, tmp_path, min_relevance_threshold=1.0)
    crane = str(world.notes["crane"])
    found = world.eval(("The quay is closed on Mondays, and the crane?", crane), options=("--budgets", "300"))
    assert lost(found, crane, 300)["code"] == "below_floor"


@needs("reopen")
def test_a_record_that_search_does_not_find_says_so(backend: Any, tmp_path: Path) -> None:
    world = World(backend, tmp_path, search__min_similarity=0.99, pcp__dosage__max_notes_in_window=20)
    with backend.open(world.settings, principal=MAKER) as memory:
        # More notes that share words with the question than a window takes.
        for number in range(world.settings.pcp.dosage.max_notes_in_window):
            memory.add_note(
                entity=f"zebra {number}", entity_type="animal", note_type="fact", confidence=0.9,
                content=f"The zebra {number} is striped.",
            )  # fmt: skip
    found = world.eval(("Is the zebra striped?", str(world.notes["quay"])), options=("--budgets", "300"))
    assert lost(found, world.notes["quay"], 300)["code"] == "not_found"
    (entry,) = found["misses"]
    assert entry["rank"] is None


# --- the command --------------------------------------------------------------------------------


def test_people_read_figures_steps_and_reasons(world: World) -> None:
    file = world.ask(
        ("When is the quay closed?", str(world.notes["quay"])),
        ("a \x1b[31mred\x1b[0m question", "nobody wrote that"),
        ("another", "nobody wrote this"),
    )
    text = run("-c", world.file, "eval", file, "--windows", "--budgets", "200,1000", "--limit-misses", "1").stdout
    assert "3 questions, 3 expected records" in text
    for part in ("evidence held", "tokens used", "of them evidence", "no_such_record"):
        assert part in text
    assert "1,000" in text
    assert "a \N{REPLACEMENT CHARACTER}[31mred" in text
    assert "\x1b" not in text
    assert "… and 1 more" in text
    everything = world.ask(("When is the quay closed?", "QUAY is closed"))
    options = ("--windows", "--budgets", "1000")
    assert "nothing was missed" in run("-c", world.file, "eval", everything, *options).stdout


def test_evidence_below_the_bar_is_exit_code_1(world: World) -> None:
    file = world.ask(("When is the quay closed?", "QUAY is closed"), ("zebra", UNKNOWN))
    options = ("--windows", "--budgets", "1000", "--fail-under")
    run("-c", world.file, "eval", file, *options, "0.5")
    result = run("-c", world.file, "eval", file, *options, "0.51", code=1)
    assert "evidence held at 1,000 tokens 0.500 is below 0.51" in result.stderr


def test_options_that_mean_nothing_are_refused(world: World) -> None:
    file = world.ask(("x", "y"))
    for options, message in (
        (("--windows", "--budgets", "none"), "expected numbers of tokens"),
        (("--windows", "--budgets", "0,100"), "expected numbers of tokens"),
        (("--windows", "--budgets", ""), "expected numbers of tokens"),
        (("--windows", "--k", "3"), "--k counts hits"),
        (("--budgets", "100"), "is for --windows"),
        (("--windows", "--kind", "plaice"), "unknown kind"),
    ):
        assert message in run("-c", world.file, "eval", file, *options, code=2).stderr


@needs("reopen")
def test_only_an_admin_measures_windows(backend: Any, tmp_path: Path) -> None:
    world = World(backend, tmp_path, principal={"kind": "agent", "id": "reader", "admin": False})
    before = world.records()
    assert "only an admin" in world.eval(("When is the quay closed?", "QUAY is closed"), code=2)["error"]["message"]
    assert world.records() == before
