"""Records of declared memories: inserted, found, changed, archived, deleted; all or nothing, on every database.

Source: C-130 to C-148, C-242; docs/memories.md.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.configs import USER, config
from support.drawn import needs
from support.evidence import examples
from support.inspection import inspect
from support.memories import FACT, STEP
from support.threads import at_once

import caliber
from caliber.embedding.service import Embeddings
from caliber.model import FixedClock, LockMode
from caliber.model.errors import (
    Conflict,
    ConstraintViolation,
    DTypeError,
    InvalidValue,
    LockExpired,
    NotFound,
    RequiredFieldMissing,
)

MAY = datetime(2026, 5, 1, tzinfo=UTC)
DEEP: Any = []
for _ in range(80):
    DEEP = [DEEP]
BOUND = {
    "name": "draft",
    "type": "working",
    "fields": [{"name": "text", "type": "text"}],
    "retention": {"kind": "scope"},
}
VISIT = {**BOUND, "name": "visit", "retention": {"kind": "session"}}
REMARK = {**BOUND, "name": "remark", "retention": {"kind": "persistent"}, "parent": "note"}
ALL = [FACT, STEP, BOUND, VISIT, REMARK]


@pytest.fixture
def kept(backend: Any) -> Any:
    return backend.open(backend.config(memories=ALL))


def test_a_record_is_stored_and_read_as_it_was_said(kept: Any) -> None:  # C-130, C-132
    told: list[Any] = []
    kept.events.subscribe(lambda event: told.append((event.event_type, event.subject_id, event.payload.get("memory"))))
    facts = kept.records("fact")
    made = facts.insert(
        {"subject": "Ada", "kind": "claim", "about": {"a": (1, None, [True]), "é": -0.5}},
        content="wrote the first program",
        score=0.5,
        count=-(2**63) + 1,
        certain=True,
        seen_at=MAY,
        occurred_at=MAY,
    )
    assert isinstance(made, facts.Record)
    assert (made.subject, made.kind, made.score, made.count, made.certain) == ("Ada", "claim", 0.5, -(2**63) + 1, True)
    assert made.about == {"a": [1, None, [True]], "é": -0.5}
    assert (made.seen_at, made.occurred_at, made.version, made.created_by) == (MAY, MAY, 1, "admin:owner@")
    assert made.token_count >= 5
    assert made.fact_id == made.record_id
    assert facts.get(made.record_id) == kept.get(str(made.record_id)) == made
    assert kept.storage.get("fact").get(made.record_id) == made
    changed = facts.update(made.record_id, {"score": None}, content="an algorithm", version=1)
    assert (changed.score, changed.content, changed.subject, changed.version) == (None, "an algorithm", "Ada", 2)
    assert changed.content_hash != made.content_hash
    assert facts.update(made.record_id, content="an algorithm") == changed
    with pytest.raises(Conflict, match="version is 2"):
        facts.update(made.record_id, version=1, score=1.0)
    archived = facts.archive(made.record_id)
    assert archived.archived_at is not None
    assert facts.archive(made.record_id) == archived
    assert facts.find() == []
    assert facts.find(valid=False) == [archived]
    facts.delete(made.record_id)
    for call in (facts.get, facts.archive, facts.delete, facts.update):
        with pytest.raises(NotFound):
            call(made.record_id)
    kept.flush()
    names = ["insert", "update", "archive", "delete"]
    assert [each for each in told if each[2]] == [(f"memory_{name}", made.record_id, "fact") for name in names]  # C-242
    audited = kept.storage.events.list_audit_by_subject(made.record_id)  # M-133, M-134
    assert [(event.payload["action"], event.principal) for event in audited] == [
        (name, "admin:owner") for name in names[1:]
    ]
    written = audited[0].payload["changes"]
    assert written == {"score": [0.5, None], "content": ["wrote the first program", "an algorithm"]}
    assert set(audited[1].payload["changes"]) == {"archived_at"}
    logged = [event for event in kept.storage.events.all() if event.family == "trace"]
    assert [(event.event_type, event.subject_type) for event in logged] == [
        (f"memory_{name}", "memory_fact") for name in names
    ]
    assert kept.admin.verify() == []


def test_all_that_is_wrong_with_a_record_is_said_at_once(kept: Any) -> None:
    facts = kept.records("fact")
    with pytest.raises(InvalidValue) as raised:
        facts.insert(
            kind="gossip", score=math.inf, count=2**63, certain=1, seen_at=MAY.replace(tzinfo=None), sbject="x"
        )
    said = str(raised.value)
    for part in (
        "7 faults",
        "kind: must be one of claim, rumour",
        "score: must be finite",
        "count: must fit 64 bits",
        "certain: expected a bool",
        "seen_at:",
        "sbject: there is no such field; did you mean subject?",
        "subject is required",
    ):
        assert part in said
    assert "gossip" not in said
    base = {"subject": "Ada", "kind": "claim"}
    for fields, error, said in (
        ({"content_embedding": [1.0]}, InvalidValue, "is made of content"),
        ({"version": 3}, InvalidValue, "set by CALIBER"),
        ({"subject": None}, RequiredFieldMissing, "subject is required"),
        ({"subject": 5}, DTypeError, "subject"),
        ({"subject": "x" * 2_001}, InvalidValue, "at most 2000 bytes"),
        ({"subject": "\ud800"}, InvalidValue, "surrogates"),
        ({"about": {1: 2}}, DTypeError, "str keys"),
        ({"about": DEEP}, InvalidValue, "nested deeper than 64"),
        ({"about": [math.nan]}, InvalidValue, "finite"),
        ({"about": "x" * (1 << 20)}, InvalidValue, "as JSON"),
        ({"about": {1, 2}}, DTypeError, "a value of JSON"),
        ({"trajectory_id": "x"}, InvalidValue, "not an id"),
        ({"trust": "friend"}, InvalidValue, "trust: must be one of"),
        ({"parent": uuid.uuid4()}, InvalidValue, "belong to no other record"),
        ({"scope_id": uuid.uuid4(), "scope": uuid.uuid4()}, InvalidValue, "given twice"),
        ({"fact_id": uuid.uuid4(), "id": uuid.uuid4()}, InvalidValue, "given twice"),
        ({"scope": uuid.uuid4()}, NotFound, "scope"),
        ({"guard": "token"}, DTypeError, "LockToken"),
    ):
        options = {name: fields.pop(name) for name in ("parent", "scope", "guard") if name in fields}
        with pytest.raises(error, match=re.escape(said)):
            facts.insert({**base, **fields}, **options)
    with pytest.raises(InvalidValue, match="by keyword"):
        facts.insert(base, subject="Ada")
    with pytest.raises(InvalidValue, match=r"records\[1\].kind.*records\[2\].subject"):
        facts.insert_many([base, {**base, "kind": "x"}, {"kind": "claim"}])
    with pytest.raises(DTypeError):
        facts.insert_many(base)
    for changes, said in (
        ({"fact_id": uuid.uuid4()}, "does not change"),
        ({"scope_id": None}, "cannot be changed"),
        ({"subject": None}, "is required"),
        ({"subjct": "x"}, "did you mean subject"),
    ):
        with pytest.raises((InvalidValue, RequiredFieldMissing), match=said):
            facts.update(uuid.uuid4(), changes)
    assert facts.count(valid=False) == 0


def test_an_id_is_that_of_one_record_of_any_kind(kept: Any, start: Any) -> None:
    facts = kept.records("fact")
    note = kept.add_note(entity="Ada", entity_type="person", note_type="fact", content="a note", confidence=1.0)
    step = kept.records("step").insert(position=1, parent=facts.insert(subject="Bob", kind="claim").record_id)
    inspect(kept).part(Embeddings).embedder.drain()
    for taken in (note.note_id, step.record_id, step.parent_id, start(kept).trajectory_id):
        with pytest.raises(Conflict, match="a record with this id"):
            facts.insert(fact_id=taken, subject="Ada", kind="claim")
    free = uuid.uuid4()
    assert facts.insert(fact_id=free, subject="Ada", kind="claim").record_id == free
    assert kept.get(note.note_id).content == "a note"
    assert kept.admin.verify() == []


def test_numbers_are_those_that_databases_keep(kept: Any) -> None:
    facts = kept.records("fact")
    made = facts.insert(subject="Ada", kind="claim", score=-0.0, about={"x": [-0.0]})
    assert (math.copysign(1, made.score), math.copysign(1, made.about["x"][0])) == (1.0, 1.0)
    assert repr(kept.storage.fact.get(made.record_id)) == repr(made)
    assert kept.admin.verify() == []


def test_a_purged_task_takes_what_its_deleted_records_said(kept: Any, start: Any) -> None:
    facts, agent, other = kept.records("fact"), start(kept), start(kept)
    for each in (agent, other):
        made = facts.insert(subject="Ada", kind="claim", content="gone", trajectory=each.trajectory_id)
        child = kept.records("step").insert(position=1, parent=made.record_id)
        kept.records("step").update(child.record_id, position=2)
        facts.delete(made.record_id)
        kept.append_turn(each.scope_id, role="user", content="gone too")
        kept.storage.turns.delete_by_scope(each.scope_id)
    versions = kept.storage.content_versions
    assert versions.count() == 8
    kept.admin.purge_trajectory(agent.trajectory_id)
    assert versions.count() == 4
    assert {each.trajectory_id for each in versions.list_oldest(limit=9)} == {other.trajectory_id}


def test_several_records_are_stored_all_or_none(kept: Any) -> None:
    facts, steps = kept.records("fact"), kept.records("step")
    rows = [{"subject": f"s{at}", "kind": "claim", "idempotency_key": f"k{at}"} for at in range(5)]
    made = facts.insert_many(rows)
    assert [item.subject for item in made] == [f"s{at}" for at in range(5)]
    assert facts.find() == made
    assert facts.insert_many(rows) == made  # nothing twice
    with pytest.raises(Conflict, match="idempotency key"):
        facts.insert_many([{"subject": "new", "kind": "claim"}, {**rows[0], "kind": "rumour"}])
    assert facts.count() == 5
    assert facts.insert_many([]) == []
    with pytest.raises(NotFound):
        steps.insert_many([{"position": 1, "parent_id": made[0].record_id}, {"position": 2, "parent_id": uuid.uuid4()}])
    assert steps.count() == 0
    own = uuid.uuid4()
    assert facts.insert({"fact_id": own, "subject": "x", "kind": "claim"}).record_id == own
    with pytest.raises(Conflict, match=f"fact {own}: there is a record with this id"):
        facts.insert({"id": own, "subject": "y", "kind": "claim"})
    with pytest.raises(Conflict):
        facts.insert({"fact_id": own, "subject": "y", "kind": "claim"})


def test_records_belong_to_others_and_are_where_those_are(backend: Any, kept: Any, start: Any) -> None:  # C-135
    agent = start(kept)
    facts, steps, remarks = (kept.records(name) for name in ("fact", "step", "remark"))
    fact = facts.insert(subject="Ada", kind="claim", scope=agent.scope_id)
    assert (fact.scope_id, fact.trajectory_id) == (agent.scope_id, agent.trajectory_id)
    step = steps.insert(position=1, parent=fact.record_id)
    assert (step.parent_id, step.scope_id, step.trajectory_id) == (fact.record_id, agent.scope_id, agent.trajectory_id)
    with pytest.raises(RequiredFieldMissing, match="belong to a record of fact"):
        steps.insert(position=2)
    other = start(kept)
    with pytest.raises(InvalidValue, match="trajectory_id: is not that of its parent"):
        steps.insert(position=2, parent=fact.record_id, trajectory=other.trajectory_id)
    with pytest.raises(InvalidValue, match="trajectory_id: is not that of its scope"):
        facts.insert(subject="x", kind="claim", scope=agent.scope_id, trajectory=other.trajectory_id)
    assert steps.find(parent_id=fact.record_id) == [step]
    assert steps.find("position >= 1", scope_id=agent.scope_id) == [step]
    facts.delete(fact.record_id)
    assert steps.count(valid=False) == 0
    hidden = agent.note("a secret", visible_to=["agent:somebody"])
    stranger = kept.acting_as(caliber.Principal("agent", "else"))
    assert remarks.insert(text="mine", parent=hidden.note_id).parent_id == hidden.note_id
    with pytest.raises(NotFound):
        stranger.records("remark").insert(text="guessed", parent=hidden.note_id)


def test_what_lives_as_long_as_a_scope_or_session_needs_one(kept: Any, start: Any) -> None:  # C-139
    agent = start(kept)
    drafts, visits = kept.records("draft"), kept.records("visit")
    with pytest.raises(RequiredFieldMissing, match="live as long as their scope"):
        drafts.insert(text="x", trajectory=agent.trajectory_id)
    made = drafts.insert(text="x", scope=agent.scope_id)
    with pytest.raises(RequiredFieldMissing, match="live as long as their session"):
        visits.insert(text="x", trajectory=agent.trajectory_id)
    session = kept.start_session(initiator=USER)
    task = kept.start_trajectory("in a session", initiator=USER, session=session.session_id)
    visit = visits.insert(text="x", trajectory=task.trajectory_id)
    assert visit.session_id == session.session_id
    kept.close_scope(agent.scope_id)
    with pytest.raises(ConstraintViolation, match="is closed"):
        drafts.insert(text="y", scope=agent.scope_id)
    kept.complete_trajectory(task.trajectory_id, status="success", summary="")
    kept.end_session(session.session_id)
    with pytest.raises(ConstraintViolation, match="has ended"):
        visits.insert(text="y", session=session.session_id)
    assert made.record_id != visit.record_id


def test_writes_take_a_fencing_token(kept: Any) -> None:
    lock = kept.agents.locks.acquire("facts", holder="me", mode=LockMode.EXCLUSIVE)
    token = caliber.model.LockToken(lock.resource, lock.token)
    facts = kept.records("fact")
    made = facts.insert(subject="Ada", kind="claim", guard=token)
    kept.agents.locks.release(token, holder="me")
    for call in (
        lambda: facts.insert(subject="Bo", kind="claim", guard=token),
        lambda: facts.update(made.record_id, subject="Bo", guard=token),
        lambda: facts.archive(made.record_id, guard=token),
        lambda: facts.delete(made.record_id, guard=token),
    ):
        with pytest.raises(LockExpired):
            call()
    assert facts.find() == [made]


def test_of_two_writers_with_one_key_one_writes(backend: Any, kept: Any) -> None:
    facts = kept.records("fact")
    results: list[Any] = []

    def insert(subject: str) -> None:
        try:
            results.append(facts.insert(subject=subject, kind="claim", idempotency_key="once").record_id)
        except Conflict:
            results.append(None)

    at_once([partial(insert, "same" if at % 2 else "other") for at in range(6)])
    assert facts.count() == 1
    written = {item for item in results if item is not None}
    assert len(written) == 1
    assert results.count(None) == 3


def test_filters_over_records(backend: Any) -> None:
    # The database first: a store gets its full text while it is empty.
    for mode in ("backend", "resident") if backend.has("full text") else ("resident",):
        settings_ = backend.config(memories=ALL, search__mode=mode)
        memory = backend.open(settings_)
        facts = memory.records("fact")
        facts.insert_many(
            [
                {"subject": f"{mode}{at}", "kind": "claim" if at % 2 else "rumour", "score": at / 4 or None,
                 "content": "by the sea" if at < 2 else None}
                for at in range(4)
            ]
        )  # fmt: skip
        found = [item.subject for item in facts.find(f'subject ~ "^{mode}" and score >= 0.5', order_by="score")]
        assert found == [f"{mode}2", f"{mode}3"]
        assert [item.score for item in facts.find(f'subject ~ "^{mode}"', order_by="score", descending=True)] == [
            0.75, 0.5, 0.25, None,
        ]  # fmt: skip
        assert facts.count(f'subject ~ "^{mode}" and content contains "sea" and kind = "claim"') == 1
        assert facts.count(kind="rumour", subject=f"{mode}0") == 1
        one = facts.find(subject=f"{mode}0")[0]
        assert facts.get(one.record_id) == facts.find(id=one.record_id)[0] == facts.find(fact_id=str(one.record_id))[0]
        with pytest.raises(InvalidValue, match="kind is compared with one of its values"):
            facts.find('kind = "gossip"')
        with pytest.raises(InvalidValue, match="did you mean subject"):
            facts.find(subjct="x")
        memory.close()


@needs("sharing")
def test_what_others_wrote_is_seen(backend: Any) -> None:
    one, other = (backend.open(backend.config(memories=ALL)) for _ in range(2))
    made = one.records("fact").insert(subject="Ada", kind="claim")
    assert other.search("x", consistency="latest").hits == ()
    assert other.records("fact").find() == [made]
    with pytest.raises(Conflict):
        other.records("fact").update(made.record_id, version=2, score=1.0)


TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x00\ufdd001"), max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.fixed_dictionaries(
    {"subject": TEXT, "kind": st.sampled_from(["claim", "rumour"])},
    optional={
        "content": st.none() | TEXT,
        "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "count": st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
        "certain": st.none() | st.booleans(),
        "seen_at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "about": st.none() | JSON,
        "occurred_at": st.none() | st.datetimes(timezones=st.just(UTC)),
    },
)


def test_any_record_comes_back_as_it_was(backend: Any, kept: Any) -> None:
    facts = kept.records("fact")

    @settings(max_examples=examples(300) if os.environ.get("CALIBER_SOAK") else 12)
    @given(st.lists(RECORDS, min_size=1, max_size=4))
    def any_records(given_records: list[dict[str, Any]]) -> None:
        made = facts.insert_many(given_records)
        for fields, record in zip(given_records, made, strict=True):
            assert {name: getattr(record, name) for name in fields} == fields
            assert facts.get(record.record_id) == kept.storage.get("fact").get(record.record_id) == record
            asked = {name: value for name, value in fields.items() if name not in ("about", "occurred_at")}
            assert record in facts.find(**asked)
            facts.delete(record.record_id)
        assert facts.count(valid=False) == 0

    any_records()
    assert kept.admin.verify() == []


class Machine(RuleBasedStateMachine):
    """Inserts, changes and deletes against a dictionary."""

    @initialize()
    def open(self) -> None:
        self.memory = caliber.open(config(":memory:", memories=[FACT]), clock=FixedClock())
        self.facts = self.memory.records("fact")
        self.model: dict[uuid.UUID, tuple[str, float | None, bool]] = {}
        self.keys: dict[str, uuid.UUID] = {}

    @rule(subject=st.sampled_from("abc"), score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
          key=st.none() | st.sampled_from("xyz"))  # fmt: skip
    def insert(self, subject: str, score: float | None, key: str | None) -> None:
        known = None if key is None else self.keys.get(key)
        try:
            made = self.facts.insert(subject=subject, kind="claim", score=score, idempotency_key=key)
        except Conflict:
            assert known is not None
            assert self.model[known][:2] != (subject, score)
            return
        if known is not None:
            assert made.record_id == known
            return
        self.model[made.record_id] = (subject, score, False)
        if key is not None:
            self.keys[key] = made.record_id

    @rule(at=st.integers(0, 9), subject=st.sampled_from("abc"))
    def change(self, at: int, subject: str) -> None:
        if self.model:
            key = sorted(self.model)[at % len(self.model)]
            self.model[key] = (self.facts.update(key, subject=subject).subject, *self.model[key][1:])

    @rule(at=st.integers(0, 9), whole=st.booleans())
    def end(self, at: int, whole: bool) -> None:
        if not self.model:
            return
        key = sorted(self.model)[at % len(self.model)]
        if whole:
            self.facts.delete(key)
            del self.model[key]
            self.keys = {name: held for name, held in self.keys.items() if held != key}
        else:
            assert self.facts.archive(key).archived_at is not None
            self.model[key] = (*self.model[key][:2], True)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "facts"):
            found = {r.record_id: (r.subject, r.score, r.archived_at is not None) for r in self.facts.find(valid=False)}
            assert found == self.model
            assert self.facts.count() == sum(not gone for _, _, gone in self.model.values())

    def teardown(self) -> None:
        assert self.memory.admin.verify() == []
        self.memory.close()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=examples(200) if os.environ.get("CALIBER_SOAK") else 6, stateful_step_count=20, deadline=None
)
