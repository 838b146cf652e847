"""Reasons for every record of a store, against a twin written from docs/windows.md: nothing is decided twice or never.

The twin knows what the test itself wrote, and the rules as the page states them: whose tasks a window recalls, which
labels, what a query is needed for, what ended. ``make soak`` assembles 10,000 windows.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from support.context.limits import set_limits

import caliber
from caliber.model import EntityRef, EntityType, FixedClock
from caliber.model.context import AssemblyAction
from caliber.model.time import from_us

SOAK = bool(os.environ.get("CALIBER_SOAK"))
STORES, WINDOWS = (400, 25) if SOAK else (6, 12)
LOOKED_AT = 12
"""Records that are asked about for each window."""
SEED = int(os.environ.get("CALIBER_SEED", "1"))
SYSTEM, AGENT = EntityRef(EntityType.SYSTEM, uuid.UUID(int=8)), EntityRef.agent("helper")
LABELS = ("system", "user", "tool", "web")  # docs/trust.md: the most trusted first
APPLICATION = caliber.Principal.application()
OWNERS = ("maria", "bo", "system", "agent")
WORDS = "amber birch cedar delta ember fjord grove heath inlet jetty knoll larch".split()  # noqa: SIM905
OF_SEARCH = {"not_found", "relevance_limit"}


@dataclass
class Task:
    """A task as the test started it."""

    id: uuid.UUID
    owner: str
    session: uuid.UUID | None


@dataclass
class Written:
    """A record as the test wrote it."""

    id: uuid.UUID
    kind: str
    task: Task | None
    trust: str
    at: datetime
    ended: datetime | None = None


class Store:
    """A store, and a journal of everything in it."""

    def __init__(self, backend: Any, rng: random.Random) -> None:
        self.rng = rng
        self.clock = FixedClock()
        self.rules = {
            "recall.from": rng.choice(("trajectory", "session", "owner", "tenant")),
            "recall.trust": rng.choice(("user", "tool", "web")),
            "recall.limit": rng.choice((0, 2, 400)),
            "assembly.notes_without_query": rng.choice((0, 2, 50)),
        }
        knobs = {name.replace(".", "__"): value for name, value in self.rules.items()}
        self.memory = backend.open(
            clock=self.clock, summaries__turns="off", embedding_provider=None, principal=APPLICATION, **knobs
        )
        self.tasks = [self.start(owner) for owner in OWNERS for _ in range(2)]
        self.records: list[Written] = []

    def start(self, owner: str) -> Task:
        session = None
        who: dict[str, Any] = {"user": owner}
        if owner in ("system", "agent"):
            who = {"initiator": SYSTEM if owner == "system" else AGENT}
        elif self.rng.random() < 0.5:
            session = self.memory.start_session(initiator=EntityRef.user(owner)).session_id
        made = self.memory.start_trajectory(f"task of {owner}", session=session, **who)
        return Task(made.trajectory_id, owner, session)

    def text(self, most: int) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, most)))

    def write(self) -> None:
        """Write one record, or end a note."""
        rng, memory = self.rng, self.memory
        self.clock.advance(ms=1_000)
        now, kind, trust = from_us(self.clock.now_us()), rng.random(), rng.choice(LABELS[1:])
        task = rng.choice(self.tasks)
        scope = memory.current_scope(task.id)
        notes = [record for record in self.records if record.kind == "note" and record.ended is None]
        if kind < 0.6:
            made = memory.append_turn(scope.scope_id, role="user", content=self.text(12), trust=trust)
            self.records.append(Written(made.turn_id, "turn", task, trust, now))
        elif kind < 0.75:
            made = memory.create_artifact(
                scope.scope_id,
                artifact_type="fact",
                content=f"{self.text(12)} {len(self.records)}",
                extraction_method="explicit",
                trust=trust,
            )
            self.records.append(Written(made.artifact_id, "artifact", task, trust, now))
        elif kind < 0.92 or not notes:
            made = memory.add_note(
                entity=rng.choice(WORDS),
                entity_type="thing",
                note_type="fact",
                content=f"{self.text(12)} {len(self.records)}",
                confidence=0.9,
            )
            self.records.append(Written(made.note_id, "note", None, "tool", now))
        else:
            note = rng.choice(notes)
            memory.end_note(note.id)
            note.ended = now


def reaches(store: Store, here: Task, there: Task) -> bool:
    """docs/windows.md, Owners: the table, and shared tasks."""
    reach = store.rules["recall.from"]
    if here is there or reach == "tenant":
        return True
    if reach == "trajectory":
        return False
    if there.owner == "system":
        return True
    if reach == "session":
        return here.session is not None and here.session == there.session
    return here.owner == there.owner


def visible(here: Task, record: Written) -> bool:
    """Return whether whoever may see a window of a task may see a record: docs/windows.md, Owners."""
    return record.task is None or record.task.owner in ("system", "agent", here.owner)


def twin(store: Store, here: Task, query: str, at: datetime, record: Written) -> tuple[str, set[str]]:
    """Return the verdict about a record that was no candidate, and the filters that may be to blame."""
    if not visible(here, record):
        return "unknown", set()
    if record.at > at:
        return "filtered", {"created_later"}
    if record.ended is not None and record.ended <= at:
        return "filtered", {"expired"}
    recalls = bool(query) and store.rules["recall.limit"] != 0
    if record.kind == "note":
        return ("cut_off", OF_SEARCH) if query else ("cut_off", {"newest"})
    assert record.task is not None
    if record.task is here and not recalls:
        # The conversation, and the task's artifacts, enter without a query: only their limits keep one out.
        if record.kind == "artifact":
            return "cut_off", {"relevance_limit" if query else "newest"}
        return "*", {"newest", "too_long_ago"}
    if not recalls:
        return "filtered", {"other_trajectory"}
    if record.task is here:
        return "*", {"newest", *OF_SEARCH}
    if not reaches(store, here, record.task) or LABELS.index(record.trust) > LABELS.index(store.rules["recall.trust"]):
        return "filtered", {"out_of_reach"}
    return "cut_off", OF_SEARCH


@pytest.mark.parametrize("number", range(STORES))
def test_every_record_has_one_true_reason(number: int, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED * 104_729 + number)
    set_limits(monkeypatch, max_turns=rng.choice((4, 400)), artifact_limit=rng.choice((1, 100)))
    store = Store(backend, rng)
    memory, seen = store.memory, Counter[str]()
    for _ in range(rng.randint(5, 60)):
        store.write()
    for _ in range(WINDOWS):
        here = rng.choice(store.tasks)
        query = rng.choice(("", store.text(3)))
        budget = rng.choice((150, 400, 2_000))
        window = memory.assemble_context(here.id, query=query, max_tokens=budget)
        at = from_us(store.clock.now_us())
        trace = window.assembly_trace
        # Exactly one final decision for each candidate: no rank twice, no record twice in one section, none undecided.
        assert [decision.rank for decision in trace] == list(range(len(trace)))
        named = Counter((item.section, item.target_id) for item in trace if item.target_id is not None)
        assert max(named.values(), default=1) == 1, named.most_common(1)
        inside = {item.target_id for item in trace if item.action is not AssemblyAction.EXCLUDE}
        entered = Counter(item.target_id for item in trace if item.action is not AssemblyAction.EXCLUDE)
        assert all(count == 1 for key, count in entered.items() if key is not None)
        considered = {item.target_id: item for item in trace}
        shown = {source.id for section in window.sections for source in section.sources}
        assert shown == inside
        for _ in range(rng.randint(0, 2)):
            store.write()
        user = here.owner if here.owner in ("maria", "bo") else None
        for record in rng.sample(store.records, min(LOOKED_AT, len(store.records))):
            said = memory.explain(window.window_id, exclusion=record.id, user=user)
            seen[said["verdict"]] += 1
            told = (number, store.rules, query, record, said)
            if record.id in considered:
                assert said["verdict"] == ("included" if record.id in inside else "excluded"), told
                assert said["rule_id"] in {item.rule_id for item in trace if item.target_id == record.id}, told
                reasons = {item.reason for item in trace if item.target_id == record.id}
                assert said["reason"] in reasons, told
                continue
            verdict, filters = twin(store, here, query, at, record)
            assert verdict in ("*", said["verdict"]), (verdict, told)
            assert said.get("filter") in (filters or {None}), (filters, told)
    assert seen["included"]
