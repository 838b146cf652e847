"""Resident memory: immutable snapshots, texts that leave, compaction, and reads that ask the store nothing.

Source: design section 5.
"""

from __future__ import annotations

import random
import sys
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from contract.entities import hash_of, plain
from support.configs import USER
from support.drawn import NAMES, needs
from support.inspection import inspect, replaced
from support.threads import at_once, begin
from support.waits import until

import caliber
from caliber.dsl.filters import compile_filter
from caliber.kernels.growing import ByteRows
from caliber.model import FixedClock
from caliber.resident import mirrors
from caliber.resident.mirror import EVICTED
from caliber.resident.predicates import mask
from caliber.schema.memories import BUILT_IN
from caliber.schema.relation import Residence
from caliber.schema.relations import NOTE, TRAJECTORY
from caliber.search.opening import SearchEngine
from caliber.storage.write.unit_of_work import UnitOfWork


def memory_of(memory: caliber.Caliber) -> Any:
    return inspect(memory).resident


def filled(backend: Any, start: Any, count: int = 60, **options: Any) -> Any:
    """An agent with turns, notes, artifacts and closed scopes, all of them embedded."""
    agent = start(backend.open(**options))
    rng = random.Random(7)
    words = (
        "memory", "agent", "turn", "note", "window", "scope", "lock", "commit", "index", "vector", "budget", "query",
    )  # fmt: skip

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.randrange(3, 30)))

    agent.notes = [agent.note(f"{at} {text()}", entity=f"e{at % 5}") for at in range(count)]
    agent.artifacts = [agent.keep(f"{at} {text()}") for at in range(count // 3)]
    for at in range(3):
        scope = agent.memory.current_scope(agent.trajectory_id)
        agent.memory.append_turns(
            scope.scope_id, [{"role": "user", "content": f"{at}.{n} {text()}"} for n in range(count // 6)]
        )
        if at < 2:
            agent.memory.close_scope(scope.scope_id)
            agent.memory.open_scope(agent.trajectory_id)
    agent.memory.flush()
    return agent


# --- zero SQL ------------------------------------------------------------------------------------


def test_assembly_search_and_get_run_no_sql_on_a_resident_tenant(backend: Any, start: Any) -> None:
    # issue, Done when: "A test counts SQL statements of assemble_context, search and get on a resident tenant: 0."
    agent = filled(backend, start)
    memory, store = agent.memory, inspect(agent.memory).store
    reviewer = memory.acting_as(caliber.Principal(caliber.model.PrincipalKind.AGENT, "x"))
    before = store.statement_count()
    for handle in (memory, reviewer):
        window = handle.assemble_context(agent.trajectory_id)
        handle.assemble_context(agent.trajectory_id, query="what about the budget?")
        handle.assemble_context(agent.trajectory_id, query_embedding=np.ones(32, np.float32), max_tokens=300)
        handle.search("vector index", limit=5)
        handle.search("vector index", kinds=["note"], filter={"entity": "e1"})
        handle.search("")
        handle.search_many(["a query", "another query"])
        handle.get(agent.notes[0].note_id)
        handle.get(agent.artifacts[0].artifact_id)
        handle.get(agent.trajectory_id)
        handle.get(agent.scope_id)
        handle.current_scope(agent.trajectory_id)
        with pytest.raises(caliber.CaliberError):
            handle.get(uuid.uuid4())
    assert store.statement_count() - before == 0
    assert window.used_tokens > 0


def test_statements_are_counted_where_they_are_run(backend: Any, start: Any) -> None:
    """A counter that counts nothing would make the test above worth nothing."""
    agent = start(backend.open())
    store = inspect(agent.memory).store
    before = store.statement_count()
    agent.say("x")
    assert store.statement_count() > before
    before = store.statement_count()
    agent.memory.storage.turns.count()
    assert store.statement_count() - before >= 1
    before = store.statement_count()
    agent.memory.assemble_context(agent.trajectory_id, consistency="latest")
    assert store.statement_count() - before <= 1, "latest costs one check"
    elsewhere: list[int] = []

    def count() -> None:
        first = store.statement_count()
        agent.memory.storage.turns.count()
        elsewhere.append(store.statement_count() - first)

    before = store.statement_count()
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert elsewhere[0] >= 1
    assert store.statement_count() == before, "each thread has its own count"


# --- snapshots -----------------------------------------------------------------------------------


def test_snapshot_stays_as_it_was(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.resident.memory.SEGMENT_ROWS", 64)
    agent = filled(backend, start)
    memory = memory_of(agent.memory)
    snapshot = memory.snapshot
    before = _content(snapshot)
    position = snapshot.position
    for at, note in enumerate(agent.notes):
        if at % 3 == 0:
            agent.memory.storage.notes.update(note.note_id, content=f"changed {at}")
        elif at % 3 == 1:
            agent.memory.storage.notes.delete(note.note_id)
    for at in range(200):
        agent.note(f"new {at}")
    memory.compact()
    assert _content(snapshot) == before
    assert snapshot.position == position
    assert memory.snapshot.position.sequence > position.sequence
    assert agent.memory.admin.verify() == []


def _content(snapshot: Any) -> dict[str, Any]:
    """Everything a reader can learn from a snapshot."""
    out: dict[str, Any] = {}
    for name, relation in snapshot.relations.items():
        rows = relation.rows()
        out[name] = [relation.row(number) for number in rows.tolist()]
        for column, _, residence, *_ in relation.layout.columns:
            values = relation.column(column)[rows].tolist()
            if residence is Residence.INTERNED:
                values = [repr(relation.interned(column)[code]) for code in values]
            out[f"{name}.{column}"] = values
        out[f"{name}.found"] = [relation.find(relation.layout.key_of(row)) for row in out[name]]
    for (kind, _), vectors in snapshot.vectors.items():
        owners = snapshot[kind]
        best, scores = vectors.best(np.ones(vectors.dimensions, np.float32), owners, owners.live_mask.copy(), 50, None)
        out[f"best {kind}"] = [
            (owners.entity_id(int(row)), float(score)) for row, score in zip(best, scores, strict=True)
        ]
    return out


@pytest.fixture
def quick_turns() -> Iterator[None]:
    """Threads that change places fifty times as often: more interleavings, and writers wait less for busy readers."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 50)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_turns")
def test_reader_never_sees_one_row_of_a_commit_without_the_other(backend: Any, start: Any) -> None:
    # design section 5: one assembly sees one commit boundary while others write
    agent = start(backend.open(token_budget=4_000))
    memory = agent.memory
    torn: list[Any] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            snapshot = memory_of(memory).snapshot
            notes, trajectories = snapshot["note"].count(), snapshot["trajectory"].count()
            if notes % 2 or trajectories != notes // 2 + 1:
                torn.append((notes, trajectories))
            window = memory.assemble_context(agent.trajectory_id)
            left = {line[5:] for line in window.text.splitlines() if line.startswith("left ")}
            right = {line[6:] for line in window.text.splitlines() if line.startswith("right ")}
            # The limit may cut one pair; any other half of a pair is a torn read.
            if len(left ^ right) > 1:
                torn.append(left ^ right)

    def write(uow: UnitOfWork, at: int) -> None:
        for side in ("left", "right"):
            fingerprint = f"{side}{at}".encode().ljust(32, b"\x00")
            note = plain(NOTE, content=f"{side} {at}", fingerprint=fingerprint, entity="e", token_count=2)
            uow.insert(NOTE, note)
        uow.insert(TRAJECTORY, plain(TRAJECTORY))

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    for at in range(120):
        inspect(memory).write(lambda uow, at=at: write(uow, at))
    stop.set()
    for watcher in watchers:
        watcher.join(30)
    assert torn == []
    assert memory.admin.verify() == []


@pytest.mark.usefixtures("quick_turns")
def test_changed_pair_is_seen_changed_together(backend: Any, start: Any) -> None:
    """The same for updates in place: two notes that always say the same number."""
    agent = start(backend.open())
    memory = agent.memory
    pair = [agent.note("0", entity="left"), agent.note("0", entity="right")]
    torn: list[Any] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            snapshot = memory_of(memory).snapshot["note"]
            said = [snapshot.text(snapshot.find(note.note_id.bytes)) for note in pair]
            if said[0] != said[1]:
                torn.append(said)

    def write(uow: UnitOfWork, at: int) -> None:
        import dataclasses

        for note in pair:
            current = uow.get(NOTE, note.note_id.bytes)
            fingerprint = f"{note.entity}{at}".encode().ljust(32, b"\x00")
            said = {"content": str(at), "content_hash": hash_of(str(at))}
            uow.update(NOTE, dataclasses.replace(current, fingerprint=fingerprint, **said))

    watcher = begin(watch)
    for at in range(300):
        inspect(memory).write(lambda uow, at=at: write(uow, at))
    stop.set()
    watcher.result(30)
    assert torn == []
    assert memory.admin.verify() == []


def test_reader_waits_for_what_another_reader_is_applying(backend: Any, start: Any) -> None:
    """A writer sees its write, also while another reader is just applying it (found by the kill loop)."""
    # Without a worker that embeds, which reads too: it might have taken the note over before anybody is held.
    agent = start(backend.open(embedding_provider=None))
    memory = memory_of(agent.memory)
    inside, go_on = threading.Event(), threading.Event()

    def slow(self: Any, *arguments: Any) -> None:
        inside.set()
        assert go_on.wait(30)
        apply(self, *arguments)

    assert memory.snapshot["note"].count() == 0
    note = agent.note("mine")
    seen: list[int] = []
    first = threading.Thread(target=lambda: memory.snapshot)
    second = threading.Thread(target=lambda: seen.append(memory.snapshot["note"].find(note.note_id.bytes)))
    with replaced(type(memory), "apply", slow) as apply:
        first.start()
        assert inside.wait(30)
        second.start()
        second.join(0.2)
        go_on.set()
        first.join(30)
        second.join(30)
    assert seen == [0]


@pytest.mark.usefixtures("quick_turns")
def test_threads_read_their_own_writes(backend: Any, start: Any) -> None:
    memory = backend.open(storage__durability="group")
    missed: list[Any] = []

    def work(number: int) -> None:
        agent = start(memory)
        for at in range(40):
            scope = memory.current_scope(agent.trajectory_id) or memory.open_scope(agent.trajectory_id)
            turn = memory.append_turn(scope.scope_id, role="user", content=f"{number}.{at}")
            if memory.get(turn.turn_id) != turn or memory.get(scope.scope_id).turn_count == 0:
                missed.append(turn)
            memory.close_scope(scope.scope_id)
            if memory.current_scope(agent.trajectory_id) is not None:
                missed.append(scope)

    at_once([partial(work, number) for number in range(4)])
    assert missed == []


# --- texts that leave ----------------------------------------------------------------------------


@pytest.fixture
def crowded(backend: Any, start: Any) -> Any:
    """An agent whose texts do not fit into the memory it is given."""
    agent = start(
        backend.open(
            resident__resident_bytes=1 << 20, token_budget=200_000,
            **{"assembly.section_shares": {}, "embedding.embed.turn": "off"},
        )
    )  # fmt: skip
    agent.texts = {}
    for at in range(60):
        artifact = agent.keep(f"{at} " + "artifact " * 2_000)
        turn = agent.say(f"{at} " + "turn " * 2_000)
        note = agent.note(f"{at} " + "note " * 500)
        agent.texts |= {
            artifact.artifact_id: artifact.content, turn.turn_id: turn.content, note.note_id: note.content
        }  # fmt: skip
    return agent


def test_texts_leave_memory_and_reads_stay_right(crowded: Any) -> None:
    stats = crowded.memory.admin.stats()["resident"]
    assert stats["column_bytes"] + stats["text_bytes"] <= 1 << 20
    gone = 0
    for record_id, text in crowded.texts.items():
        entity = crowded.memory.get(record_id)
        assert entity.content == text
        snapshot, number = memory_of(crowded.memory).snapshot.locate(record_id.bytes)
        gone += snapshot.text(number) is EVICTED
    assert gone > 30
    after = crowded.memory.admin.stats()["resident"]["evicted_texts_read"]
    assert after - stats["evicted_texts_read"] >= gone, "what was read back is counted"
    assert crowded.memory.admin.verify() == []


def test_evicted_texts_cost_one_statement_a_call(crowded: Any) -> None:
    store = inspect(crowded.memory).store
    crowded.memory.search("artifact", kinds=["artifact"], limit=30)
    before = store.statement_count()
    hits = crowded.memory.search("artifact", kinds=["artifact"], limit=30).hits
    # One batched read, inside its own BEGIN, look at what the schema needs, and ROLLBACK.
    assert store.statement_count() - before <= 4
    assert all(hit.content.encode() == crowded.texts[hit.id] for hit in hits)
    memory = memory_of(crowded.memory)
    inspect(memory).mirror("note").evict_texts(1 << 30)
    notes, read, before = memory.snapshot["note"], memory.stats.evicted_texts_read, store.statement_count()
    found = mask(compile_filter('content contains "7 note"', BUILT_IN["note"]), notes, {}, memory.texts)
    assert store.statement_count() - before <= 4
    assert memory.stats.evicted_texts_read - read == notes.count() == 60
    wanted = {record_id for record_id, text in crowded.texts.items() if isinstance(text, str) and "7 note" in text}
    assert {notes.entity_id(row) for row in np.flatnonzero(found).tolist()} == wanted
    assert len(wanted) == 6


def test_words_read_from_a_text_leave_memory_with_it(backend: Any, start: Any) -> None:
    """Windows keep the words of records that they compared: never longer than the texts."""
    agent = start(backend.open())
    said = agent.keep("the harbour of Porto opens at dawn, said the pilot")
    agent.memory.assemble_context(agent.trajectory_id, query="when does the harbour of Porto open?")
    memory = memory_of(agent.memory)
    artifacts = memory.snapshot["artifact"]
    row, words = artifacts.find(said.artifact_id.bytes), artifacts.generation.readings("words")
    assert "pilot" in words[row], "the window compared the artifact"
    assert "pilot" in set(memory.held())
    artifacts.generation.evict_texts(1 << 30)
    agent.memory.assemble_context(agent.trajectory_id, query="when does the harbour of Porto open?")
    assert row not in words
    assert "pilot" not in set(memory.held())


@needs("reopen")
def test_windows_of_a_handle_with_a_past_are_those_of_a_new_one(backend: Any, start: Any) -> None:
    """A window reads the words of each version of a record once: those of a changed one are read anew."""
    agent = start(backend.open())
    memory = agent.memory
    notes = [agent.note(f"the harbour of place {at % 7} opens at {at}") for at in range(40)]
    for at in range(30):
        agent.say(f"the harbour of place {at % 7} opens at {at}, I was told")
    for _ in range(2):
        memory.assemble_context(agent.trajectory_id, query="when does the harbour open?")
    for at, note in enumerate(notes[::3]):
        memory.update_note(note.note_id, content=f"the harbour of place {at} does not open at {at}, it opens late")
    before = memory.assemble_context(agent.trajectory_id, query="when does the harbour open?")
    memory.close()
    with backend.open() as fresh:
        after = fresh.assemble_context(agent.trajectory_id, query="when does the harbour open?")
    assert after.text == before.text
    assert "opens late" in after.text


@needs("reopen")
def test_windows_are_the_same_whether_texts_are_in_memory_or_not(crowded: Any, backend: Any) -> None:
    until(lambda: crowded.memory.admin.stats()["behind"]["turn_summaries_waiting"] == 0)
    small = crowded.memory.assemble_context(crowded.trajectory_id, max_tokens=100_000)
    assert crowded.memory.replay(small.window_id).text == small.text
    crowded.memory.close()
    with backend.open(
        backend.config(token_budget=200_000, **{"assembly.section_shares": {}, "embedding.embed.turn": "off"})
    ) as roomy:
        assert roomy.assemble_context(crowded.trajectory_id, max_tokens=100_000).text == small.text


def test_text_changed_after_a_snapshot_is_read_as_it_was(crowded: Any) -> None:
    """A reader of an older boundary gets the text of that boundary, evicted or not."""
    memory = memory_of(crowded.memory)
    record_id = next(iter(note_id for note_id, text in crowded.texts.items() if isinstance(text, str)))
    snapshot = memory.snapshot["note"]
    inspect(memory).mirror("note").evict_texts(1 << 30)
    number = snapshot.find(record_id.bytes)
    assert snapshot.text(number) is EVICTED
    crowded.memory.storage.notes.update(record_id, content="changed meanwhile")
    assert memory.texts(snapshot, [number]) == [crowded.texts[record_id]]
    crowded.memory.storage.notes.delete(record_id)
    assert memory.texts(snapshot, [number]) == [crowded.texts[record_id]]


def test_words_of_a_text_that_changed_and_left_are_there_for_readers_of_an_older_boundary(crowded: Any) -> None:
    memory, keywords = memory_of(crowded.memory), inspect(crowded.memory).part(SearchEngine).searcher.keywords
    notes = [note_id for note_id, text in crowded.texts.items() if isinstance(text, str)]
    older = memory.snapshot["note"]
    for at, note_id in enumerate(notes[:2]):
        crowded.memory.storage.notes.update(note_id, content=f"changed meanwhile, {at}")
    crowded.memory.storage.notes.delete(notes[2])
    inspect(memory).mirror("note").evict_texts(1 << 30)
    older.generation.keywords = older.keywords = None
    keywords.of(memory.snapshot["note"])
    found = keywords.of(older)
    holding = found.documents(found.dictionary.terms["note"], np.ones(older.length, np.bool_)).tolist()
    assert {older.find(note_id.bytes) for note_id in notes} <= set(holding)


def test_store_that_outgrows_its_limit_stays_usable(backend: Any, start: Any) -> None:
    """Writes that were acknowledged are read; stats say that the limit is too small."""
    agent = start(backend.open(resident__resident_bytes=1 << 20))
    notes = [plain(NOTE, fingerprint=at.to_bytes(32, "big")) for at in range(2_500)]
    for at in range(0, len(notes), 50):
        inspect(agent.memory).write(lambda uow, at=at: [uow.insert(NOTE, note) for note in notes[at : at + 50]])
    assert agent.memory.get(notes[-1].note_id).note_id == notes[-1].note_id
    assert agent.memory.admin.stats()["records"]["note"] == 2_500
    assert agent.memory.admin.verify() == []


# --- compaction and reloading --------------------------------------------------------------------


def test_compaction_forgets_the_dead_and_nothing_else(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "COMPACT_DEAD_RATIO", 1.0)
    agent = filled(backend, start, count=30)
    memory = memory_of(agent.memory)
    for round_number in range(10):
        for note in agent.notes:
            agent.memory.storage.notes.update(note.note_id, content=f"round {round_number} of {note.note_id}")
        # A read takes over what was committed; unread rows are taken over once, in their last state.
        assert memory.snapshot["note"].count() == 30
    agent.memory.flush()
    before = _content(memory.snapshot)
    assert memory.snapshot["note"].length > 300
    memory.compact()
    assert memory.snapshot["note"].length == 30
    after = _content(memory.snapshot)
    assert {name for name in after if not name.endswith(".found")} == {
        name for name in before if not name.endswith(".found")
    }
    for name in before:
        if name in memory.snapshot.relations:
            assert sorted(after[name]) == sorted(before[name])
        elif name.startswith("best "):
            assert after[name] == before[name], "ids, not row numbers, decide"
    assert agent.memory.admin.verify() == []


def test_compaction_comes_by_itself(backend: Any, start: Any) -> None:
    agent = start(backend.open())
    notes = [agent.note(f"x {number}") for number in range(16)]
    memory = memory_of(agent.memory)

    def rewrite(uow: UnitOfWork, at: int) -> None:
        for number, note in enumerate(notes):
            _rewrite(uow, note, at * len(notes) + number)

    for at in range(100):
        inspect(agent.memory).write(lambda uow, at=at: rewrite(uow, at))
        agent.memory.get(notes[0].note_id)
    assert agent.memory.admin.stats()["resident"]["compactions"] >= 1
    assert memory.snapshot["note"].length < 1_600
    assert [agent.memory.get(note.note_id).content for note in notes] == [str(1_584 + at) for at in range(16)]
    assert agent.memory.admin.verify() == []


def _rewrite(uow: UnitOfWork, note: Any, at: int) -> None:
    import dataclasses

    current = uow.get(NOTE, note.note_id.bytes)
    said = {"content": str(at), "content_hash": hash_of(str(at))}
    uow.update(NOTE, dataclasses.replace(current, fingerprint=at.to_bytes(32, "big"), **said))


def test_reload_gives_the_same_memory(backend: Any, start: Any) -> None:
    agent = filled(backend, start)
    memory = memory_of(agent.memory)
    agent.memory.storage.notes.delete(agent.notes[0].note_id)
    agent.memory.storage.notes.update(agent.notes[1].note_id, content="changed")
    agent.memory.flush()
    before = _content(memory.snapshot)
    memory.reload()
    after = _content(memory.snapshot)
    for name in before:
        if not name.endswith(".found"):
            key = str if name.startswith("best") else None
            assert sorted(after[name], key=key) == sorted(before[name], key=key), name
    assert agent.memory.admin.stats()["resident"]["reloads"] == 1
    assert agent.memory.admin.verify() == []


@needs("reopen")
def test_reopened_store_has_the_same_memory(backend: Any, start: Any) -> None:
    agent = filled(backend, start)
    before = _content(memory_of(agent.memory).snapshot)
    agent.memory.close()
    with backend.open() as again:
        after = _content(memory_of(again).snapshot)
        for name in before:
            if not name.endswith(".found"):
                key = str if name.startswith("best") else None
                assert sorted(after[name], key=key) == sorted(before[name], key=key), name
        assert again.admin.verify() == []


def test_small_segments_change_nothing(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that lie across the borders of segments are rows like others."""
    monkeypatch.setattr("caliber.resident.memory.SEGMENT_ROWS", 64)
    agent = filled(backend, start, count=90)
    assert memory_of(agent.memory).snapshot["note"].length > 64
    found = agent.memory.search("memory agent", kinds=["note"], limit=90).hits
    assert len(found) >= 60
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert agent.memory.admin.verify() == []


def test_many_rows_of_a_commit_are_taken_over_as_one_by_one(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across the border of a segment, and before and behind rows that come alone."""
    monkeypatch.setattr("caliber.resident.memory.SEGMENT_ROWS", 64)
    agent = start(backend.open())
    memory, said = agent.memory, []
    for at, count in enumerate((1, 40, 1, 40, 3, 90, 1)):
        texts = [f"turn{number}of{at} was said" for number in range(count)]
        memory.append_turns(agent.scope_id, [{"role": "user", "content": text} for text in texts])
        said += texts
        turns = memory_of(memory).snapshot["turn"]
        assert turns.length == turns.count() == len(said)
        if at % 2:
            memory.storage.turns.delete(memory.storage.turns.list_by_scope(agent.scope_id)[-1].turn_id)
            said.pop()
            memory_of(memory).compact()
    assert [turn.content.decode() for turn in memory.storage.turns.list_by_scope(agent.scope_id)] == said
    rows = memory_of(memory).snapshot["turn"].group("scope_id", agent.scope_id.bytes)
    assert memory_of(memory).texts(memory_of(memory).snapshot["turn"], rows.tolist()) == [
        text.encode() for text in said
    ]
    assert memory.search("turn7of5", kinds=["turn"], limit=1).hits[0].content == "turn7of5 was said"
    assert memory.admin.verify() == []


# --- the verifier sees everything ----------------------------------------------------------------


def _corrupt_packed(memory: Any) -> None:
    import marshal

    generation = inspect(memory).mirror("note")
    rows = [list(marshal.loads(generation.packed[at])) for at in range(generation.length)]
    rows[0][inspect(memory).mirrors.layouts["note"].codec.index("base_importance")] = 0.123
    generation.packed = ByteRows()
    generation.packed.extend(marshal.dumps(row) for row in rows)


def _corrupt_text(memory: Any) -> None:
    inspect(memory).mirror("turn").texts[1] = b"never said"


def _corrupt_column(memory: Any) -> None:
    inspect(memory).mirror("note").arrays["confidence"].put(0, 0.123)


def _corrupt_flag(memory: Any) -> None:
    inspect(memory).mirror("artifact").arrays["superseded_by"].put(0, 1)


def _corrupt_interned(memory: Any) -> None:
    inspect(memory).mirror("note").arrays["entity"].put(0, 1)


def _slots_of_notes(memory: Any) -> tuple[Any, Any]:
    generation = inspect(memory).mirror("note")
    table = generation.index.table
    alive = np.flatnonzero(generation.live[: generation.length])
    return table, np.flatnonzero(np.isin(table, alive))


def _corrupt_index(memory: Any) -> None:
    table, slots = _slots_of_notes(memory)
    table[slots[0]] = table[slots[1]]


def _corrupt_missing_key(memory: Any) -> None:
    table, slots = _slots_of_notes(memory)
    table[slots[0]] = -1


def _corrupt_missing_row(memory: Any) -> None:
    inspect(memory).mirror("note").retire([0])


def _corrupt_extra_row(memory: Any) -> None:
    generation = inspect(memory).mirror("trajectory")
    row = inspect(memory).mirrors.layouts["trajectory"].codec.encode(plain(TRAJECTORY), 99_999)
    generation.append(row)


def _notes_index(memory: Any) -> Any:
    return inspect(memory).vectors("note")


def _corrupt_vector(memory: Any) -> None:
    index = _notes_index(memory)
    number = index.numbers()[0]
    ordinal, version = int(index.ordinals.at(number)), int(index.versions.at(number))
    owner, wrong = index.owner_at(number), np.ones(index.dimensions, "<f4").tobytes()
    index.put_many([ordinal], [version], [owner], [wrong], [0])


def _corrupt_missing_vector(memory: Any) -> None:
    index = _notes_index(memory)
    assert index.remove(int(index.ordinals.at(index.numbers()[0])))


def _corrupt_retired_vector(memory: Any) -> None:
    index = _notes_index(memory)
    index.matrix.retire(np.array([index.numbers()[0]], np.int64))


def _corrupt_vector_owner(memory: Any) -> None:
    index = _notes_index(memory)
    index.owners.put(index.numbers()[0], (0, 0))


def _corrupt_vector_version(memory: Any) -> None:
    index = _notes_index(memory)
    index.versions.put(index.numbers()[0], 77)


def _corrupt_vector_ordinal(memory: Any) -> None:
    index = _notes_index(memory)
    index.of_ordinal.table[:] = -1


def _corrupt_vector_table(memory: Any) -> None:
    index = _notes_index(memory)
    index.of_owner.table[:] = -1


def _corrupt_group(memory: Any) -> None:
    generation = inspect(memory).mirror("turn")
    numbers = next(iter(generation.groups["scope_id"].values()))
    numbers.pop()


def _corrupt_tie(memory: Any) -> None:
    inspect(memory).mirror("note").ties.put(0, (1, 2))


def _corrupt_ordinal(memory: Any) -> None:
    inspect(memory).mirror("note").ordinals.put(0, 77_777)


def _corrupt_owner_row(memory: Any) -> None:
    index = _notes_index(memory)
    index.owner_rows.put(index.numbers()[0], 5)


CORRUPTIONS = {
    name.removeprefix("_corrupt_").replace("_", " "): function
    for name, function in sorted(globals().items())
    if name.startswith("_corrupt_")
}


# Memory is the same over every database, and the verifier reads each: the databases take turns.
@pytest.mark.parametrize(("backend", "kind"), [*zip(cycle(NAMES), CORRUPTIONS, strict=False)], indirect=["backend"])
def test_verifier_sees_planted_corruption(kind: str, backend: Any, start: Any) -> None:
    # design section 5: "a test corrupts one to prove that it sees it"
    agent = filled(backend, start, count=12)
    memory = memory_of(agent.memory)
    assert memory.verify() == []
    CORRUPTIONS[kind](memory)
    assert memory.verify() != [], f"{kind} went unseen"
    memory.reload()
    assert memory.verify() == [], "reading anew repairs it"


def test_verifier_sees_a_store_changed_behind_its_back(backend: Any, start: Any) -> None:
    agent = filled(backend, start, count=12)
    for statement in (
        "UPDATE note SET confidence = 0.5 WHERE ordinal = 1",
        "DELETE FROM turn WHERE ordinal = 2",
        "UPDATE embedding SET vector = (SELECT vector FROM embedding WHERE ordinal = 4) WHERE ordinal = 3",
    ):
        backend.tamper(agent.memory, statement)
        assert agent.memory.admin.verify() != [], statement
        memory_of(agent.memory).reload()
        assert agent.memory.admin.verify() == []


def test_verifier_looks_into_the_database_too(file_backend: Any, start: Any) -> None:
    agent = filled(file_backend, start, count=12)
    connection = inspect(agent.memory).connection
    connection.command("PRAGMA foreign_keys = OFF")
    connection.command("UPDATE turn SET scope_id = zeroblob(16) WHERE ordinal = 1")
    assert any("dangling reference in turn" in fault for fault in agent.memory.admin.verify())


def test_assembly_is_a_function_of_its_inputs(backend: Any, start: Any) -> None:
    """The same position, clock and arguments give the same text, however the memory came about."""
    clock = FixedClock()
    agent = start(backend.open(clock=clock))
    for at in range(30):
        agent.note(f"note {at} about memory", entity=f"e{at}")
    agent.say("what about memory?")
    agent.memory.flush()
    first = agent.memory.assemble_context(agent.trajectory_id, query="memory")
    memory_of(agent.memory).compact()
    second = agent.memory.assemble_context(agent.trajectory_id, query="memory")
    memory_of(agent.memory).reload()
    third = agent.memory.assemble_context(agent.trajectory_id, query="memory")
    assert first.text == second.text == third.text
    assert [d.target_id for d in first.assembly_trace] == [d.target_id for d in third.assembly_trace]
    assert USER.id
