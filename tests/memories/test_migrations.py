"""Memories are added, changed and removed by steps that are told first; nothing is removed that was not named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.databases import note as add_note
from support.drawn import needs
from support.inspection import inspect, session_of
from support.memories import AT, FACT, STEP, record

import caliber
from caliber.api.opening import plan_migration
from caliber.embedding.service import Embeddings
from caliber.model import Edge, EdgeRelation, EntityRef, EntityType
from caliber.model.errors import InvalidValue, NotFound, SchemaMismatch, StorageError
from caliber.model.references import EdgeId
from caliber.schema.relations import MEMORY_TYPE
from caliber.schema.relations.storage import StoredMemory

PLACE = {"name": "place", "type": "text", "optional": True}
WIDER = {
    **FACT,
    "fields": [
        *(
            item if item["name"] != "kind" else {**item, "values": ["claim", "rumour", "lie"]}
            for item in FACT["fields"]
        ),
        PLACE,
    ],
    "indexes": [{"field": "place", "type": "hash"}],
    "retention": {"kind": "max", "count": 5},
}
LINES = [
    "add field fact.place (optional text)",
    "add 'lie' to the values of fact.kind",
    "remove the index of fact.subject (btree)",
    "index fact.place (hash)",
    "note what else is declared of memory fact, such as its retention",
    "add memory step with 1 field",
]


def _lines(settings: Any, **options: Any) -> list[str]:
    return [step.line for step in plan_migration(settings, **options).steps]


def _without(memory: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**memory, "fields": [item for item in memory["fields"] if item["name"] not in names]}


@needs("sharing")
def test_a_memory_whose_code_no_byte_holds(backend: Any, another: Any, tmp_path: Path) -> None:  # issue 14, item 5
    store = backend.store()
    last = StoredMemory(255, "older", "", AT, AT, AT)
    plans = store.plans[MEMORY_TYPE.name]
    store.write(lambda uow: session_of(uow).run(plans.insert, plans.codec.encode(last)))
    settings = backend.config(memories=[FACT], search__mode="backend")
    caliber.migrate(settings)
    here, there = backend.open(settings), backend.open(backend.config(memories=[FACT]))
    assert inspect(here).store.catalog.memories["fact"].relation.code == 256
    kept = here.records("fact").insert(subject="Ada", content="wrote the first program", kind="claim")
    removed = here.records("fact").insert(subject="Bob", kind="claim")
    assert there.search("", consistency="latest").position
    here.records("fact").delete(removed.record_id)
    assert [hit.id for hit in there.search("program", kinds=["fact"], consistency="latest").hits] == [kept.record_id]
    assert [hit.id for hit in here.search("program", kinds=["fact"]).hits] == [kept.record_id]
    assert there.admin.verify() == here.admin.check() == []
    there.admin.backup(tmp_path / "all.zip")
    for name in ("sqlite", "postgres"):
        into = another(name)
        into.create(into.config())
        caliber.restore(into.config(memories=[FACT]), tmp_path / "all.zip", replace=True)
        with into.open(into.config(memories=[FACT])) as memory:
            assert memory.records("fact").get(kept.record_id).subject == "Ada"


@needs("reopen")
def test_steps_are_told_first_and_then_taken(backend: Any) -> None:  # C-130, C-132, issue 6
    with backend.open(memories=[FACT]) as memory:
        fact = inspect(memory).store.catalog.memories["fact"].relation
        old = record(inspect(memory).store.catalog, "fact", subject="Ada", content="x", kind="claim")
        inspect(memory).write(lambda uow: uow.insert(fact, old))
    settings = backend.config(memories=[WIDER, STEP])
    assert _lines(settings) == LINES
    with pytest.raises(SchemaMismatch, match="caliber db migrate"):
        caliber.open(settings)
    assert caliber.migrate(settings) == []
    assert _lines(settings) == []
    with backend.open(settings) as memory:
        store = inspect(memory).store
        kept = memory.get(old.record_id)
        assert (kept.subject, kept.content, kept.place) == ("Ada", "x", None)
        fresh = record(store.catalog, "fact", subject="Bob", kind="lie", place="here")
        fact = store.catalog.memories["fact"].relation
        inspect(memory).write(lambda uow: uow.insert(fact, fresh))
        assert [path.name for path in fact.paths][-1] == "list_by_place"
        assert inspect(memory).resident.verify() == []
        assert store.integrity() == []


@needs("reopen")
def test_nothing_is_removed_that_was_not_named(backend: Any) -> None:  # issue 6
    backend.open(memories=[FACT, STEP]).close()
    settings = backend.config(memories=[_without(FACT, "score", "content_embedding")])
    plan = plan_migration(settings)
    assert [line.split(" is ")[0] for line in plan.stays] == [
        "field fact.score",
        "field fact.content_embedding",
        "memory step",
    ]
    caliber.migrate(settings)
    with pytest.raises(InvalidValue, match="records of step belong to those of fact"):
        caliber.migrate(backend.config(), drop=["fact"])
    with pytest.raises(InvalidValue, match="is declared by the configuration"):
        caliber.migrate(settings, drop=["fact.count"])
    with pytest.raises(InvalidValue, match="no memory other"):
        caliber.migrate(settings, drop=["other"])
    caliber.migrate(settings, drop=["fact.score", "step"])
    with backend.open(settings) as memory:
        catalog = inspect(memory).store.catalog
        assert list(catalog.memories) == ["fact"]
        assert not catalog.memories["fact"].relation.has("score")
        assert inspect(memory).store.integrity() == []
    caliber.migrate(backend.config(memories=[STEP | {"parent": None}]), drop=["fact", "step"][:1])
    with backend.open(backend.config(memories=[{**STEP, "parent": None}])) as memory:
        assert inspect(memory).store.catalog.memories["step"].relation.code == 66, "a number is never given again"


@needs("reopen")
def test_records_of_a_memory_that_is_gone_are_not_found_in_its_namesake(backend: Any) -> None:
    # design section 3: ordinals are never given out again, windows name records by them
    settings = backend.config(memories=[{**STEP, "parent": None}])

    def one(uow: Any) -> Any:
        return uow.insert(relation, record(catalog, "step", position=1))

    old = backend.open(settings)
    catalog = inspect(old).store.catalog
    relation = catalog.memories["step"].relation
    first = inspect(old).write(one)
    caliber.migrate(backend.config(), drop=["step"])
    caliber.migrate(settings)
    with pytest.raises(SchemaMismatch):
        inspect(old).write(one)  # into the table of another memory of that name
    old.close()
    with backend.open(settings) as memory:
        catalog = inspect(memory).store.catalog
        relation = catalog.memories["step"].relation
        assert inspect(memory).write(one) > first + 2**39
        assert memory.admin.verify() == []
        assert memory.admin.check() == []


@pytest.mark.parametrize(("change", "reason"), [
    ({"name": "score", "type": "text", "optional": True}, "declare a field of another name"),
    ({"name": "score", "type": "float"}, "it stays optional"),
    ({"name": "needed", "type": "int"}, "make it optional"),
])  # fmt: skip
@needs("reopen")
def test_what_records_cannot_become_is_refused(backend: Any, change: dict[str, Any], reason: str) -> None:
    backend.open(memories=[FACT]).close()
    others = _without(FACT, change["name"])["fields"]
    settings = backend.config(memories=[{**FACT, "fields": [*others, change]}])
    with pytest.raises(SchemaMismatch, match=reason):
        plan_migration(settings)
    with pytest.raises(SchemaMismatch, match=reason):
        caliber.migrate(settings)
    with pytest.raises(SchemaMismatch, match="records need a value of fact"):
        caliber.migrate(backend.config(memories=[{**_without(FACT, "subject"), "indexes": []}]))


@needs("sharing")
def test_who_has_the_store_open_goes_on_and_deletes_nothing_it_cannot_see(backend: Any, start: Any) -> None:
    old = backend.open(memories=[FACT])
    agent = start(old)
    fact = inspect(old).store.catalog.memories["fact"].relation
    settings = backend.config(memories=[WIDER, STEP])
    caliber.migrate(settings)
    new = backend.open(settings)
    made = record(
        inspect(new).store.catalog, "fact", subject="Ada", kind="lie", place="x", trajectory_id=agent.trajectory_id
    )
    inspect(new).write(lambda uow: uow.insert(inspect(new).store.catalog.memories["fact"].relation, made))
    inspect(old).snapshot("latest")
    seen = old.get(made.record_id)
    assert (seen.subject, seen.kind) == ("Ada", "lie")
    mine = record(inspect(old).store.catalog, "fact", subject="Bob", kind="claim")
    inspect(old).write(lambda uow: uow.insert(fact, mine))
    inspect(new).snapshot("latest")
    assert new.get(mine.record_id).place is None
    with pytest.raises(SchemaMismatch, match="open it again"):
        inspect(old).write(lambda uow: uow.delete(fact, uow.get(fact, mine.record_id.bytes)))
    with pytest.raises(SchemaMismatch, match="open it again"):
        old.forget(texts=["Ada Lovelace"])
    with pytest.raises(SchemaMismatch, match="open it again"):
        old.admin.check()
    assert inspect(new).resident.verify() == []
    for handle in (old, new):
        handle.close()


@needs("sharing")
def test_a_memory_that_was_removed_is_told_of(backend: Any) -> None:
    old = backend.open(memories=[FACT])
    fact = inspect(old).store.catalog.memories["fact"].relation
    made = record(inspect(old).store.catalog, "fact", subject="Ada", kind="claim")
    inspect(old).write(lambda uow: uow.insert(fact, made))
    caliber.migrate(backend.config(), drop=["fact"])
    snapshot = inspect(old).snapshot("latest")
    with pytest.raises(SchemaMismatch, match="open it again"):
        snapshot[fact.name]
    with pytest.raises(SchemaMismatch):
        inspect(old).write(lambda uow: uow.insert(fact, made))
    old.close()


@needs("reopen")
def test_edges_go_with_the_memory_they_lead_to(backend: Any) -> None:
    memory = backend.open(memories=[FACT])
    facts, note = memory.records("fact"), add_note(memory, "stays")
    end, other = EntityRef(EntityType.NOTE, note.note_id), EntityRef(EntityType.NOTE, add_note(memory, "too").note_id)
    fact = EntityRef(facts.relation.name, facts.insert(subject="Ada", kind="claim").record_id)
    kept, *_ = (
        memory.storage.edges.insert(Edge(EdgeId(uuid.uuid4()), *ends, EdgeRelation.LINK, 1.0, 1.0, AT))
        for ends in ((end, other), (end, fact), (fact, end))
    )
    memory.close()
    caliber.migrate(backend.config(), drop=["fact"])
    after = backend.open()
    assert list(after.storage.edges.all()) == [kept]
    assert after.admin.verify() == []
    assert after.admin.check() == []


IDEA = {
    "name": "idea",
    "type": "semantic",
    "fields": [{"name": "content", "type": "text"}, {"name": "weight", "type": "float", "optional": True},
               {"name": "content_embedding", "type": "embedding"}],
    "retention": {"kind": "persistent"},
}  # fmt: skip


@needs("sharing")
def test_a_memory_that_took_the_name_of_another_is_not_taken_for_it(backend: Any, start: Any) -> None:
    settings = backend.config(memories=[IDEA])
    old = backend.open(settings)
    agent, ideas = start(old), old.records("idea")
    first = ideas.insert(content="alpha")
    caliber.migrate(backend.config(), drop=["idea"])
    caliber.migrate(settings)
    new = backend.open(settings)
    made = new.records("idea").insert(content="beta")
    inspect(new).part(Embeddings).embedder.drain()
    for call in (
        lambda: ideas.insert(content="gamma"),
        lambda: ideas.update(made.record_id, content="gamma"),
        lambda: ideas.archive(made.record_id),
        lambda: ideas.delete(made.record_id),
        lambda: old.storage.idea.insert(first),
        lambda: list(old.storage.idea.all()),
        lambda: old.storage.idea.get(made.record_id),
    ):
        with pytest.raises(SchemaMismatch, match="open it again"):
            call()
    old.assemble_context(agent.trajectory_id, query="beta", consistency="latest")
    assert old.admin.verify() == []
    with pytest.raises(SchemaMismatch, match="open it again"):
        ideas.find()
    assert new.records("idea").find() == [made]
    assert new.admin.verify() == []


@needs("sharing")
def test_vectors_of_a_memory_that_came_later_are_passed_over(backend: Any, start: Any) -> None:
    old = backend.open(backend.config())
    agent = start(old)
    settings = backend.config(memories=[IDEA])
    caliber.migrate(settings)
    new = backend.open(settings)
    new.records("idea").insert(content="beta")
    inspect(new).part(Embeddings).embedder.drain()
    old.assemble_context(agent.trajectory_id, query="beta", consistency="latest")
    assert old.admin.verify() == []
    inspect(old).resident.reload()
    assert old.admin.verify() == []


@pytest.mark.parametrize("kind", ["text", "int", None])
@needs("sharing")
def test_a_field_that_took_the_place_of_another_is_not_taken_for_it(backend: Any, kind: str | None) -> None:
    old = backend.open(backend.config(memories=[IDEA]))
    asking = backend.open(backend.config(memories=[IDEA], search__mode="backend"))
    ideas = old.records("idea")
    first = ideas.insert(content="alpha", weight=0.5)
    less = _without(IDEA, "weight")
    caliber.migrate(backend.config(memories=[less]), drop=["idea.weight"])
    if kind is not None:
        more = {**less, "fields": [*less["fields"], {"name": "weight", "type": kind, "optional": True}]}
        settings = backend.config(memories=[more])
        caliber.migrate(settings)
        new = backend.open(settings)
        fresh = new.records("idea").insert(content="beta", weight={"text": "light", "int": 7}[kind])
        assert new.records("idea").get(fresh.record_id) == fresh
        with pytest.raises(SchemaMismatch):
            ideas.archive(fresh.record_id)
        stored = backend.open(backend.config(memories=[more], search__mode="backend"))
        assert stored.records("idea").get(fresh.record_id) == fresh
    # Asked for a column that is not there, SQLite may answer with the column's name.
    for call in (
        lambda: ideas.update(first.record_id, content="gamma"),
        lambda: ideas.insert(content="gamma", weight=1.0),
    ):
        with pytest.raises(StorageError):  # SchemaMismatch, or what the database itself says of the column
            call()
    for read in (old.storage.idea.get, asking.get, asking.records("idea").get):
        with pytest.raises(SchemaMismatch):
            read(first.record_id)
    if kind is not None:
        assert new.records("idea").get(fresh.record_id) == fresh
        assert new.admin.verify() == []


@needs("sharing")
def test_two_migrators_do_each_step_once(backend: Any) -> None:
    backend.open(memories=[FACT]).close()
    settings = backend.config(memories=[WIDER, STEP])
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(caliber.migrate, [settings] * 3)) == [[], [], []]
    with backend.open(settings) as memory:
        assert inspect(memory).store.catalog.revision == (2, len(LINES) + 1)


def test_a_migration_that_was_killed_goes_on_where_it_stood(file_backend: Any, tmp_path: Any) -> None:
    file_backend.open(memories=[FACT]).close()
    settings = file_backend.config(memories=[WIDER, STEP])
    told = tmp_path / "config.json"
    told.write_text(settings.canonical_json())
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(told)], capture_output=True, text=True, env=os.environ, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert _lines(settings) == LINES[2:], "each step stands with its statements, or not at all"
    caliber.migrate(settings)
    with file_backend.open(settings) as memory:
        assert inspect(memory).store.catalog.revision == (2, len(LINES) + 1)


_KILLED = """
import os, signal, sys
from pathlib import Path
from caliber.backends.sqlite import schema
from caliber.config import CaliberConfig
from caliber.model.time import SystemClock

taken = 0
inner = schema.SqliteConnection.command

def command(self, text):
    global taken
    if text == "COMMIT":
        taken += 1
        if taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return inner(self, text)

schema.SqliteConnection.command = command
schema.migrate(CaliberConfig.from_json(Path(sys.argv[1]).read_text()), clock_us=SystemClock().now_us)
"""


@needs("reopen")
def test_a_window_is_replayed_without_a_field_that_is_gone_if_it_was_empty(backend: Any) -> None:
    # a replay reads what is stored now of what was not changed since
    text = {"type": "text", "optional": True}
    fields = [{"name": "body", "type": "text"}, {"name": "extra", **text}]
    whole = {"name": "one", "type": "episodic", "fields": fields, "retention": {"kind": "persistent"}, "indexes": []}
    rules = [{"memory": "one", "mode": {"kind": "full"}, "priority": 50}]
    windows = {}
    with backend.open(memories=[whole], injection_rules=rules) as memory:
        for extra in (None, "more"):
            memory.records("one").insert(body="the ferry leaves", extra=extra)
            task = memory.start_trajectory("cross the water", initiator=USER)
            windows[extra] = memory.assemble_context(task.trajectory_id)
        memory.flush()
    settings = backend.config(memories=[{**whole, "fields": fields[:1]}], injection_rules=rules)
    caliber.migrate(settings, drop=["one.extra"])
    with backend.open(settings) as memory:
        assert memory.replay(windows[None].window_id).text == windows[None].text
        with pytest.raises(NotFound, match="what it said then was not kept"):
            memory.replay(windows["more"].window_id)
