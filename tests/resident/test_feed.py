"""Two handles on one store: each sees what the other committed, never half of it.

Threads that are interrupted at any line leave memory that holds what the store does. Source: design section 5.
"""

from __future__ import annotations

import gc
import random
import signal
import threading
from typing import Any

import pytest
from contract.entities import plain
from contract.world import count
from support.configs import USER, config
from support.databases import note
from support.drawn import needs
from support.evidence import scale, seed
from support.inspection import inspect, replaced
from support.interrupted import Late, every_line, in_files
from support.providers import CountingEmbeddings
from support.threads import begin
from support.waits import until

import caliber
from caliber.model.deadline import within
from caliber.model.errors import Conflict, Unavailable
from caliber.schema.relations import NOTE, TRAJECTORY
from caliber.search.opening import SearchEngine
from caliber.storage.write.unit_of_work import UnitOfWork


@pytest.fixture
@needs("sharing")
def pair(backend: Any) -> tuple[caliber.Caliber, caliber.Caliber]:
    return backend.open(), backend.open()


def test_latest_sees_the_other_handle_at_once(pair: Any) -> None:
    first, second = pair
    made = note(first, "zeppelin")
    assert second.search("zeppelin", consistency="latest").hits[0].id == made.note_id
    assert second.get(made.note_id) == made
    trajectory = second.start_trajectory("goal", initiator=USER)
    window = first.assemble_context(trajectory.trajectory_id, query="zeppelin", consistency="latest")
    assert window.text == "# Notes\n- e (fact): zeppelin"


def test_latest_waits_for_news_that_another_thread_has_read_and_not_applied(pair: Any) -> None:
    first, second = pair
    memory = inspect(second).resident
    read, apply = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        read.set()
        assert apply.wait(20)
        applying(*arguments)

    made = note(first, "zeppelin")
    follower = threading.Thread(target=inspect(second).store.catch_up)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(second.search("zeppelin", consistency="latest").hits))
    with replaced(memory, "apply_foreign", slow) as applying:
        follower.start()
        assert read.wait(20)
        reader.start()
        reader.join(0.2)
        assert reader.is_alive(), "it read what is not the latest"
        apply.set()
        for thread in (follower, reader):
            thread.join(20)
    assert [hit.id for hit in found] == [made.note_id]


@needs("sharing")
def test_local_sees_it_once_it_was_polled_or_something_was_written(backend: Any) -> None:
    first = backend.open()
    silent = backend.open()
    polling = backend.open(resident__feed_poll_ms=20)
    made = note(first, "zeppelin")
    with pytest.raises(caliber.CaliberError):
        silent.get(made.note_id)
    until(lambda: polling.search("zeppelin", kinds=["note"]).hits, "the poller never came")
    silent.start_trajectory("goal", initiator=USER)
    assert silent.get(made.note_id) == made, "a write of its own brings others' commits first"


def test_every_kind_of_change_travels(pair: Any) -> None:
    first, second = pair
    trajectory = first.start_trajectory("goal", initiator=USER)
    scope = first.current_scope(trajectory.trajectory_id)
    turn = first.append_turn(scope.scope_id, role="user", content=b"\xffbytes")
    artifact = first.create_artifact(
        scope.scope_id, artifact_type="fact", content="fact", extraction_method="explicit", ttl="scope"
    )
    kept = note(first, "kept")
    first.storage.notes.update(kept.note_id, content="changed")
    gone = note(first, "gone")
    first.storage.notes.delete(gone.note_id)
    first.close_scope(scope.scope_id)
    first.flush()
    snapshot = inspect(second).snapshot("latest")
    for name in ("trajectory", "scope", "turn", "artifact", "note", "embedding_space"):
        ours, theirs = inspect(first).resident.snapshot[name], snapshot[name]
        assert _rows(theirs) == _rows(ours), name
    assert second.get(turn.turn_id).content == b"\xffbytes"
    assert second.get(artifact.artifact_id).retired_at is not None
    assert second.get(kept.note_id).content == "changed"
    with pytest.raises(caliber.CaliberError):
        second.get(gone.note_id)
    assert second.admin.verify() == []
    assert second.search("changed", kinds=["note"]).hits[0].id == kept.note_id, "its vector travelled too"


def _rows(snapshot: Any) -> list[Any]:
    return sorted(snapshot.row(number) for number in snapshot.rows().tolist())


def test_own_commit_is_not_a_change_of_somebody_else(pair: Any) -> None:
    first, second = pair
    inspect(first).snapshot("latest")
    note(first, "mine")
    first.flush()  # each write of ours has others' news too: none may be under way when they write
    assert not inspect(first).store.changed_elsewhere()
    note(second, "theirs")
    second.flush()
    assert inspect(first).store.changed_elsewhere()
    assert inspect(first).store.changed_elsewhere(), "until it is applied the answer stays yes"
    inspect(first).snapshot("latest")
    assert not inspect(first).store.changed_elsewhere()


def test_feed_that_no_longer_reaches_back_is_a_reload(pair: Any) -> None:
    first, second = pair
    contents = [f"number {at}" for at in range(20)]
    for content in contents:
        note(first, content)
    inspect(first).write(lambda uow: uow.execute("change.prune", 2**60, 0))
    reloads = second.admin.stats()["resident"]["reloads"]
    found = second.search("", limit=50, kinds=["note"], consistency="latest").hits
    assert sorted(hit.content for hit in found) == sorted(contents)
    assert second.admin.stats()["resident"]["reloads"] == reloads + 1
    assert second.admin.verify() == []
    assert first.admin.verify() == []


def test_versions_decide_and_older_news_changes_nothing(pair: Any) -> None:
    first, second = pair
    made = note(first, "one")
    inspect(second).snapshot("latest")
    first.storage.notes.update(made.note_id, content="two")
    with pytest.raises(Conflict):
        second.storage.notes.update(made.note_id, content="lost", expected_version=1)
    assert second.get(made.note_id).content == "two", "the refused writer has the news now"
    second.storage.notes.update(made.note_id, content="three", expected_version=2)
    inspect(first).snapshot("latest")
    assert first.get(made.note_id).content == "three"
    assert first.get(made.note_id).version == 3


def test_pair_of_rows_is_never_seen_apart_through_the_feed(pair: Any) -> None:
    """Rows of one commit arrive together, also in the mirror of another handle."""
    first, second = pair
    stop = threading.Event()
    torn: list[Any] = []

    def watch() -> None:
        while not stop.is_set():
            snapshot = inspect(second).snapshot("latest")
            if snapshot["note"].count() != snapshot["trajectory"].count():
                torn.append((snapshot["note"].count(), snapshot["trajectory"].count()))

    watcher = begin(watch)

    def work(uow: UnitOfWork, at: int) -> None:
        uow.insert(NOTE, plain(NOTE, fingerprint=at.to_bytes(32, "big")))
        uow.insert(TRAJECTORY, plain(TRAJECTORY))

    for at in range(150):
        inspect(first).write(lambda uow, at=at: work(uow, at))
    stop.set()
    watcher.result(30)
    assert torn == []
    assert inspect(second).snapshot("latest")["note"].count() == 150


def test_two_handles_write_in_turns_and_agree(pair: Any) -> None:
    first, second = pair
    trajectory = first.start_trajectory("goal", initiator=USER)
    scope = first.current_scope(trajectory.trajectory_id)
    for at in range(20):
        (first if at % 2 else second).append_turn(scope.scope_id, role="user", content=f"turn {at}")
    for memory in pair:
        window = memory.assemble_context(trajectory.trajectory_id, consistency="latest")
        assert [message["content"] for message in window.to_messages() if message["role"] == "user"] == [
            f"turn {at}" for at in range(20)
        ]
        assert memory.admin.verify() == []


def test_position_names_the_commit_boundary(pair: Any) -> None:
    first, second = pair
    before = first.search("", limit=1).position
    note(first, "one more")
    after = first.search("", limit=1).position
    assert after.epoch == before.epoch
    assert after.sequence > before.sequence
    assert second.search("", limit=1, consistency="latest").position == after


INTERRUPTS = scale(2_000, 20_000)


def _open(backend: Any, **overrides: Any) -> tuple[Any, Any]:
    memory = backend.open(resident__feed_poll_ms=3_600_000, write_behind__trace_enabled=False, **overrides)
    task = memory.start_trajectory("goal", initiator=USER)
    return memory, memory.current_scope(task.trajectory_id)


def _note(memory: Any, text: str) -> Any:
    return memory.add_note(entity="e", entity_type="x", note_type="fact", content=text, confidence=0.5)


def _assert_sound(memory: Any, notes: list[Any]) -> None:
    assert [memory.get(note.note_id).content for note in notes] == [note.content for note in notes]
    assert memory.admin.verify() == []


@pytest.mark.parametrize("files", ["resident/memory.py", "resident/mirrors.py", "resident/"])
def test_a_read_that_is_interrupted_leaves_memory_as_the_store_is(backend: Any, files: str) -> None:
    """The read takes over what was committed before it: rows new, changed and deleted, and vectors."""
    memory, _ = _open(backend, embedding_provider=CountingEmbeddings(), embedding__embed__note="commit")
    kept = [_note(memory, "first"), _note(memory, "second")]
    resident = inspect(memory).resident
    at = 0
    for lines in every_line(in_files(files), step=2 if files.endswith(".py") else 29):
        at += 1
        memory.storage.notes.delete(kept[0].note_id)
        changed = memory.storage.notes.update(kept[1].note_id, content=f"changed {at}")
        kept = [changed, _note(memory, f"acknowledged {at}")]
        with lines.counted():
            resident.snapshot["note"].count()
        _assert_sound(memory, kept)
    assert at > 15


def test_a_load_that_is_interrupted_is_done_again(backend: Any) -> None:
    memory, _ = _open(backend)
    kept = [_note(memory, f"note {at}") for at in range(3)]
    resident = inspect(memory).resident
    for lines in every_line(in_files("resident/memory.py", "resident/mirrors.py", "resident/mirror.py"), step=31):
        with lines.counted():
            resident.reload()
        _assert_sound(memory, kept)


@needs("sharing")
def test_following_another_process_is_interrupted(backend: Any) -> None:
    memory, _ = _open(backend)
    other = backend.open(inspect(memory).engine.config)
    kept: list[Any] = []
    files = ("resident/memory.py", "resident/mirrors.py", "storage/protocol.py", "postgres/writing/feed.py")
    for lines in every_line(in_files(*files), step=3):
        kept = [_note(other, f"foreign {len(kept)}")]
        with lines.counted():
            inspect(memory).engine.follow_feed()
        inspect(memory).engine.follow_feed()
        _assert_sound(memory, kept)


def test_what_was_committed_is_seen_although_taking_it_over_was_interrupted(backend: Any) -> None:
    """The write is interrupted once its COMMIT stands: the next read of memory, which asks nobody, has the row."""
    memory, _ = _open(backend, embedding_provider=CountingEmbeddings(), embedding__embed__note="behind")
    files = ("resident/memory.py", "embedding/embedder.py", "embedding/backfill.py")
    at = 0
    for lines in every_line(in_files(*files)):
        at += 1
        with lines.counted():
            _note(memory, f"note {at}")
        assert inspect(memory).resident.snapshot["note"].count() == count(inspect(memory).store, NOTE)
    assert at > 20
    assert memory.admin.verify() == []
    memory.flush()
    at = count(inspect(memory).store, NOTE)
    assert memory.admin.stats()["behind"]["embeddings_waiting"] == 0
    with inspect(memory).store.read() as session:
        assert session.run(inspect(memory).store.plans["embedding"].count, ())[0][0] == at


def test_neighbours_whose_linking_was_interrupted_are_linked_anew(backend: Any) -> None:
    memory, scope = _open(backend)
    from caliber.resident.conversation import neighbours

    resident = inspect(memory).resident
    at = 0
    for lines in every_line(in_files("resident/chain.py", "resident/conversation.py")):
        for _ in range(2):
            at += 1
            memory.append_turn(scope.scope_id, role="user", content=f"turn {at}")
        with lines.counted():
            neighbours(resident.snapshot["turn"], "scope_id")
        before, after = neighbours(resident.snapshot["turn"], "scope_id").columns()
        assert before.tolist() == list(range(-1, at - 1))
        assert after.tolist() == [*range(1, at), -1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), Unavailable("late")], ids=repr)
def test_a_commit_that_was_not_taken_over_is_read_anew(backend: Any, error: BaseException, monkeypatch: Any) -> None:
    memory, _ = _open(backend)
    resident = inspect(memory).resident
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> None:
            raise error

        patch.setattr(resident, "committed", broken)
        with pytest.raises(type(error)):
            _note(memory, "it stands")
    assert resident.snapshot["note"].count() == 1
    assert memory.admin.verify() == []


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals")
@pytest.mark.parametrize("limit", [None, 60], ids=["unbounded", "bounded"])
def test_the_lock_of_memory_is_free_after_an_interrupt_anywhere(limit: float | None) -> None:
    """Signals come at any step of taking and giving back; the program keeps the errors, and with them their frames."""
    chance, errors = random.Random(seed()), []

    def handler(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # an interrupt in a callback of the collector, Hypothesis has one, is a warning that fails the test
    try:
        with caliber.open(config(":memory:", embedding_provider=None)) as memory, within(limit):
            resident = inspect(memory).resident
            for _ in range(INTERRUPTS):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, 4e-5))
                    while True:
                        resident.settle()
                except Late as error:
                    errors.append(error)
                other = threading.Thread(target=resident.settle, daemon=True)
                other.start()
                other.join(60)
                assert not other.is_alive(), "the lock is held by nobody who would give it back"
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert len(errors) == INTERRUPTS


def test_indexing_words_that_is_interrupted_keeps_nobody_waiting(backend: Any) -> None:
    """A search is interrupted while it has its turn at the index: the next one, of any thread, has it too."""
    memory, scope = _open(backend, embedding_provider=None)
    place = inspect(memory).part(SearchEngine).searcher.keywords.place
    at = 0
    for lines in every_line(in_files("resident/keywords.py", "storage/waiting.py")):
        at += 1
        memory.append_turn(scope.scope_id, role="user", content=f"turn {at}")
        with lines.counted():
            memory.search(str(at), kinds=["turn"])
        until(lambda: place.free == 1)  # another thread may give it back
        assert memory.search(str(at), kinds=["turn"]).hits[0].content == f"turn {at}"
    assert at > 20
