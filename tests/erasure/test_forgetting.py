"""``forget`` and ``purge_trajectory``: what is erased, what is left alone, and what is proven of it.

The byte search here shares nothing with the one that the library does: it reads every value of every table by SQL, and
every file, on its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal
import subprocess
import sys
import textwrap
import time
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as command
from support.cli_runs import caliber_json as command_json
from support.configs import USER, config, policy
from support.drawn import needs
from support.erasure.byte_search import searched
from support.inspection import inspect, replaced
from support.memories import FACT, STEP, record
from support.tenancy.tenancies import tenancy_config

import caliber
from caliber.backends import backend as backend_module
from caliber.erasure import service
from caliber.erasure.erasing import Walk
from caliber.erasure.proving import Proof
from caliber.erasure.subject import Subject
from caliber.model import EntityRef, EntityType, FixedClock, Principal, ToolCall
from caliber.model.access import AgentRole, PrincipalKind
from caliber.model.errors import AmbiguousSubject, NotFound, PermissionDenied, RequiredFieldMissing, Unavailable
from caliber.schema.relations import TURN
from caliber.search.in_database.full_text import WordIndexer
from caliber.search.opening import SearchEngine
from caliber.storage.compile.derived import completed

TESTS = str(Path(__file__).resolve().parents[1])
NAME = "Zaphod Beeblebröx"
MAIL = "zb42@heart-of-gold.example"
TEXTS = (NAME, MAIL)
PERSON = EntityRef(EntityType.USER, uuid.UUID("0190f3c2-7c00-7000-8000-00000000a1a1"))
SECRET = "his second head is shy"
"""Said of the subject in a record of its own, without a name in it."""


def needles() -> list[bytes]:
    """Return the subject in every form that is looked for, lower-case."""
    texts = [*TEXTS, SECRET, str(PERSON.id), PERSON.id.hex, "beeblebr"]
    out = {PERSON.id.bytes}
    for text in texts:
        for form in ("NFC", "NFD"):
            spelt = unicodedata.normalize(form, text)
            for variant in (spelt, spelt.lower(), spelt.upper(), json.dumps(spelt)[1:-1]):
                out |= {variant.encode(), variant.encode("utf-16-le"), variant.encode("utf-16-be")}
                out.add(hashlib.sha256(variant.encode()).digest())
    return sorted({needle.lower() for needle in out})


@pytest.fixture
def world(backend: Any, start: Any) -> Any:
    """A store in which the subject is everywhere, among others."""
    memory = backend.open(
        policies=[policy("scope_close", {"action": "checkpoint", "target": "trajectory"})], memories=[FACT, STEP]
    )
    full_text = inspect(memory).store.full_text
    if full_text is not None:
        full_text.rebuild(WordIndexer("english"))
    agent = start(memory, f"help {NAME}")
    # Somebody else's: what is recalled there is not of the subject.
    own = memory.start_trajectory("a task of their own", initiator=EntityRef.user("somebody else"))
    memory.complete_trajectory(
        memory.start_trajectory("theirs", initiator=PERSON).trajectory_id, status="success", summary="done"
    )
    agent.own = own
    agent.turns = [
        agent.say(f"I am {NAME}, write to {MAIL.upper()}", idempotency_key=f"{MAIL}:1"),
        agent.say(SECRET, name=NAME),
        agent.say(f"Hello {unicodedata.normalize('NFD', NAME).upper()}!", role="assistant"),
        agent.say("looking", role="assistant", tool_calls=[ToolCall("1", "find", json.dumps({"who": NAME}))]),
        agent.say(f"caf\u00e9 {NAME}".encode("utf-16"), role="tool", tool_call_id="1"),
        agent.say("the towel is blue"),
    ]
    agent.keep(f"# {NAME}\nis president")
    agent.keep("towels are useful")
    agent.about = agent.note(SECRET, entity=NAME, entity_type="person", tags=("head",))
    agent.mention = agent.note(f"the ship was stolen by {NAME}", entity="ship", namespace=f"crew/{MAIL}")
    agent.free = agent.note("towels dry quickly", entity="towel", visible_to=("agent:a", "agent:b"))
    memory.storage.notes.update(agent.free.note_id, content="towels dry slowly")
    agent.changed = agent.note(f"once {NAME} was here", entity="place")
    memory.storage.notes.update(agent.changed.note_id, content="nobody is here")
    agent.facts = _facts(memory, agent)
    agent.with_them = memory.assemble_context(agent.trajectory_id, query=f"who is {NAME}?")
    agent.without = memory.assemble_context(own.trajectory_id, query="towels", max_tokens=4_000)
    memory.search(f"what did {NAME} say")
    memory.close_scope(agent.scope_id)
    memory.get(agent.about.note_id)
    memory.flush()
    return agent


def _facts(memory: Any, agent: Any) -> dict[str, Any]:
    """Write records of declared memories: about the subject, that name it, that are nobody's."""
    catalog = inspect(memory).store.catalog
    fact, step = (catalog.memories[name].relation for name in ("fact", "step"))
    made = {
        "about": record(catalog, "fact", subject=NAME, content=SECRET, kind="claim", about={"mail": [MAIL]}),
        "naming": record(
            catalog,
            "fact",
            subject=f"ship of {NAME}",
            content=f"stolen by {NAME.upper()}",
            kind="rumour",
            about={MAIL: {"who": [NAME]}},
            owner=PERSON.id,
            idempotency_key=f"{MAIL}:2",
            created_by=f"agent:{NAME}@executor",
            fingerprint=hashlib.sha256(NAME.encode()).digest(),
        ),
        "changed": record(catalog, "fact", subject="place", content=f"once {NAME} was here", kind="claim"),
        "task": record(catalog, "fact", subject="towel", kind="claim", trajectory_id=agent.trajectory_id),
        "free": record(catalog, "fact", subject="towel", content="dries quickly", kind="claim"),
    }
    of_them = record(catalog, "step", parent_id=made["about"].record_id, position=1)

    def write(uow: Any) -> None:
        for each in made.values():
            uow.insert(fact, each)
        uow.insert(step, of_them)

    inspect(memory).write(write)
    key = made["changed"].record_id.bytes
    inspect(memory).write(lambda uow: uow.update(fact, dataclasses.replace(uow.get(fact, key), content="nobody")))
    return {**made, "step": of_them}


def test_a_forgotten_subject_is_found_in_no_table_and_no_file(world: Any, backend: Any, tmp_path: Path) -> None:
    # issue 5, Done when: "after forget, a byte search of every file and table finds nothing of the subject"
    memory = world.memory
    wanted = needles()
    assert searched(backend, memory, tmp_path, wanted), "the search must be able to find"
    store = inspect(memory).store
    assert store.full_text is None or store.full_text.state().memories == {64: ("content",)}

    counted = memory.forget(entity=PERSON, texts=TEXTS, dry_run=True)
    assert counted.erased
    assert counted.redacted
    assert memory.storage.notes.get(world.about.note_id).content == SECRET, "a rehearsal changes nothing"

    report = memory.forget(entity=PERSON, texts=TEXTS)

    assert dict(report.erased) == dict(counted.erased)
    assert dict(report.redacted) == dict(counted.redacted)
    assert [place for place in report.searched if place.findings and place.kind != "log"] == []
    assert report.remaining == ()
    assert report.proven
    assert searched(backend, memory, tmp_path, wanted) == []
    assert memory.admin.verify() == [], "full text among it"
    assert {place.kind for place in report.searched} >= {"column", "memory", "file"}
    json.dumps(report.to_dict())
    erasures = list(memory.storage.erasures.all())
    assert [erasure.erasure_id for erasure in erasures] == [report.erasure_id]
    assert erasures[0].finished_at is not None
    assert memory.forget(entity=PERSON, texts=TEXTS, dry_run=True).records == 0, "there is nothing left to do"
    _others_are_as_they_were(world)


def _others_are_as_they_were(world: Any) -> None:
    memory = world.memory
    with pytest.raises(NotFound):
        memory.get(world.about.note_id)
    assert memory.get(world.mention.note_id).content == "the ship was stolen by [forgotten]"
    assert memory.get(world.mention.note_id).namespace == "crew/[forgotten]"
    assert memory.get(world.free.note_id).content == "towels dry slowly"
    assert memory.get(world.turns[5].turn_id) == world.turns[5]
    assert memory.get(world.turns[4].turn_id).content.decode("utf-16") == "caf\u00e9 [forgotten]"
    assert memory.get(world.turns[3].turn_id).tool_calls[0].arguments == '{"who": "[forgotten]"}'
    with pytest.raises(NotFound):
        memory.get(world.turns[1].turn_id)
    for gone in ("about", "step"):
        with pytest.raises(NotFound):
            memory.get(world.facts[gone].record_id)
    naming = memory.get(world.facts["naming"].record_id)
    assert (naming.subject, naming.content, naming.owner) == ("ship of [forgotten]", "stolen by [forgotten]", None)
    assert naming.about == {"[forgotten]": {"who": ["[forgotten]"]}}
    assert (
        naming.content_hash
        == completed(inspect(memory).store.catalog.by_name["memory_fact"], naming, None).content_hash
    )
    assert memory.get(world.facts["free"].record_id) == world.facts["free"]
    assert memory.replay(world.without.window_id).text == world.without.text
    with pytest.raises(NotFound, match="forgotten"):
        memory.replay(world.with_them.window_id)
    assert memory.explain(world.with_them.window_id)["inputs"]["query"] == "who is [forgotten]?"
    assert world.mention.note_id in {hit.id for hit in memory.search("stolen ship", limit=5).hits}
    assert not {hit.id for hit in memory.search("head shy", limit=5).hits} & {world.about.note_id}
    window = memory.assemble_context(world.trajectory_id, query="towels")
    assert memory.replay(window.window_id).text == window.text


def test_what_is_about_an_id_goes_with_it(agent: Any) -> None:
    """Notes keyed by the id of a user are gone after that user is forgotten."""
    person = EntityRef(EntityType.USER, uuid.uuid4())
    about = [agent.note("lives in Lisbon", entity=name, entity_type="user") for name in (str(person.id), person.id.hex)]
    other = agent.note("lives in Porto", entity=str(uuid.uuid4()), entity_type="user")
    report = agent.memory.forget(entity=person)
    assert report.proven
    for note in about:
        with pytest.raises(NotFound):
            agent.memory.get(note.note_id)
    assert agent.memory.get(other.note_id) == other


@pytest.mark.parametrize("written", [
    "Zo&euml;&nbsp;Bront&#235;",
    "Zo\\u00eb\\nBront\\u00eb",
    "<b>Zoë</b><br>Brontë",
    "Zo%25C3%25AB%2520Bront%25C3%25AB",
])  # fmt: skip
def test_a_name_under_escapes_is_forgotten(agent: Any, written: str) -> None:
    said = agent.say(f"a page: {written}")
    call = agent.say("", role="assistant", tool_calls=[ToolCall("1", "find", json.dumps({"page": written}))])
    kept = agent.keep(f"kept {written}")
    report = agent.memory.forget(texts=("Zoë Brontë",), even_if_shared=True)
    assert report.proven
    for record_id in (said.turn_id, call.turn_id, kept.artifact_id):
        changed = repr(agent.memory.get(record_id))
        assert "Bront" not in changed
        assert "[forgotten]" in changed


INVISIBLE = [
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180E, 0x180F, 0x200B, 0x200D, 0x202E, 0x2060, 0x2065, 0x206F,
    0x3164, 0xFE00, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF0, 0x1BCA0, 0x1D173, 0xE0001, 0xE0020, 0xE0100, 0xE01EF,
]  # fmt: skip


def test_a_name_with_what_nobody_sees_in_it_is_forgotten(agent: Any) -> None:
    """Unicode's Default_Ignorable_Code_Point, wherever they stand."""
    said = {}
    for number in INVISIBLE:
        unseen = chr(number)
        for form in (f"Love{unseen}lace", f"{unseen}Lovelace{unseen}", f"L{unseen * 3}ovelac{unseen}e"):
            said[number, form] = agent.say(f"met Ada{unseen} {form} today").turn_id
    assert agent.memory.forget(texts=("Ada Lovelace",), even_if_shared=True).proven
    left = [key for key, turn_id in said.items() if "[forgotten]" not in agent.memory.get(turn_id).text]
    assert left == []
    hidden = agent.say("met Grace Hopper today").turn_id
    assert agent.memory.forget(texts=("Gra\u200bce Hop\u034fper",), even_if_shared=True).proven
    assert "[forgotten]" in agent.memory.get(hidden).text


def test_a_digest_that_begins_as_packed_text_does_is_no_packed_text(agent: Any, backend: Any) -> None:
    """Ids and digests are read as they are: one of 256 begins like a packed record."""
    agent.say("Zebedee Quux was here")
    agent.memory.assemble_context(agent.trajectory_id)
    agent.memory.flush()
    digest = "78" * 32
    value = f"x'{digest}'" if backend.adapter == "sqlite" else f"'\\x{digest}'"
    table = backend.qualified("context_window")
    backend.tamper(agent.memory, f"UPDATE {table} SET config_hash = {value}, text_hash = {value}")
    assert agent.memory.forget(texts=("Zebedee Quux",)).redacted


def test_a_purged_task_takes_what_was_drawn_from_it_alone(world: Any, backend: Any, tmp_path: Path) -> None:
    # issue 5, item 8: purge of a trajectory
    memory = world.memory
    child = memory.start_trajectory("a part", initiator=USER, parent=world.trajectory_id)
    drawn = world.note("drawn from it", source_trajectory_ids=(world.trajectory_id,))
    shared = world.note("drawn from both", source_trajectory_ids=(world.trajectory_id, world.own.trajectory_id))
    report = memory.admin.purge_trajectory(world.trajectory_id)
    assert report.proven, report
    task = world.facts["task"].record_id
    for gone in (world.trajectory_id, world.scope_id, child.trajectory_id, drawn.note_id, world.turns[0].turn_id, task):
        with pytest.raises(NotFound):
            memory.get(gone)
    assert memory.get(shared.note_id).source_trajectory_ids == (world.own.trajectory_id,)
    assert memory.get(world.free.note_id)
    ids = [form for item in (world.trajectory_id, child.trajectory_id)
           for form in (item.bytes.lower(), str(item).encode(), item.hex.encode())]  # fmt: skip
    assert searched(backend, memory, tmp_path, ids) == []
    assert memory.admin.verify() == []
    with pytest.raises(NotFound):
        memory.admin.purge_trajectory(world.trajectory_id)


def test_what_could_be_somebody_else_is_refused(file_backend: Any, start: Any) -> None:
    # issue 5: "ambiguous subjects are refused with a typed error"
    agent = start(file_backend.open())
    memory = agent.memory
    for texts in (("Al",), ("12345",), ("user",), ("  ",), ("forgotten",), ("x" * 201,)):
        with pytest.raises(AmbiguousSubject):
            memory.forget(texts=texts)
    with pytest.raises(RequiredFieldMissing):
        memory.forget()
    agent.note("is near the sun", entity="Mercury", entity_type="planet")
    agent.note("sang", entity="Mercury", entity_type="person")
    with pytest.raises(AmbiguousSubject, match="2 kinds") as refused:
        memory.forget(texts=("Mercury",))
    assert "Mercury" not in str(refused.value)
    for number in range(20):
        agent.note(f"everybody says hello {number}", entity=f"thing {number}")
    with pytest.raises(AmbiguousSubject, match="more than half"):
        memory.forget(texts=("hello",))
    assert memory.storage.notes.count() == 22
    assert memory.forget(texts=("Mercury",), even_if_shared=True).erased["note"] == 2
    with pytest.raises(PermissionDenied):
        memory.acting_as(Principal(PrincipalKind.AGENT, "a")).forget(texts=("Mercury",))


def test_records_that_say_the_same_afterwards_become_one(file_backend: Any, start: Any) -> None:
    agent = start(file_backend.open())
    for name in ("Tricia McMillan", "Trillian"):
        agent.note(f"{name} flies", entity="ship")
        agent.keep(f"{name} flies")
    report = agent.memory.forget(texts=("Tricia McMillan", "Trillian"))
    assert report.proven
    assert [note.content for note in agent.memory.storage.notes.all()] == ["[forgotten] flies"]
    assert [artifact.content for artifact in agent.memory.storage.artifacts.all()] == [b"[forgotten] flies"]
    assert agent.memory.admin.verify() == []


def test_two_forgotten_authors_may_have_used_one_key(agent: Any) -> None:
    # K-131: a key is its author's; two authors without a name are one
    for name in ("Marvin Android", "Agrajag Bowl"):
        theirs = agent.memory.acting_as(Principal(PrincipalKind.HUMAN, name, AgentRole.EXECUTOR))
        common = {"entity": "ship", "entity_type": "thing", "note_type": "fact", "confidence": 1}
        common["visible_to"] = ["executor"]  # one for its author alone would go
        theirs.add_note(content=f"it was heard {name[0]}", idempotency_key="once", **common)
    for name in ("Marvin Android", "Agrajag Bowl"):
        assert agent.memory.forget(texts=(name,)).proven
    keys = {note.idempotency_key for note in agent.memory.storage.notes.all() if note.content.startswith("it was")}
    assert len(keys) == 2
    assert "once" not in keys


def test_a_name_inside_longer_words_is_none(file_backend: Any, start: Any) -> None:
    agent = start(file_backend.open())
    longer = agent.note("Trillians are many, Atrillian too", entity="towel")
    named = agent.note("Trillian's towel; trillian_2", entity="towel")
    report = agent.memory.forget(texts=("Trillian",))
    assert report.proven, report
    assert report.inside_words == 2
    assert agent.memory.get(longer.note_id) == longer
    assert agent.memory.get(named.note_id).content == "[forgotten]'s towel; [forgotten]_2"


@needs("sharing")
def test_other_handles_forget_through_the_feed(agent: Any, backend: Any) -> None:
    # issue 5, item 8: mirrors of other processes
    other = backend.open()
    agent.note("likes tea", entity="Trillian", entity_type="person")
    assert other.search("tea Trillian", consistency="latest").hits
    assert agent.memory.forget(texts=("Trillian",)).proven
    assert not other.search("tea", consistency="latest").hits
    engine = inspect(other).engine
    assert not [value for value in engine.memory.held() if "rillian" in str(value)]
    assert "trillian" not in engine.part(SearchEngine).searcher.keywords.dictionary.terms


_DIE = """
    import json, os, signal, sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from caliber.erasure.erasing import Walk
    from support.inspection import inspect
    from support.configs import config
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    memory = caliber.open(config(sys.argv[1], **json.loads(sys.argv[3])))
    if sys.argv[4] == "transaction":
        Walk._empty = die
    else:
        inspect(memory).store.eraser.scrub = die
    memory.forget(texts=("Trillian",))
"""


def killed(agent: Any, backend: Any, moment: str) -> Any:
    """Let a process forget and be killed at a moment of it; return the note it was to erase."""
    note = agent.note("likes tea", entity="Trillian", entity_type="person")
    agent.memory.flush()
    agent.memory.close()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_DIE), backend.path, TESTS, json.dumps(backend.knobs), moment],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return note


@pytest.mark.soak
def test_who_is_killed_in_the_transaction_has_erased_nothing(file_backend: Any, start: Any) -> None:
    # issue 5, item 8: all or nothing
    note = killed(start(file_backend.open()), file_backend, "transaction")
    with file_backend.open() as memory:
        assert memory.get(note.note_id).content == "likes tea"
        assert not memory.storage.erasures.list_unfinished()


def test_who_is_killed_after_it_is_continued(file_backend: Any, start: Any, tmp_path: Path) -> None:
    # issue 5, item 8: killed in the middle, on reopen it says so and goes on
    continued(start(file_backend.open()), file_backend, tmp_path)


def test_who_is_killed_after_it_is_followed_by_a_job(file_backend: Any, start: Any, tmp_path: Path) -> None:
    # docs/jobs.md: whoever has the store open when the lease of the dead process is over
    killed(start(file_backend.open()), file_backend, "scrub")
    clock = FixedClock(time.time_ns() // 1_000)
    with file_backend.open(clock=clock) as memory:
        assert memory.jobs.run_due() == 0
        clock.advance(ms=6 * 60_000)
        assert memory.jobs.run_due() == 1
        assert memory.storage.erasures.list_unfinished() == []
        assert [job.state for job in memory.jobs.list(kind="erasure.finish")] == ["done"]
        assert searched(file_backend, memory, tmp_path, [b"trillian", b"likes tea"]) == []


@pytest.mark.soak
@needs("reopen")
def test_who_is_killed_after_it_is_continued_everywhere(agent: Any, backend: Any, tmp_path: Path) -> None:
    continued(agent, backend, tmp_path)


def continued(agent: Any, backend: Any, tmp_path: Path) -> None:
    killed(agent, backend, "scrub")
    with backend.open() as memory:
        memory.flush()
        assert any("erasures are not finished" in str(event.payload) for event in memory.storage.events.all())
        (unfinished,) = memory.storage.erasures.list_unfinished()
        assert "rillian" not in repr(unfinished)
        (report,) = memory.admin.resume_forgetting()
        assert not report.remaining
        assert memory.storage.erasures.list_unfinished() == []
        assert [job.state for job in memory.jobs.list(kind="erasure.finish")] == ["running"], "of who died"
        assert searched(backend, memory, tmp_path, [b"trillian", b"likes tea"]) == []


@pytest.mark.soak
def test_a_role_with_few_rights_says_what_it_could_not_do(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue 5, item 8: "as far as rights allow, and say honestly"
    monkeypatch.setenv("TEST_ROLE_SECRET", uuid.uuid4().hex)
    name = f"role_{uuid.uuid4().hex[:12]}"
    settings = config(
        "env:CALIBER_TEST_DSN",
        storage__adapter="postgres",
        storage__schema_name=name,
        storage__login_role=name,
        storage__login_secret="env:TEST_ROLE_SECRET",
    )
    postgres_backend = backend_module("postgres")
    postgres_backend.create_role(settings.storage)
    caliber.create(settings)
    try:
        with caliber.open(settings) as memory:
            memory.add_note(entity="Trillian", entity_type="person", note_type="fact", content="a", confidence=0.5)
            report = memory.forget(texts=("Trillian",))
        assert report.proven, "its own tables it may rewrite, and read by SQL"
        unread = " ".join(report.out_of_reach)
        for what in ("pg_statistic", "CHECKPOINT", "pg_switch_wal", "pg_read_server_files"):
            assert what in unread
        with caliber.open(settings) as memory:
            memory.add_note(entity="Trillian", entity_type="person", note_type="fact", content="a", confidence=0.5)
            report = memory.forget(texts=("Trillian",), scrub_log=True)
        assert not report.proven
        for right in ("CHECKPOINT", "pg_switch_wal()", "pg_ls_waldir()", "pg_read_binary_file(text"):
            assert right in report.remaining[0]
    finally:
        caliber.purge(settings)
        postgres_backend.drop_role(settings.storage)


def test_proving_finds_what_erasing_left(file_backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 10: "A checker is itself tested: planted faults must be caught"
    agent = start(file_backend.open())
    eraser = inspect(agent.memory).store.eraser

    def forgotten(name: str) -> Any:
        agent.note("likes tea", entity=name, entity_type="person", tags=(name,))
        agent.say(f"{name} is here")
        agent.memory.flush()
        return agent.memory.forget(texts=(name,))

    assert forgotten("Slartibartfast").proven
    with monkeypatch.context() as planted:
        planted.setattr(eraser, "scrub", lambda wait_s: [])
        report = forgotten("Deepthought")
        assert not report.proven
        assert {place.kind for place in report.searched if place.findings} == {"file"}
    with replaced(Walk, "walk", lambda self, each, how: each is not TURN and walk(self, each, how)) as walk:
        report = forgotten("Agrajag")
        assert not report.proven
        assert {"relation turn", "table turn"} <= {place.name for place in report.searched if place.findings}
    with monkeypatch.context() as planted:
        planted.setattr(service, "drop_from_memory", lambda engine: None)
        report = forgotten("Wowbagger")
        assert [place.name for place in report.searched if place.findings] == ["resident memory"]
    for name in ("Deepthought", "Agrajag", "Wowbagger"):
        assert agent.memory.forget(texts=(name,)).proven


@needs("reopen")
def test_a_purged_store_leaves_nothing(agent: Any, backend: Any, tmp_path: Path) -> None:
    # issue 5, item 8: purge of a tenant
    settings = backend.config(**({"storage__busy_timeout_ms": 50} if backend.adapter == "sqlite" else {}))
    if backend.adapter == "postgres":
        settings = backend.config(storage__schema_name=f"purged_{uuid.uuid4().hex[:12]}")
        caliber.create(settings)
        with caliber.open(settings) as memory:
            memory.add_note(entity="a", entity_type="b", note_type="fact", content="Trillian", confidence=0.5)
    agent.note("Trillian", entity="a")
    assert caliber.purge(settings, dry_run=True).erased["note"] == 1
    if backend.adapter == "sqlite":
        with pytest.raises(Unavailable, match="open"):
            caliber.purge(settings)
        assert agent.memory.get(agent.note("still here").note_id)
    agent.memory.close()
    report = caliber.purge(settings)
    assert report.proven, report
    with pytest.raises(Unavailable):
        caliber.open(settings)
    if backend.adapter == "sqlite":
        assert not list(tmp_path.iterdir())
    caliber.create(settings)
    with caliber.open(settings) as memory:
        assert memory.storage.notes.count() == 0
    caliber.purge(settings)


def test_a_purged_tenant_is_gone_from_the_directory_too(tmp_path: Path) -> None:
    settings = tenancy_config(tmp_path, embedding_provider=None)
    for name in ("alice", "bob"):
        caliber.create(settings, tenant=name)
        with caliber.open(settings, tenant=name) as memory:
            memory.start_trajectory(f"a task of {name}", initiator=USER)
    assert caliber.purge(settings, tenant="alice", dry_run=True).erased["trajectory"] == 1
    report = caliber.purge(settings, tenant="alice")
    assert report.proven, report
    assert not list(tmp_path.glob("alice*"))
    with pytest.raises(Unavailable, match="dropped"):
        caliber.open(settings, tenant="alice")
    with caliber.open(settings, tenant="bob") as memory:
        assert [each.goal for each in memory.storage.trajectories.all()] == ["a task of bob"]


def test_the_command_line_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command("init")
    command("create")
    (tmp_path / "talk.jsonl").write_text('{"role": "user", "content": "Trillian likes apsw"}\n')
    trajectory = command_json("ingest", "chat", "talk.jsonl")["conversations"][0]["trajectory_id"]
    assert command_json("forget", "Trillian", "--dry-run")["redacted"]["turn"] == 1
    assert "--yes" in command("forget", "Trillian", code=2).stderr
    assert "letters" in command("forget", "Tr", "--yes", code=2).stderr
    (tmp_path / "names").write_text("Trillian\n\n")
    report = command_json("forget", "--texts-from", "names", "--yes", "--scrub-log")
    assert report["proven"]
    assert report["redacted"]["turn"] == 1
    assert "nothing was left" in command("forget", "--resume").stdout
    assert "0 findings" in command("forget", "--entity", f"user:{uuid.uuid4()}", "--yes").stdout
    assert command_json("db", "purge", "--trajectory", trajectory, "--yes")["erased"]["turn"] == 1
    assert "out of reach" in command("db", "purge", "--store", "--yes").stdout
    assert not list(tmp_path.glob("caliber.db*"))
    assert command("db", "purge", code=2)


@needs("reopen")
def test_who_reads_an_older_state_is_waited_for_and_named(backend: Any, start: Any) -> None:
    agent = start(backend.open(storage__busy_timeout_ms=50))
    agent.note("likes tea", entity="Trillian", entity_type="person")
    agent.memory.flush()
    with inspect(agent.memory).store.read() as session:
        session.run(inspect(agent.memory).store.plans["note"].count, ())
        report = agent.memory.forget(texts=("Trillian",), wait_ms=100)
        assert report.remaining, "an older state is being read"
        assert not report.proven
    assert agent.memory.storage.erasures.list_unfinished()
    (finished,) = agent.memory.admin.resume_forgetting()
    assert not finished.remaining
    assert not agent.memory.storage.erasures.list_unfinished()


def test_what_is_kept_of_an_erased_task_goes_with_it(backend: Any) -> None:
    # Only a purge of the task itself took what was kept of records that had gone before it.
    memory = backend.open(backend.config(embedding_provider=None))
    for who, left in ((PERSON, 0), (EntityRef(EntityType.USER, uuid.uuid4()), 1)):
        task = memory.start_trajectory("a task", initiator=who)
        scope = memory.current_scope(task.trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content=SECRET)
        assert memory.storage.turns.delete_by_scope(scope.scope_id) == 1
        assert memory.storage.content_versions.count() == 1
        report = memory.forget(entity=PERSON)
        assert report.proven
        assert report.erased["trajectory"] == 1 - left
        assert memory.storage.content_versions.count() == left


def test_whatever_has_the_id_of_the_subject_goes(agent: Any) -> None:
    # Locks stayed, and checkpoints.
    lock = agent.memory.agents.locks.acquire("a resource", holder="somebody", lease_ms=60_000)
    held = next(iter(agent.memory.storage.locks.all()))
    assert held.token == lock.token
    report = agent.memory.forget(entity=EntityRef(EntityType.USER, held.lock_id))
    assert report.erased == {"lock": 1}
    assert agent.memory.storage.locks.count() == 0


def test_the_proof_reads_kept_versions_unpacked(agent: Any) -> None:
    # Bytes are base64 in them: neither their text nor the files hold the name as it is spelt.
    memory = agent.memory
    turn = agent.say(f"ask {NAME} about it")
    memory.storage.turns.update(turn.turn_id, content="ask nobody")
    memory.flush()
    proof = Proof(Subject(texts=[NAME]), ())
    proof.read(inspect(memory).store, inspect(memory).resident)
    assert {place.name: place.findings for place in proof.places}["relation content_version"] == 1


def test_notes_that_one_user_alone_may_read_go_with_the_user(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    ada, ben = (memory.acting_as(caliber.Principal.user(name)) for name in ("ada", "ben"))
    said = {"entity": "thing", "entity_type": "topic", "note_type": "fact", "confidence": 1.0}
    ada.add_note(content="zebra", **said)
    memory.add_note(content="quagga", user="ada", **said)
    memory.add_note(content="okapi", visible_to=["human:ada", "executor"], **said)
    kept = [
        ben.add_note(content="tapir", **said),
        memory.add_note(content="heron", **said),
        memory.add_note(content="bison", visible_to=["human:ada", "human:ben"], **said),
        memory.add_note(content="otter", visible_to=["executor"], **said),
    ]
    report = memory.forget(user="ada")
    assert report.proven
    assert report.erased["note"] == 3
    left = memory.records("note").find(limit=100)
    assert sorted(note.content for note in left) == sorted(note.content for note in kept)
    assert not [
        note for note in left if "human:ada" in (note.visible_to or ()) or "human:ada" in (note.created_by or "")
    ]


def test_what_belongs_to_a_user_by_another_id_or_task_goes_too(backend: Any) -> None:
    memory = backend.open(embedding_provider=None)
    said = {"entity": "thing", "entity_type": "topic", "note_type": "fact", "confidence": 1.0}
    memory.add_note(content="zebra", user="dodo", **said)
    memory.identities.merge("dodo", "dora")
    host = EntityRef.agent("host")
    task = memory.start_trajectory("travel", user="dora")
    part = memory.start_trajectory("book a boat", initiator=host, parent=task.trajectory_id)
    session = memory.start_session(user="dora")
    during = memory.start_trajectory("find a harbour", initiator=host, session=session.session_id)
    for each in (part, during):
        memory.append_turn(memory.current_scope(each.trajectory_id).scope_id, role="user", content="quagga")
    other = memory.start_trajectory("stay", initiator=host)
    assert memory.forget(user="dora").proven
    assert [each.trajectory_id for each in memory.storage.trajectories.all()] == [other.trajectory_id]
    assert memory.storage.notes.count() == memory.storage.turns.count() == 0
