"""``caliber eval``: figures from real stores, and a reason for every miss. Source: issue "Search in native memory"."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.cli_runs import caliber_json
from support.configs import USER, config

import caliber
from caliber import Principal
from caliber.model.access import PrincipalKind

UNKNOWN = "0190f3c2-7c00-7000-8000-000000000000"
SPRING = datetime(2024, 3, 1, tzinfo=UTC)


class World:
    """A store with a few records, opened by the command line through a configuration file."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        self.folder = folder
        self.file = folder / "caliber.json"
        self.settings = config(str(folder / "world.db"), embedding__embed__turn="commit", **overrides)
        self.file.write_text(self.settings.canonical_json())
        caliber.create(self.settings)
        self.ids: dict[str, uuid.UUID] = {}
        with caliber.open(self.settings, principal=Principal(PrincipalKind.HUMAN, "maker", is_admin=True)) as memory:
            self.fill(memory)

    def fill(self, memory: caliber.Caliber) -> None:
        task = memory.start_trajectory("Run the service", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        said = memory.append_turn(scope.scope_id, role="user", name="Ines", content="Backups run every night at two.")
        artifact = memory.create_artifact(
            scope.scope_id,
            artifact_type="fact",
            content="The disk of the backup host was replaced.",
            extraction_method="explicit",
        )
        self.ids.update(trajectory=task.trajectory_id, scope=scope.scope_id, turn=said.turn_id)
        self.ids["artifact"] = artifact.artifact_id
        self.note(memory, "driver", "SQLite is reached through apsw.")
        self.note(memory, "driver", "PostgreSQL is reached through psycopg.", note_type="gotcha")
        self.note(memory, "secret", "The vault opens at dawn.", visible_to=["agent:planner"])
        self.note(memory, "spring", "In spring the rate limit was forty.", valid_until=SPRING + timedelta(days=30))

    def note(self, memory: caliber.Caliber, entity: str, content: str, **more: Any) -> None:
        settings = {"entity_type": "thing", "note_type": "fact", "confidence": 0.9, **more}
        note = memory.add_note(entity=entity, content=content, **settings)
        self.ids[content.split()[0].lower() if entity == "driver" else entity] = note.note_id

    def ask(self, *questions: dict[str, Any]) -> Path:
        """Write questions as JSON Lines; names of records become their ids."""
        file = self.folder / "questions.jsonl"
        named = [
            {**item, "expected": [str(self.ids.get(name, name)) for name in _listed(item["expected"])]}
            for item in questions
        ]
        file.write_text("\n".join(json.dumps(item) for item in named))
        return file

    def eval(self, *questions: dict[str, Any], options: tuple[str, ...] = (), code: int = 0) -> Any:
        return caliber_json("-c", self.file, "eval", self.ask(*questions), *options, code=code)

    def miss(self, question: dict[str, Any], *options: str) -> Any:
        """Return the one miss of one question."""
        found = self.eval(question, options=options)
        assert found["missed"] == 1
        (missed,) = found["misses"]
        return missed


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A store that tests only ask; those that change one make their own."""
    return World(tmp_path_factory.mktemp("world"))


# --- figures ------------------------------------------------------------------------------------


def test_recall_and_hit_rate_count_ids_and_texts_that_came_in_time(world: World) -> None:
    found = world.eval(
        {"query": "SQLite is reached through apsw.", "expected": "sqlite"},
        {"query": "Backups run every night at two.", "expected": ["  backups RUN\nevery night ", UNKNOWN]},
        {"query": "SQLite is reached through apsw.", "expected": ["through", "no record says this"]},
        options=("--k", "1", "--k", "10"),
    )
    assert found["questions"] == 3
    assert found["expected"] == 5
    assert found["recall"] == {"1": pytest.approx(2 / 3), "10": pytest.approx(2 / 3)}
    assert found["hit_rate"] == {"1": 1.0, "10": 1.0}
    assert found["missed"] == 2
    first, second, _ = found["answers"]
    assert first["expected"] == [{"expected": str(world.ids["sqlite"]), "id": str(world.ids["sqlite"]), "rank": 1}]
    assert second["expected"][0]["id"] == str(world.ids["turn"])
    assert second["expected"][1] == {"expected": UNKNOWN, "id": None, "rank": None}
    assert found["position"]["sequence"] > 0
    assert found["degraded"] == {}


# --- reasons ------------------------------------------------------------------------------------


def test_a_record_that_came_late_is_explained_by_legs_and_what_came_before(world: World) -> None:
    missed = world.miss({"query": "SQLite is reached through apsw.", "expected": "postgresql"}, "--k", "1")
    assert missed["code"] == "ranked"
    assert missed["rank"] > 1
    assert missed["id"] == str(world.ids["postgresql"])
    assert missed["label"] == "driver"
    best = missed["before"][0]
    assert best["id"] == str(world.ids["sqlite"])
    assert best["rank"] == 1
    assert missed["score"] == pytest.approx(sum(missed["breakdown"].values()), abs=1e-5)
    assert missed["breakdown"]["vector"] < best["breakdown"]["vector"]


@pytest.mark.parametrize(("question", "options", "code", "said"), [
    ({"query": "x", "expected": UNKNOWN}, (), "no_such_record", "has this id"),
    ({"query": "x", "expected": "nobody wrote that"}, (), "no_such_record", "holds this text"),
    ({"query": "x", "expected": "trajectory"}, (), "not_searchable", "it is a trajectory"),
    ({"query": "backups", "expected": "turn"}, ("--kind", "note"), "other_kind", "only note was searched"),
    ({"query": "backups", "expected": "turn", "kinds": ["artifact"]}, (), "other_kind", "only artifact"),
    ({"query": "sqlite", "expected": "sqlite", "filter": {"note_type": "gotcha"}}, (), "filtered", "note_type"),
    ({"query": "backups", "expected": "turn", "filter": {"note_type": "fact"}}, (), "filtered", "a turn has not"),
    ({"query": "rate limit", "expected": "spring"}, (), "invalid", "it held until 2024-03-31"),
    ({"query": "service", "expected": "scope"}, (), "invalid", "no summary"),
])  # fmt: skip
def test_what_cannot_come_says_why(
    question: dict[str, Any], options: tuple[str, ...], code: str, said: str, world: World
) -> None:
    missed = world.miss(question, *options)
    assert missed["code"] == code
    assert said in missed["why"]
    assert missed["rank"] is None


def test_as_of_finds_what_held_then(world: World) -> None:
    found = world.eval({"query": "rate limit", "expected": "spring", "as_of": SPRING.isoformat()})
    assert found["missed"] == 0


def test_what_was_archived_superseded_or_has_expired_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    with caliber.open(world.settings) as memory:
        memory.storage.notes.update(world.ids["sqlite"], archived_at=SPRING)
        memory.storage.notes.update(world.ids["postgresql"], superseded_by=world.ids["spring"])
        scope = world.ids["scope"]
        brief = memory.create_artifact(
            scope, artifact_type="fact", content="Gone at once.", extraction_method="explicit", ttl=1
        )
        world.ids["brief"] = brief.artifact_id
    assert f"note {world.ids['spring']} superseded it" in world.miss({"query": "sql", "expected": "postgresql"})["why"]
    assert "archived at 2024-03-01" in world.miss({"query": "sqlite", "expected": "sqlite"})["why"]
    assert "it held until" in world.miss({"query": "gone", "expected": "brief"})["why"]


def test_a_principal_learns_nothing_of_what_it_may_not_see(tmp_path: Path) -> None:
    world = World(tmp_path, principal={"kind": "agent", "id": "reader", "admin": False})
    hidden, unknown = (world.miss({"query": "dawn", "expected": name}) for name in ("secret", UNKNOWN))
    assert {**hidden, "expected": ""} == {**unknown, "expected": ""}
    assert world.miss({"query": "dawn", "expected": "vault opens"})["code"] == "no_such_record"
    with caliber.open(world.settings, principal=Principal(PrincipalKind.AGENT, "planner")) as memory:
        assert [hit.id for hit in memory.search("The vault opens at dawn.", limit=1).hits] == [world.ids["secret"]]


def test_more_matches_than_a_search_may_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.admin.absence.LIMIT_MAX", 1)
    world = World(tmp_path, search__min_similarity=-1.0)
    missed = world.miss({"query": "SQLite is reached through apsw.", "expected": "postgresql"}, "--k", "1")
    assert missed["code"] == "beyond_limit"
    assert "more than 1 records" in missed["why"]


def test_what_has_nothing_in_common_and_what_has_no_vector(tmp_path: Path) -> None:
    world = World(tmp_path, search__min_similarity=0.99)
    missed = world.miss({"query": "zebra", "expected": "sqlite"})
    assert missed["code"] == "no_match"
    assert "min_similarity = 0.99" in missed["why"]
    with caliber.open(world.settings) as memory:
        blank = memory.append_turn(world.ids["scope"], role="user", content="   ")
    world.ids["blank"] = blank.turn_id
    assert world.miss({"query": "zebra", "expected": "blank"})["code"] == "no_vector"


# --- the command --------------------------------------------------------------------------------


PLACE = {
    "name": "place",
    "type": "semantic",
    "fields": [{"name": "title", "type": "text"}, {"name": "rank", "type": "int"},
               {"name": "sure", "type": "bool", "optional": True},
               {"name": "ticket_id", "type": "text", "optional": True}],
    "retention": {"kind": "persistent"},
    "indexes": [{"field": "title", "type": "gin"}, {"field": "ticket_id", "type": "btree"}],
}  # fmt: skip
UNSEARCHED = {**PLACE, "name": "parcel", "indexes": []}


def test_a_kind_that_is_not_embedded_is_explained_by_the_entry_that_decides(tmp_path: Path) -> None:
    embedded = {**PLACE, "fields": [*PLACE["fields"], {"name": "title_embedding", "type": "embedding"}]}
    for modes, entry in (
        ({"note": "off", "default": "off"}, "default"),
        ({"place": "off", "default": "commit"}, "place"),
    ):
        folder = tmp_path / entry
        folder.mkdir()
        world = World(folder, memories=[embedded], embedding__embed=modes)
        with caliber.open(world.settings) as memory:
            world.ids["bay"] = memory.records("place").insert(title="The bay in Oslo", rank=1).record_id
        places, notes = world.eval({"query": "zebra", "expected": "bay"}, {"query": "zebra", "expected": "sqlite"})[
            "misses"
        ]
        assert places["code"] == "no_vector"
        assert places["why"].endswith(f"embedding.embed.{entry} is off")
        assert notes["why"].endswith("embedding.embed.note is off") == ("note" in modes)


def test_declared_memories_are_asked_for_and_explained(tmp_path: Path) -> None:
    world = World(tmp_path, memories=[PLACE, UNSEARCHED])
    with caliber.open(world.settings) as memory:
        places = memory.records("place")
        for name in ("quay", "bay", "old"):
            made = places.insert(title=f"The {name} in Oslo", rank=1, sure=name == "bay", ticket_id="2023")
            world.ids[name] = made.record_id
        places.archive(world.ids["old"])
        world.ids["parcel"] = memory.records("parcel").insert(title="a box", rank=1).record_id
    asked = {"query": "quay", "expected": ["quay", "the QUAY in"]}
    found = world.eval(asked, options=("--kind", "place", "--kind", "note"))
    assert found["missed"] == 0
    wanted: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"query": "zebra", "expected": "bay"}, "no_vector", "place has no embedding"),
        ({"query": "zebra", "expected": "bay in Oslo"}, "no_vector", "place has no embedding"),
        ({"query": "bay", "expected": "bay", "kinds": ["note"]}, "other_kind", "it is a place; only note"),
        ({"query": "bay", "expected": "bay", "filter": {"rank": 2}}, "filtered", "rank = 2"),
        ({"query": "old", "expected": "old"}, "invalid", "archived at"),
        ({"query": "box", "expected": "parcel"}, "not_searchable",
         "search finds note, artifact, turn, scope, todo, place"),
    )  # fmt: skip
    misses = world.eval(*(question for question, _, _ in wanted))["misses"]
    for missed, (_, code, said) in zip(misses, wanted, strict=True):
        assert (missed["code"], said in missed["why"]) == (code, True), missed
    for options, names in (
        (("--filter", "sure=true"), {"bay"}),
        (("--filter", "sure=true", "--filter", "sure=0"), {"bay", "quay"}),
        (("--filter", "ticket_id=2023", "--filter", "rank=1", "--filter", "sure=false"), {"quay"}),
    ):
        hits = caliber_json("-c", world.file, "search", "Oslo", "--kind", "place", *options)["hits"]
        assert {hit["id"] for hit in hits} == {str(world.ids[name]) for name in names}
    refused = run("-c", world.file, "eval", world.ask(asked), "--kind", "plaice", code=2)
    assert "unknown kind" in refused.output
    assert "question" not in refused.output


def test_recall_below_the_bar_is_exit_code_1(world: World) -> None:
    file = world.ask(
        {"query": "SQLite is reached through apsw.", "expected": "sqlite"}, {"query": "zebra", "expected": UNKNOWN}
    )
    run("-c", world.file, "eval", file, "--fail-under", "0.5")
    result = run("-c", world.file, "eval", file, "--fail-under", "0.51", code=1)
    assert "recall@10 0.500 is below 0.51" in result.stderr


def test_people_read_figures_and_reasons(world: World) -> None:
    file = world.ask(
        {"query": "SQLite is reached through apsw.", "expected": "postgresql"},
        {"query": "a \x1b[31mred\x1b[0m question", "expected": UNKNOWN},
        {"query": "zebra", "expected": "nobody wrote that"},
    )
    text = run("-c", world.file, "eval", file, "--k", "1", "--limit-misses", "2").stdout
    assert "3 questions, 3 expected records" in text
    assert "recall" in text
    assert "missed: 3 of 3" in text
    assert re.search(r"it came as number \d of", text)
    assert "1. note: driver" in text
    assert "a \N{REPLACEMENT CHARACTER}[31mred" in text
    assert "\x1b" not in text
    assert "… and 1 more" in text
    everything = world.ask({"query": "SQLite is reached through apsw.", "expected": "sqlite"})
    assert "nothing was missed" in run("-c", world.file, "eval", everything).stdout


@pytest.mark.parametrize(("line", "fault"), [
    ("{", "not JSON"),
    ("[1]", "expected an object, got list"),
    ('{"query": "x"}', "expected must be"),
    ('{"query": "x", "expected": []}', "expected must be"),
    ('{"query": "x", "expected": ["a", 1]}', "expected must be"),
    ('{"query": "", "expected": "a"}', "query must be"),
    ('{"expected": "a"}', "query must be"),
    ('{"qeury": "x", "expected": "a"}', "did you mean 'query'"),
    ('{"query": "x", "expected": "a", "as_of": "soon"}', "as_of must be an instant"),
    ('{"query": "x", "expected": "a", "as_of": "2024-01-01T00:00:00"}', "time zone"),
    ('{"query": "x", "expected": "a", "as_of": 5}', "as_of must be an instant"),
    ('{"query": "x", "expected": "a", "kinds": []}', "kinds must be"),
    ("[" * 100_000, "nested too deeply"),
])  # fmt: skip
def test_a_bad_line_is_named_and_nothing_is_measured(line: str, fault: str, world: World) -> None:
    file = world.folder / "bad.jsonl"
    file.write_text('{"query": "x", "expected": "a"}\n\n' + line + "\n" + '{"query": 5}\n')
    error = caliber_json("-c", world.file, "eval", file, code=2)["error"]
    assert error["message"].startswith(f"{file}, line 3: ")
    assert fault in error["message"]


def test_bytes_that_are_no_utf8_and_files_that_are_none(world: World) -> None:
    file = world.folder / "bad.jsonl"
    file.write_bytes(b'{"query": "\xff", "expected": "a"}')
    assert "not UTF-8 (byte 12)" in run("-c", world.file, "eval", file, code=2).stderr
    file.write_text("\n\n")
    assert "holds no questions" in run("-c", world.file, "eval", file, code=2).stderr
    assert "No such file" in run("-c", world.file, "eval", world.folder / "none.jsonl", code=2).stderr
    assert "Is a directory" in run("-c", world.file, "eval", world.folder, code=2).stderr


def test_what_search_refuses_is_reported_with_the_place_of_the_question(world: World) -> None:
    fine = {"query": "x", "expected": "a"}
    for wrong in (
        {"filter": {"colour": "red"}},
        {"filter": {"note_type": "joke"}},
        {"kinds": ["notes"]},
        {"filter": ["b"]},
    ):
        error = world.eval(fine, {**fine, **wrong}, code=2)["error"]
        assert error["message"].startswith("line 2: ")
        assert error["place"] == "line 2"
    error = world.eval(fine, options=("--k", "1000"), code=2)["error"]
    assert "at most 999" in error["message"]


def test_miss_of_a_search_through_the_database_says_that_nobody_looked_at_all(tmp_path: Path) -> None:
    world = World(tmp_path, search__mode="backend")
    found = world.eval({"query": "zebra", "expected": "nothing says this"}, code=1)
    (missed,) = found["misses"]
    assert (missed["code"], missed["why"]) == ("degraded", "search was degraded: not_resident")
    assert found["degraded"] == {"not_resident": 1}
