"""Reads of principals equal those of a store that never held what they may not see; planted leaks are found.

Answers do not depend on what others did: read, were shown, corrected, learnt, locked. Two stores hold the same records
that Ben may see. In the one, the others write what is hidden from him, read, assemble and explain; in the other nothing
of it happens. Windows whose sources were hidden since: replay names none, and explain shows no id, until they are
visible again.

Source: issue "People", 2; docs/access.md, "Hidden is absent"; O-10.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from support.access.privacy import (
    AGENTS,
    APPLICATION,
    KNOBS,
    USERS,
    WORDS,
    Done,
    Leak,
    Question,
    World,
    check,
    compare,
    fill,
    note,
    opener,
    plain,
    question,
    steps,
)
from support.databases import Backend
from support.evidence import proving, record, scale, seed

import caliber
from caliber.access import corrections
from caliber.access.kinds import KindLimits
from caliber.access.rights import Rights
from caliber.access.visibility import Readers
from caliber.admin import inspection as figures
from caliber.agents import facet as agents_facet
from caliber.agents.conflicts.facet import Conflicts
from caliber.agents.views import AgentMemoryView
from caliber.context.gather import disputes
from caliber.model import EntityRef, EntityType, NoteType, Principal
from caliber.model.errors import CaliberError, InvalidValue, NotFound, PermissionDenied
from caliber.model.knowledge import NOBODY
from caliber.search.filtering.visible import VisibleRows
from caliber.search.service import Searching
from caliber.trajectory import facet


@pytest.mark.databases("all")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_reads_are_those_of_a_store_without_what_is_hidden(backend: Backend, another: Any, mode: str) -> None:
    # issue 16, Done when: 200,000 reads on each database; one of the database itself takes as long as ten of memory
    begun, asked, writes, leaks = time.monotonic(), Counter[str](), 0, []
    full = {"resident": 180_000, "backend": 20_000}[mode] // (20 if backend.name == "sqlite-memory" else 1)
    # Each is a world of its own. To fill one takes as long as many thousand reads.
    rounds = scale(1, max(1, full // 45_000))
    for at in range(rounds):
        rng = random.Random(f"{seed()} {at}")
        plan = steps(rng) if proving() else steps(rng, USERS[:2], 25)
        try:
            asked.update(check(opener(backend, another, mode), scale(250, full // rounds, daily=25), rng, plan))
        except Leak as leak:
            leaks.append((at, leak))
        writes += len(plan)
    assert not leaks
    assert len(asked) == 26 or not proving(), "every sort of read was asked"
    if backend.name != "sqlite-memory":
        record(
            f"hidden-reads-{backend.name}-{mode}",
            f"Reads of principals and of stores without what is hidden from them: {backend.name}, {mode}",
            {
                "seed": seed(),
                "reads that equal those of a store without what is hidden": sum(asked.values()),
                **{f"of these, {name}": count for name, count in sorted(asked.items())},
                "users": len(USERS),
                "worlds": rounds,
                "writes between the reads": writes,
                "seconds": int(time.monotonic() - begun),
            },
        )


def without_ids(stated: Callable[..., str]) -> Callable[..., str]:
    def leaking(*given: Any, **more: Any) -> str:
        found = json.loads(stated(*given, **more))
        found.pop("ids", None)
        return json.dumps(found)

    return leaking


def ownerless(allows_row: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, relation, row: relation.rights.owner is not None or allows_row(self, relation, row)


def every_length(rows: VisibleRows, words: Any) -> int:
    return int(words.lengths[: len(rows.visible)].sum(dtype=np.int64))


def every_record(engine: Any, records: dict[str, int], _: Any) -> dict[str, int]:
    return {name: len(rows.rows()) for name, rows in engine.memory.snapshot.relations.items() if name in records}


def of_an_admin(engine: Any, _: Principal) -> Searching:
    return Searching(engine, Principal.admin())


def unmasked(disputes_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda inputs, *given: disputes_of(dataclasses.replace(inputs, masks={}), *given)


FEW_CANDIDATES: dict[str, Any] = {"search__vector_candidates": 1, "search__candidate_factor": 1}
"""A record that a statement should not have found takes the place of another, and the ranking leaves it out later."""

LEAKS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "single records": ("resident", lambda patch: patch.setattr(Readers, "allows", lambda *_: True)),
    "tasks": ("resident", lambda patch: patch.setattr(Readers, "judge_task", lambda *_: True)),
    "lists of readers": ("resident", lambda patch: patch.setattr(Readers, "judge_list", lambda *_: True)),
    "masks of windows": ("resident", lambda patch: patch.setattr(Readers, "masks", lambda *_: {})),
    "windows of tasks": ("resident", lambda patch: patch.setattr(Readers, "acting_for", lambda self, _: self)),
    "the log of a task": ("resident", lambda patch: patch.setattr(Readers, "sees_task", lambda *_: True)),
    "owners": ("resident", lambda patch: patch.setattr(Readers, "allows_row", ownerless(Readers.allows_row))),
    "edges": ("resident", lambda patch: patch.setattr(Readers, "sees", lambda *_: True)),
    "calls about a task": ("resident", lambda patch: patch.setattr(facet, "require", lambda *_, **__: None)),
    "counts of words": ("resident", lambda patch: patch.setattr(VisibleRows, "lengths", every_length)),
    "figures": ("resident", lambda patch: patch.setattr(figures, "visible_records", every_record)),
    "records of kinds": ("resident", lambda patch: patch.setattr(KindLimits, "may_read", lambda *_: True)),
    "masks of kinds": ("resident", lambda patch: patch.setattr(KindLimits, "narrowed", lambda *given, **_: given[-1])),
    "windows of kinds": ("resident", lambda patch: patch.setattr(KindLimits, "within", lambda *given: given[-1])),
    "values of kinds": ("resident", lambda patch: patch.setattr(KindLimits, "hidden", lambda *_: ())),
    "values of single records": ("resident", lambda patch: patch.setattr(Readers, "shown", lambda *given: given[-1])),
    "events of kinds": ("resident", lambda patch: patch.setattr(KindLimits, "reads_subject", lambda *_: True)),
    "statements of kinds": ("backend", lambda patch: patch.setattr(Rights, "stated", lambda _: {})),
    "rows of kinds": ("backend", lambda patch: patch.setattr(KindLimits, "readable", lambda *given: given[-1])),
    "types of views": ("resident", lambda patch: patch.setattr(AgentMemoryView, "types", tuple(NoteType))),
    "readers of views": ("resident", lambda patch: patch.setattr(agents_facet, "Searching", of_an_admin)),
    "conflicts": ("resident", lambda patch: patch.setattr(Conflicts, "_shows", lambda *_: True)),
    "marks of disputes": ("resident",
                          lambda patch: patch.setattr(disputes, "disputes_of", unmasked(disputes.disputes_of))),
    "statements": ("backend", lambda patch: patch.setattr(Readers, "stated", without_ids(Readers.stated))),
}  # fmt: skip


@pytest.mark.prove
@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.databases("one")
def test_a_planted_leak_is_found(backend: Backend, another: Any, leak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, plant = LEAKS[leak]
    open_store = opener(backend, another, mode, **(FEW_CANDIDATES if mode == "backend" else {}))

    def leaks(reads: int, at: int) -> bool:
        rng = random.Random(f"{seed()} {at}")
        try:
            check(open_store, reads, rng, steps(rng, USERS[:2], 25))
        except Leak:
            return True
        return False

    assert not leaks(30, 0)
    plant(monkeypatch)
    # Some leaks show in few reads: a world that has none of these is followed by another.
    assert any(leaks(600, at) for at in range(10))


def test_what_was_learnt_and_sources_of_notes_are_their_users(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    ana, ben = (memory.acting_as(Principal.user(name)) for name in ("ana", "ben"))
    learnt = ana.remember([{"role": "user", "content": "I live in Rome."}])
    assert ana.learning.get(learnt.learned_id).added
    for call in (ben.learning.get, ben.learning.undo):
        with pytest.raises(NotFound):
            call(learnt.learned_id)
    about = {"entity": "x", "entity_type": "t", "note_type": "fact", "content": "x", "confidence": 1.0}
    with pytest.raises(NotFound):
        ben.add_note(**about, source_trajectory_ids=[learnt.trajectory_id])
    for forbidden in (
        lambda: ben.start_trajectory("x", user="ana"),
        lambda: ben.start_trajectory("x", initiator=EntityRef.user("ana")),
        lambda: ben.remember([{"role": "user", "content": "I live in Oslo."}], user="ana"),
        lambda: ben.add_note(**about, user="ana"),
    ):
        with pytest.raises(PermissionDenied):
            forbidden()
    with pytest.raises(NotFound):
        ben.remember([{"role": "user", "content": "I live in Oslo."}], task=learnt.trajectory_id)


def test_one_handle_reads_with_the_eyes_of_each_user(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    ana, agent = memory.acting_as(Principal.user("ana")), memory.acting_as(Principal.agent("helper"))
    memory.identities.add("ana@example.com", "ana")
    about = {"entity": "x", "entity_type": "t", "note_type": "fact", "confidence": 1.0}
    made: dict[str, Any] = {}
    for name, handle in (("ana", ana), ("ben", memory.acting_as(Principal.user("ben"))), ("shared", agent)):
        task = handle.start_trajectory(f"{name} plans a trip").trajectory_id
        where = handle.current_scope(task)
        made[name] = handle.append_turn(where.scope_id, role="user", content=f"{name} likes the lake").turn_id
    memory.flush()

    def found(handle: caliber.Caliber, user: Any) -> set[str]:
        return {hit.content.split()[0] for hit in handle.search("lake", kinds=["turn"], user=user).hits}

    assert found(memory, None) == {"ana", "ben", "shared"}
    assert found(memory, "ana") == found(memory, "ana@example.com") == found(memory, EntityRef.user("ana"))
    assert found(memory, "ana") == found(ana, None) == found(ana, "ana") == found(agent, "ana") == {"ana", "shared"}
    assert found(memory, "nobody yet") == {"shared"}
    assert memory.identities.names("nobody yet") == []
    assert memory.search_many(["lake"], user="ben")[0].hits == memory.search("lake", user="ben").hits
    assert memory.get(made["ana"], user="ana").turn_id == made["ana"]
    # Names that nothing has stored, one of them not in its plain form.
    for name in ("new", " zoe\u0308 "):
        memory.acting_as(Principal.user(name)).add_note(**about, content="a note of the lake")
        hits = memory.search("lake", kinds=["note"], user=name).hits
        assert [hit.content for hit in hits] == ["a note of the lake"]
    assert not memory.search("lake", kinds=["note"], user="ana").hits
    for hidden in (lambda: memory.get(made["ana"], user="ben"), lambda: agent.get(made["ana"], user="ben")):
        with pytest.raises(NotFound):
            hidden()
    for forbidden in (lambda: ana.search("lake", user="ben"), lambda: ana.get(made["shared"], user="ben")):
        with pytest.raises(PermissionDenied):
            forbidden()
    for wrong in ("", "x" * 10_000, EntityRef.agent("helper")):
        with pytest.raises(InvalidValue):
            memory.search("lake", user=wrong)


ME, OTHER = USERS[:2]
MODES = pytest.mark.parametrize("mode", ["resident", "backend"])
COUNTED = {"write_behind__usage_enabled": True}


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(3))


def act(world: World, rng: random.Random) -> None:
    """Let another principal do something of which nothing may show in the answers to ``ME``."""
    who = rng.choice([OTHER, *AGENTS[:2]])
    memory, other, kind = world.as_(who), world.as_(OTHER), rng.randrange(7)
    seen = [{hit.id for hit in world.as_(each).search("", kinds=["note"], limit=80).hits} for each in (ME, OTHER)]
    shared = sorted(seen[0] & seen[1])
    if kind == 0:
        memory.get(rng.choice([*shared, *shared, *sorted(seen[1])] if who is OTHER else shared))
    elif kind == 1:
        task = memory.start_trajectory(words(rng), user=OTHER.id).trajectory_id
        window = memory.assemble_context(task, query=words(rng), max_tokens=400)
        memory.explain(window.window_id)
        memory.replay(window.window_id)
        world.handles[APPLICATION].assemble_context(task, query=words(rng), max_tokens=400)
    elif kind == 2:
        hidden = note(OTHER, words(rng), world)
        other.update_note(hidden, content=words(rng) + " anew")
        other.delete_note(hidden)
    elif kind == 3:
        learnt = other.remember([{"role": "user", "content": f"I live in {rng.choice(WORDS).title()}."}])
        other.learning.undo(learnt.learned_id)
    elif kind == 4:
        memory.search(words(rng), limit=8)
    elif kind == 5:
        with memory.agents.locks.hold(words(rng)):
            world.memory.get(rng.choice(sorted(seen[0])))
    else:
        world.handles[APPLICATION].get(rng.choice(shared), user=OTHER.id)


def of_me(rng: random.Random, done: Done) -> Question:
    """Return a random read by ``ME`` alone."""
    while True:
        one = question(rng, done)
        if one.by == ME and one.viewers == {ME}:
            return one


def whole(text: str, world: World) -> str:
    """Return every field of a search but the position of the store."""
    found = world.as_(ME).search(text, limit=12)
    return plain({name: getattr(found, name) for name in found.__dataclass_fields__ if name != "position"})


def check_alone(open_store: Callable[[], World], rng: random.Random, rounds: int, each: int = 12) -> None:
    """Compare reads of ``ME`` in a store that others use with those where nobody else does anything."""
    done = Done(steps(rng, USERS[:3], each))
    busy, quiet = fill(open_store(), done.plan, None), fill(open_store(), done.plan, frozenset((ME,)))
    for text in [words(rng) for _ in range(4)]:
        for world in (busy, quiet):
            note(None, text, world)
    heard: list[list[Any]] = [[], []]
    for world, events in zip((busy, quiet), heard, strict=True):
        world.as_(ME).events.subscribe(lambda event, events=events: events.append((event.event_type, event.payload)))
    try:
        for _ in range(rounds):
            act(busy, rng)
            for world in (busy, quiet):
                world.clock.at += timedelta(days=1)
                world.memory.flush()
            text = rng.choice(["", words(rng)])
            compare(Question(ME, lambda world, text=text: whole(text, world), frozenset((ME,)), "search"), busy, quiet)
            compare(of_me(rng, done), busy, quiet)
            if plain(heard[0]) != plain(heard[1]):
                raise Leak("events", *map(plain, heard))
    finally:
        for world in (busy, quiet):
            world.handles[APPLICATION].close()


@pytest.mark.databases("one")
def test_what_others_do_shows_in_no_answer(backend: Backend, another: Any) -> None:
    check_alone(opener(backend, another, "resident", **COUNTED), random.Random(seed()), 6, 3)


@MODES
@pytest.mark.prove
@pytest.mark.databases("all")
def test_whatever_others_do_shows_in_no_answer(backend: Backend, another: Any, mode: str) -> None:
    rounds = 150 if mode == "resident" else 40
    check_alone(opener(backend, another, mode, **COUNTED), random.Random(seed()), scale(rounds, 10 * rounds))


@MODES
@pytest.mark.prove
@pytest.mark.databases("one")
def test_uses_that_count_for_everybody_are_found(
    backend: Backend, another: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Readers, "used_by", (NOBODY.bytes,))
    with pytest.raises(Leak):
        check_alone(opener(backend, another, mode, **COUNTED), random.Random(seed()), 40)


@pytest.mark.prove
@pytest.mark.databases("one")
def test_events_of_what_others_read_are_found(backend: Backend, another: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "RETRIEVED", frozenset())
    with pytest.raises(Leak):
        check_alone(opener(backend, another, "resident", **COUNTED), random.Random(seed()), 40)


ABOUT = {"entity": "harbour", "entity_type": "place", "note_type": "fact", "confidence": 0.5}


class Harbour:
    """A window of Ben's task that quotes notes which everybody may read."""

    def __init__(self, backend: Backend, mode: str, **options: Any) -> None:
        self.memory = backend.open(embedding_provider=None, search__mode=mode, **options)
        self.ben = self.memory.acting_as(Principal.user("ben"))
        self.task = self.ben.start_trajectory("sail home").trajectory_id
        self.notes = [
            self.memory.add_note(content=f"The harbour is {word}.", **ABOUT).note_id
            for word in ("deep", "crowded", "closed at night")
        ]
        self.window = self.ben.assemble_context(self.task, query="harbour")
        assert "deep" in self.window.text
        self.ben.flush()

    def refused(self) -> CaliberError:
        """Return the error with which Ben's replay is refused."""
        with pytest.raises(NotFound) as caught:
            self.ben.replay(self.window.window_id)
        return caught.value

    def ids(self) -> set[str | None]:
        """Return the ids of what Ben is told that his window holds, or was considered for."""
        told = self.ben.explain(self.window.window_id)
        return {each["id"] for each in (*told["inclusions"], *told["exclusions"]) if each["type"] == "note"}

    def verdict(self, at: int) -> str:
        return str(self.ben.explain(self.window.window_id, exclusion=self.notes[at])["verdict"])


@pytest.mark.databases("all")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_replay_reveals_no_source_that_was_hidden_since(backend: Backend, mode: str) -> None:
    harbour = Harbour(backend, mode)
    memory, hidden = harbour.memory, harbour.notes[0]
    assert harbour.ids() == {str(note) for note in harbour.notes}
    before = harbour.ben.explain(harbour.window.window_id)
    memory.update_note(hidden, visible_to=["human:nobody"])
    error = harbour.refused()
    shown = f"{error} {error.context} {error.__cause__} {error.__context__}"
    assert str(hidden) not in shown
    assert "removed" not in shown
    assert error.context["entity_type"] == "context_window"
    told = harbour.ben.explain(harbour.window.window_id)
    assert str(hidden) not in json.dumps(told)
    assert harbour.ids() == {None, *(str(note) for note in harbour.notes[1:])}
    assert (told["budget"], len(told["inclusions"])) == (before["budget"], len(before["inclusions"]))
    assert harbour.verdict(0) == "unknown"
    assert harbour.verdict(1) == "included"
    # An administrator sees everything, and whoever may see the note again has the window as it was.
    assert memory.replay(harbour.window.window_id).text == harbour.window.text
    memory.update_note(hidden, visible_to=None)
    assert harbour.ben.replay(harbour.window.window_id).text == harbour.window.text
    assert harbour.ben.explain(harbour.window.window_id) == before


@pytest.mark.databases("all")
def test_hidden_sources_are_told_like_forgotten_ones(backend: Backend) -> None:
    harbour = Harbour(backend, "resident")
    memory, (gone, hidden, _) = harbour.memory, harbour.notes
    memory.forget(entity=EntityRef(EntityType.NOTE, gone))
    forgotten, ids = harbour.refused(), harbour.ids()
    assert harbour.verdict(0) == "unknown"
    memory.update_note(hidden, visible_to=["human:nobody"])
    both = harbour.refused()
    assert (str(both), both.context) == (str(forgotten), forgotten.context)
    assert harbour.ids() == ids - {str(hidden)}
    assert None in ids
    with pytest.raises(NotFound, match="it was forgotten"):
        memory.replay(harbour.window.window_id)


@pytest.mark.databases("all")
def test_hidden_candidates_have_no_id_in_a_trace(backend: Backend) -> None:
    """A record that did not enter is no reason to refuse, and the trace of the replay does not name it."""
    harbour = Harbour(backend, "resident", pcp__dosage__max_notes_in_window=1)
    included = {str(source.id) for section in harbour.window.sections for source in section.sources}
    (out, *_) = (note for note in harbour.notes if str(note) not in included)
    assert out in {each.target_id for each in harbour.window.assembly_trace}
    harbour.memory.update_note(out, visible_to=["human:nobody"])
    replayed = harbour.ben.replay(harbour.window.window_id)
    assert replayed.text == harbour.window.text
    assert out not in {each.target_id for each in replayed.assembly_trace}
    assert len(replayed.assembly_trace) == len(harbour.window.assembly_trace)
    assert str(out) not in json.dumps(harbour.ben.explain(harbour.window.window_id))
