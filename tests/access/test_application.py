"""The application's handle: it acts for the user of each task, sees without ``user=`` what is shared, rules nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend
from support.memories import FACT

import caliber
from caliber.config import profiles
from caliber.model import EntityRef, EntityType, Principal, PrincipalKind
from caliber.model.errors import InvalidValue, NotFound, PermissionDenied, RequiredFieldMissing

ANA, BEN = "ana@example.com", "ben@example.com"
HOST = EntityRef.agent("host")
APPLICATION = Principal.application()
MODES = pytest.mark.parametrize("mode", ["resident", "backend"])


@pytest.fixture
def open_app(backend: Backend) -> Callable[..., caliber.Caliber]:
    """Return a function that opens a store with the principal that the profiles ship: the application."""
    shipped = profiles.reference("a.db").to_mapping()["principal"]

    def opened(**knobs: Any) -> caliber.Caliber:
        knobs = {"memories": [FACT], "jobs__poll_ms": 0, "principal": shipped, **knobs}
        return backend.open(backend.config(**knobs))

    return opened


def note(memory: caliber.Caliber, content: str, **options: Any) -> Any:
    about = {"entity": "harbour", "entity_type": "place", "note_type": "fact", "confidence": 0.9}
    return memory.add_note(content=content, **about, **options)


def said(memory: caliber.Caliber, content: str, **whose: Any) -> tuple[Any, Any]:
    """Start a task and append a turn; return both."""
    task = memory.start_trajectory("chat about the harbour", **whose)
    scope = memory.current_scope(task.trajectory_id)
    return task, memory.append_turn(scope.scope_id, role="user", content=content)


@MODES
def test_a_forgotten_user_shows_no_words_of_one(open_app: Callable[..., caliber.Caliber], mode: str) -> None:
    memory = open_app(search__mode=mode)
    assert memory.principal == APPLICATION
    task, turn = said(memory, "my harbour pin is 4711", user=ANA)
    _, other = said(memory, "harbour of ben", user=BEN)
    _, shared = said(memory, "harbour of all", initiator=HOST)
    own, everybody = note(memory, "ana likes the harbour", user=ANA), note(memory, "the harbour is deep")
    fact = memory.records("fact").insert(subject="x", kind="claim", content="harbour", trajectory=task.trajectory_id)
    memory.flush()

    def found(user: str | None) -> set[Any]:
        return {hit.id for hit in memory.search("harbour", user=user, limit=50).hits}

    assert found(None) == {shared.turn_id, everybody.note_id}
    assert found(ANA) == found(None) | {turn.turn_id, own.note_id, fact.record_id}
    assert found(BEN) == found(None) | {other.turn_id}
    for hidden in (task.trajectory_id, turn.turn_id, own.note_id, fact.record_id):
        with pytest.raises(NotFound):
            memory.get(hidden)
        with pytest.raises(NotFound):
            memory.get(hidden, user=BEN)
        assert memory.get(hidden, user=ANA)
    facts = memory.records("fact")
    assert facts.count() == 0 == len(facts.find()) == len(facts.search("harbour").hits)
    assert memory.records("fact", user=ANA).count() == 1 == facts.count(trajectory_id=task.trajectory_id)
    assert memory.records("fact", user=BEN).find() == []
    assert [each.record_id for each in facts.find(trajectory_id=task.trajectory_id)] == [fact.record_id]
    with pytest.raises(NotFound):
        memory.trace(task.trajectory_id)
    assert memory.trace(task.trajectory_id, user=ANA)
    counts = memory.admin.stats()["records"]
    memory.remember([{"role": "user", "content": "I live in Rome."}], user=ANA)
    assert "person_fact" not in memory.admin.stats()["records"], "facts about others are not counted"
    # Without them in memory, records that may be hidden are not counted.
    assert [counts.get(kind, 1) for kind in ("turn", "note", "trajectory")] == [1, 1, 1]


@MODES
def test_what_is_not_found_without_a_user_hints_at_user(open_app: Callable[..., caliber.Caliber], mode: str) -> None:
    memory = open_app(search__mode=mode)
    task, turn = said(memory, "my harbour pin is 4711", user=ANA)
    window = memory.assemble_context(task.trajectory_id, query="harbour").window_id
    fact = memory.records("fact").insert(subject="x", kind="claim", content="harbour", trajectory=task.trajectory_id)
    memory.flush()

    def told(ask: Callable[..., Any], key: uuid.UUID, **options: Any) -> str:
        with pytest.raises(NotFound) as error:
            ask(key, **options)
        return str(error.value).replace(str(key), "ID")

    asked: list[tuple[Callable[..., Any], uuid.UUID]] = [
        (memory.get, turn.turn_id),
        (memory.get, task.trajectory_id),
        (memory.trace, task.trajectory_id),
        (memory.explain, window),
        (memory.replay, window),
        (memory.records("fact").get, fact.record_id),
    ]
    for ask, hidden in asked:
        text = told(ask, hidden)
        assert text == told(ask, uuid.uuid4()), "a hidden record is told of as an absent one"
        assert "pass user=" in text
        if ask != asked[-1][0]:
            assert "pass user=" not in told(ask, hidden, user=BEN) == told(ask, uuid.uuid4(), user=BEN)
            ask(hidden, user=ANA)
    assert memory.get(turn.turn_id, user=ANA) == turn
    # A search finds nothing, with the same hint whether there is something or not.
    found, nothing = memory.search("harbour"), memory.search("lighthouse")
    assert (found.hits, found.status) == (nothing.hits, nothing.status) == ((), found.status)
    assert found.hint == nothing.hint
    assert "pass user=" in str(found.hint)
    assert memory.search("harbour", user=ANA).hits
    assert memory.search("harbour", user=ANA).hint is None is memory.search("lighthouse", user=ANA).hint
    assert memory.acting_as(Principal.user(ANA)).search("lighthouse").hint is None
    ben = memory.acting_as(Principal.user(BEN))
    assert told(ben.explain, window) == told(ben.explain, uuid.uuid4())
    assert told(ben.get, turn.turn_id) == "record ID was not found"


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_every_profile_has_the_application(name: str) -> None:
    assert profiles.PROFILES[name]("a.db").principal.to_principal() == APPLICATION


@MODES
def test_recall_of_an_owner_is_recall_of_the_user(open_app: Callable[..., caliber.Caliber], mode: str) -> None:
    memory = open_app(search__mode=mode)
    key, turn = said(memory, "my harbour pin is 4711", user=ANA)
    said(memory, "harbour of ben", user=BEN)
    said(memory, "harbour of all", initiator=HOST)
    imported = EntityRef(EntityType.SYSTEM, HOST.id)
    said(memory, "harbour of an import", initiator=imported)
    session = memory.start_session(user=BEN)
    said(memory, "harbour import of ben", initiator=imported, session=session.session_id)
    below, _ = said(memory, "what is my pin?", initiator=HOST, parent=key.trajectory_id)
    alone, _ = said(memory, "which harbours are there?", initiator=HOST)
    memory.flush()

    def recalled(task: Any) -> set[str]:
        text = memory.assemble_context(task.trajectory_id, query="harbour").text
        return {name for name in ("4711", "of ben", "of all", "of an import") if name in text}

    assert recalled(key) == {"4711", "of an import"}
    assert recalled(below) == {"4711", "of an import"}, "an agent's task below hers is hers"
    assert recalled(alone) == {"of all", "of an import"}
    window = memory.assemble_context(alone.trajectory_id, query="harbour")
    why = memory.acting_as(Principal.admin()).explain(window.window_id, exclusion=turn.turn_id)
    assert "recall.from = owner does not reach" in why["reason"]


@MODES
def test_a_call_about_a_task_acts_for_its_user(open_app: Callable[..., caliber.Caliber], mode: str) -> None:
    memory = open_app(search__mode=mode)
    task, _ = said(memory, "my harbour pin is 4711", user=ANA)
    said(memory, "harbour of ben", user=BEN)
    key = task.trajectory_id
    window = memory.assemble_context(key, query="harbour")
    assert "4711" in window.text
    assert "ben" not in window.text
    for read in (memory.explain, memory.replay):
        for user in (None, BEN):
            with pytest.raises(NotFound):
                read(window.window_id, user=user)
        assert read(window.window_id, user=ANA)
    assert memory.replay(window.window_id, user=ANA).text == window.text
    scope = memory.open_scope(key)
    boat = memory.create_artifact(scope.scope_id, artifact_type="fact", content="a boat", extraction_method="explicit")
    assert memory.artifacts.update(boat.artifact_id, confidence=0.5).version == 2
    assert memory.pcp.lint(boat.artifact_id).valid
    saved = memory.pcp.checkpoint(key)
    assert memory.pcp.recover(key, saved.checkpoint_id, preview=True).turns_rolled_back == 0
    record = memory.records("fact").insert(subject="x", kind="claim", content="y", trajectory=key)
    assert memory.records("fact").update(record.record_id, content="z").content == "z"
    memory.records("fact").delete(record.record_id)
    memory.suspend_trajectory(key)
    memory.resume_trajectory(key)
    learnt = memory.remember([{"role": "user", "content": "I live in Rome."}], task=key, wait=True)
    assert memory.learning.get(learnt.learned_id).added
    assert memory.learning.undo(learnt.learned_id)
    drawn = note(memory, "drawn from the task", source_trajectory_ids=[key])
    assert drawn.visible_to == (f"user:{task.initiator.id}",)
    memory.close_scope(scope.scope_id)
    memory.complete_trajectory(key, status="success", summary="done")
    session = memory.start_session(user=BEN)
    below = memory.start_trajectory("in it", initiator=HOST, session=session.session_id)
    assert memory.acting_as(Principal.user(BEN)).get(below.trajectory_id)
    with pytest.raises(NotFound):
        memory.get(below.trajectory_id, user=ANA)
    memory.end_session(session.session_id)
    with pytest.raises(InvalidValue, match="several users"):
        note(memory, "of both", source_trajectory_ids=[key, below.trajectory_id])
    with pytest.raises(RequiredFieldMissing):
        memory.start_trajectory("whose?")


def test_a_note_from_tasks_that_are_gone_is_not_shared(open_app: Callable[..., caliber.Caliber]) -> None:
    memory = open_app()
    gone = memory.start_trajectory("her own", user=ANA).trajectory_id
    memory.forget(user=ANA)
    for source in (gone, uuid.uuid4()):
        with pytest.raises(NotFound):
            note(memory, "the locker code is 4711", source_trajectory_ids=[source])
    assert memory.acting_as(Principal.admin()).storage.notes.count() == 0


def test_notes_of_a_user_are_corrected_for_that_user(open_app: Callable[..., caliber.Caliber]) -> None:
    memory = open_app()
    own, shared = note(memory, "ana likes the harbour", user=ANA), note(memory, "the harbour is deep")
    written = note(memory.acting_as(Principal.user(ANA)), "the harbour has boats")
    for each in (own, written):
        for user in (None, BEN):
            with pytest.raises(NotFound):
                memory.update_note(each.note_id, content="wrong", user=user)
        assert memory.update_note(each.note_id, content=f"{each.content}!", user=ANA).version == 2
        assert memory.undo_note(each.note_id, user=ANA).content == each.content
    newer = memory.supersede_note(own.note_id, content="ana likes the lake", user=ANA)
    assert newer.visible_to == own.visible_to
    memory.end_note(newer.note_id, user=ANA)
    memory.delete_note(written.note_id, user=ANA)
    assert memory.update_note(shared.note_id, content="the harbour is shallow").version == 2


def test_the_application_forgets_a_user(open_app: Callable[..., caliber.Caliber]) -> None:
    memory = open_app()
    _, turn = said(memory, "my pin is 4711", user=ANA)
    assert memory.forget(user=ANA, dry_run=True).erased
    assert not memory.forget(user=ANA).remaining
    with pytest.raises(NotFound):
        memory.get(turn.turn_id, user=ANA)
    memory.identities.add("auth0|1", BEN)
    assert [each.name for each in memory.identities.names(BEN)] == [BEN, "auth0|1"]


ADMINISTERS: dict[str, Callable[[caliber.Caliber], Any]] = {
    "storage": lambda memory: memory.storage,
    "forget texts": lambda memory: memory.forget(texts=["a harbour"]),
    "forget an agent": lambda memory: memory.forget(entity=HOST),
    "forget what is shared": lambda memory: memory.forget(user=ANA, even_if_shared=True),
    "forget in the log": lambda memory: memory.forget(user=ANA, scrub_log=True),
    "merge": lambda memory: memory.identities.merge(ANA, BEN),
    "jobs": lambda memory: memory.jobs.list(),
    "retry": lambda memory: memory.jobs.retry(HOST.id),
    "cancel": lambda memory: memory.jobs.cancel(HOST.id),
    "operations": lambda memory: memory.admin.operations(),
    "verify": lambda memory: memory.admin.verify(),
    "maintain": lambda memory: memory.admin.maintain(),
    "purge": lambda memory: memory.admin.purge_trajectory(HOST.id),
    "resume": lambda memory: memory.admin.resume_forgetting(),
    "sweep": lambda memory: memory.admin.sweep(),
    "rebuild": lambda memory: memory.admin.rebuild_search(),
    "status": lambda memory: memory.admin.status(),
    "vacuum": lambda memory: memory.admin.vacuum(),
    "backup": lambda memory: memory.admin.backup("never.db"),
    "export_audit": lambda memory: memory.admin.export_audit("never.jsonl"),
    "check": lambda memory: memory.admin.check(),
    "create views": lambda memory: memory.admin.create_views(),
    "drop views": lambda memory: memory.admin.drop_views(),
}


@pytest.mark.databases("one")
def test_what_administers_needs_an_administrator(open_app: Callable[..., caliber.Caliber]) -> None:
    memory = open_app()
    for call in ADMINISTERS.values():
        with pytest.raises(PermissionDenied, match=r"principal=caliber.Principal.admin\(\)"):
            call(memory)
    public = {name for name in dir(type(memory.admin)) if not name.startswith("_")}
    named = {"purge_trajectory", "resume_forgetting", "rebuild_search", "create_views", "drop_views"}
    named |= {"stats", "inspect"}  # these show what the principal sees
    assert public - named <= ADMINISTERS.keys(), "each method of the facet is refused"
    assert memory.acting_as(Principal.admin()).storage.turns.count() == 0
    assert memory.acting_as(Principal.user(ANA)).principal.id == ANA
    with pytest.raises(PermissionDenied):
        memory.acting_as(Principal.user(ANA)).acting_as(APPLICATION)


@pytest.mark.databases("one")
def test_events_locks_and_work_behind(open_app: Callable[..., caliber.Caliber]) -> None:
    memory = open_app()
    heard: list[Any] = []
    memory.events.subscribe(heard.append)
    task, _ = said(memory, "my pin is 4711", user=ANA)
    shared, _ = said(memory, "harbour", initiator=HOST)
    memory.flush()
    tasks = {event.trajectory_id for event in heard}
    assert shared.trajectory_id in tasks
    assert task.trajectory_id not in tasks
    assert memory.agents.locks.acquire("door", holder="agent:planner").holder == "agent:planner"
    memory.remember([{"role": "user", "content": "I live in Rome."}], task=task.trajectory_id, wait=False)
    kinds = {job.principal_kind for job in memory.acting_as(Principal.admin()).jobs.list()}
    assert PrincipalKind.APPLICATION in kinds


def test_an_administrators_windows_of_shared_tasks_are_no_users(backend: Backend) -> None:
    admin = backend.open(principal=Principal.admin(), embedding_provider=None)
    said(admin, "my harbour pin is 4711", user=ANA)
    shared, _ = said(admin, "harbour of all", initiator=HOST)
    own, _ = said(admin, "the harbour again", user=ANA)
    whole, private = (admin.assemble_context(each.trajectory_id, query="harbour") for each in (shared, own))
    assert admin.explain(whole.window_id)
    assert admin.explain(private.window_id, user=ANA)
    for window, user in ((whole, ANA), (whole, BEN), (private, BEN)):
        with pytest.raises(NotFound):
            admin.explain(window.window_id, user=user)
    with pytest.raises(NotFound):
        admin.acting_as(APPLICATION).explain(whole.window_id)


@MODES
def test_a_list_of_readers_that_names_nobody_known_is_not_shared(
    open_app: Callable[..., caliber.Caliber], mode: str
) -> None:
    memory = open_app(search__mode=mode)
    admin = memory.acting_as(Principal.admin())
    for number, readers in enumerate((["executor"], ["agent:host", "system:jobs"], ["agent:host", "executor"])):
        shown = note(admin, f"harbour {number}", visible_to=readers)
        assert memory.get(shown.note_id) == shown
    hidden = note(admin, "harbour of somebody", visible_to=["executor"])
    for readers in (("[forgotten]",), ("[forgotten]@example.com", "executor"), ("agent",), ("Executor",)):
        admin.storage.notes.update(hidden.note_id, visible_to=readers)
        memory.flush()
        with pytest.raises(NotFound):
            memory.get(hidden.note_id)
        assert hidden.note_id not in {hit.id for hit in memory.search("harbour", user=BEN).hits}
