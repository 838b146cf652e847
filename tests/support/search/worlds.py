"""Stores of every shape, questions to them, and settings of search, for Hypothesis to choose from."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from support.configs import AGENT
from support.inspection import inspect

from caliber.model import Edge, EdgeRelation, EntityRef, EntityType
from caliber.model.errors import Conflict, ConstraintViolation, InvalidValue, NotFound
from caliber.model.knowledge import Usage
from caliber.model.time import from_us

NOW_US = 1_700_000_000_000_000
"""14 November 2023."""

_VOCABULARY = """
    lake lakes boat boating happy happiness backup backups moved host the a of is not who what backup_host BackupHost
    jobs/backup.py HTTPServer2 user's l'homme C++ e-mail 3,000 2023 Friday yesterday café Straße Ines Omar Weber naïve
    x 7 don't well-known v2.1 東京 我们 Привет \ufb01nal Will IT ١٢ 12 İzmir izmir
"""
_WORDS = st.sampled_from(("lake", "lakes", "boat", "backups", "happy", "the")) | st.sampled_from(_VOCABULARY.split())
_SAYINGS = st.sampled_from(
    [
        "we moved the backup host to Oslo last Friday",
        "who moved the backups?",
        "lake lake lake lake lake lake lake lake lake lake lake boat",
        "the lake boat was cold " * 12,
        "to be or not to be",
        "I was on the lake yesterday",
        "the boat comes on Friday, or next week",
        "on 8 May Omar moved",
        "the host was moved two weeks ago",
    ]
)
_VALUES = st.sampled_from(["the boat host is in Oslo", "the boat host is in Rome now", "the boat host is in Kiel now"])
TEXTS = st.lists(_WORDS, min_size=1, max_size=9).map(" ".join) | _SAYINGS | _VALUES
ENTITIES = ("Ines", "Ines Weber", "the lake", "Omar", "backup_host", "Weber", "who")
SPEAKERS = (None, "Ines", "Omar", "Ines Weber")
READERS = (None, ["agent:reader"], ["agent:nobody"], ["executor"])

_DAYS = st.integers(-700, 40).map(lambda days: from_us(NOW_US) + timedelta(days=days, hours=days % 24))
_DATED = st.sampled_from(
    [datetime(2023, 5, 8, 12, tzinfo=UTC), datetime(2023, 3, 8, tzinfo=UTC), datetime(2023, 11, 13, 23, tzinfo=UTC)]
    # Close to the days that questions name, before and after them.
    + [datetime(2023, month, day, 5, tzinfo=UTC) for month, day in ((4, 28), (5, 6), (5, 11), (6, 4), (11, 2))]
)
INSTANTS = _DAYS | _DATED
_SOME = st.integers(0, 1_000)

_NOTE = st.tuples(
    st.just("note"),
    st.fixed_dictionaries(
        {
            "content": TEXTS,
            "entity": st.sampled_from(ENTITIES),
            "note_type": st.sampled_from(["fact", "gotcha"]),
            "importance": st.none() | st.integers(1, 10),
            "occurred_at": st.none() | INSTANTS,
            "valid_from": st.none() | INSTANTS,
            "visible_to": st.sampled_from(READERS),
            "namespace": st.sampled_from([None, "work"]),
        }
    ),
    st.none() | st.integers(0, 500) | _DATED,
)
_TURN = st.tuples(
    st.just("turn"),
    st.fixed_dictionaries(
        {
            "content": TEXTS | TEXTS.map(lambda text: text + "?") | st.sampled_from(["", b"\xff lake \x00 boat", "?"]),
            "name": st.sampled_from(SPEAKERS),
            "role": st.sampled_from(["user", "assistant"]),
            "occurred_at": st.none() | INSTANTS,
        }
    ),
)
_ARTIFACT = st.tuples(
    st.just("artifact"),
    st.fixed_dictionaries(
        {
            "content": TEXTS,
            "artifact_type": st.sampled_from(["fact", "code_patch"]),
            "ttl": st.sampled_from([None, 60_000, "scope"]),
            "occurred_at": st.none() | INSTANTS,
        }
    ),
)
_CHANGE = st.one_of(
    st.tuples(st.just("scope"), TEXTS),
    st.tuples(st.just("edge"), _SOME, _SOME, st.floats(0, 1, width=32)),
    st.tuples(st.just("unlink"), _SOME),
    st.tuples(st.just("update"), _SOME, TEXTS),
    st.tuples(st.just("revise"), _SOME, TEXTS),
    st.tuples(st.just("delete"), _SOME),
    st.tuples(st.just("archive"), _SOME),
    st.tuples(st.just("supersede"), _SOME, _SOME),
    st.tuples(st.just("use"), _SOME, st.integers(0, 90)),
    st.tuples(st.just("look"), st.sampled_from(["lake", "back*", "Ines in May", ""])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("advance"), st.integers(1, 120_000)),
)
_STEPS = st.one_of(_NOTE, _NOTE, _TURN, _TURN, _ARTIFACT, _CHANGE)
STORES = st.lists(_STEPS, min_size=14, max_size=32)

_QUERIES = st.lists(_WORDS, min_size=1, max_size=6).map(" ".join) | st.sampled_from(
    [
        "who moved the backups last week?", "Who saw The Who, or was it Will from IT?",
        "when did Ines Weber go boating in May 2023", '"lake boat" C++ happine*', "what is Omar's backup_host",
        "la* back* 2* x*", "in May 2023", "on 8 May what did Ines say", "to be or not to be", "which is the boat host?",
        "is the host in Oslo?", "", "  ", "???", "“the lake” „boat“ jobs/backup.py",
        "which day was it yesterday, the Ines Weber lake or Weber's?",
    ]
)  # fmt: skip
_DATED_QUERIES = st.tuples(
    st.sampled_from(["lake boat", "the backups", "who was happy", ""]),
    st.sampled_from(
        ["in May 2023", "on 8 May", "last week", "in 2023", "since March", "yesterday", "two weeks ago?", "on 8 May?"]
    ),
).map(" ".join)
QUERIES = st.one_of(_QUERIES, _QUERIES, _DATED_QUERIES)

_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "entity": st.sampled_from(ENTITIES) | st.just(["Ines", "Omar"]),
    "note_type": st.sampled_from(["fact", "gotcha", []]),
    "role": st.sampled_from(["user", ["user", "assistant"]]),
    "name": st.sampled_from(["Ines", "Omar"]),
    "importance": st.integers(1, 10) | st.just([1, 2, 3, 4, 5]),
    "artifact_type": st.just("fact"),
    "namespace": st.just("work"),
}
_FILTERS = st.sampled_from(sorted(_COLUMNS)).flatmap(lambda name: st.fixed_dictionaries({name: _COLUMNS[name]}))
FILTERS = st.one_of(st.none(), st.none(), st.none(), _FILTERS)
KINDS = st.one_of(
    st.none(), st.none(), st.lists(st.sampled_from(["note", "artifact", "turn", "scope"]), min_size=1, max_size=4)
)

SPACES = tuple(f"hash-1:test@12{metric}" for metric in ("", "+l2", "+inner_product"))
"""Embedding spaces of the stores, by each metric."""

_SHARE = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]) | st.floats(0, 1)


@st.composite
def _weights(draw: st.DrawFn) -> dict[str, float]:
    parts = [draw(st.integers(0, 5)) for _ in range(4)]
    total = sum(parts) or 1
    parts = parts if sum(parts) else [0, 1, 0, 0]
    return dict(zip(("vector", "keyword", "graph", "importance"), [part / total for part in parts], strict=True))


KNOBS = st.fixed_dictionaries(
    {
        "candidate_factor": st.integers(1, 4),
        "vector_candidates": st.integers(1, 8) | st.just(50),
        "min_similarity": st.sampled_from([-1.0, 0.0, 0.1, 0.5]),
        "normalisation": st.sampled_from(["peak", "saturation"]),
        "fusion": st.sampled_from(["weighted", "rrf"]),
        "diversity": st.sampled_from([0.0, 0.0, 0.3, 0.9, 1.0]),
        "floor": st.fixed_dictionaries(
            {"words": st.sampled_from([0.0, 0.1, 0.35, 0.6, 1.0]),
             "similarity": st.sampled_from([{}, *(dict.fromkeys(SPACES, least) for least in (-1, 0.1, 0.6))])},
        ),
        "weights": _weights(),
        "keyword": st.fixed_dictionaries(
            {"k1": st.sampled_from([0.0, 0.9, 1.2]), "b": _SHARE, "saturate": st.sampled_from([0.0, 1.0, 0.3]),
             "neighbour_boost": st.sampled_from([0.0, 0.4]),
             "language": st.sampled_from(["english", "english", "english", "german", "none", "porter"])},
        ),
        "boosts": st.fixed_dictionaries(
            {"mentioned": _SHARE, "date": _SHARE, "date_slack_ms": st.sampled_from([86_400_000, 14 * 86_400_000]),
             "time": _SHARE, "exact": _SHARE, "question": st.sampled_from([0.0, -0.07, -1.0]), "recency": _SHARE,
             "recency_half_life_ms": st.sampled_from([3_600_000, 30 * 86_400_000])},
        ),
        "graph": st.fixed_dictionaries({"conversation": st.booleans()}),
    }
)  # fmt: skip


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return settings with some of them changed, sections inside sections."""
    out = dict(base)
    for name, value in changes.items():
        out[name] = merged(base[name], value) if isinstance(base.get(name), dict) else value
    return out


class Builder:
    """Carries out steps on a store; a step that the store refuses is left out."""

    def __init__(self, memory: Any, clock: Any) -> None:
        self.memory, self.clock = memory, clock
        self.trajectory = memory.start_trajectory("build", initiator=AGENT)
        self.records: list[tuple[str, uuid.UUID]] = []
        self.edges: list[uuid.UUID] = []

    def build(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *options in steps:
            try:
                getattr(self, f"_{name}")(*options)
            except (Conflict, NotFound, InvalidValue, ConstraintViolation):
                continue

    def _scope_id(self) -> uuid.UUID:
        scope = self.memory.current_scope(self.trajectory.trajectory_id)
        scope = scope or self.memory.open_scope(self.trajectory.trajectory_id)
        return scope.scope_id

    def _note(self, values: dict[str, Any], until: int | datetime | None) -> None:
        if isinstance(until, datetime):
            values = {**values, "valid_until": until}
        elif values["valid_from"] is not None and until is not None:
            values = {**values, "valid_until": values["valid_from"] + timedelta(days=until)}
        note = self.memory.add_note(entity_type="topic", confidence=0.9, **values)
        self.records.append(("notes", note.note_id))

    def _turn(self, values: dict[str, Any]) -> None:
        turn = self.memory.append_turn(self._scope_id(), **values)
        self.records.append(("turns", turn.turn_id))

    def _artifact(self, values: dict[str, Any]) -> None:
        artifact = self.memory.create_artifact(self._scope_id(), extraction_method="explicit", **values)
        self.records.append(("artifacts", artifact.artifact_id))

    def _scope(self, summary: str) -> None:
        scope_id = self._scope_id()
        self.memory.close_scope(scope_id)
        self.memory.storage.scopes.update(scope_id, summary=summary, summary_tokens=3)
        self.records.append(("scopes", scope_id))

    def _at(self, place: int) -> tuple[str, uuid.UUID]:
        return self.records[place % len(self.records)] if self.records else ("notes", uuid.UUID(int=0))

    def _edge(self, one: int, other: int, weight: float) -> None:
        kinds = {"notes": "note", "turns": "turn", "artifacts": "artifact", "scopes": "scope"}
        ends = [EntityRef(EntityType(kinds[table]), id_) for table, id_ in (self._at(one), self._at(other))]
        if ends[0].id != ends[1].id:
            edge = Edge(uuid.uuid4(), *ends, EdgeRelation.SUPPORTS, weight, weight, from_us(NOW_US))
            self.memory.storage.edges.insert(edge)
            self.edges.append(edge.edge_id)

    def _unlink(self, place: int) -> None:
        if self.edges:
            edge_id = self.edges[place % len(self.edges)]
            if place % 2:
                self.memory.storage.edges.update(edge_id, removed_at=from_us(NOW_US))
            else:
                self.memory.storage.edges.delete(edge_id)

    def _update(self, place: int, text: str) -> None:
        table, id_ = self._at(place)
        if table in ("notes", "turns", "artifacts"):
            content: Any = text if table == "notes" else text.encode()
            getattr(self.memory.storage, table).update(id_, content=content)

    def _revise(self, place: int, text: str) -> None:
        """Change a turn that search has seen beside others already."""
        turns = [id_ for table, id_ in self.records if table == "turns"]
        if turns:
            self.memory.search("lake")
            self.memory.storage.turns.update(turns[place % len(turns)], content=text.encode())

    def _delete(self, place: int) -> None:
        table, id_ = self._at(place)
        if table != "scopes" and getattr(self.memory.storage, table).delete(id_):
            # Equal notes are one: it may stand here more than once.
            self.records = [record for record in self.records if record != (table, id_)]

    def _archive(self, place: int) -> None:
        table, id_ = self._at(place)
        if table == "notes":
            self.memory.storage.notes.update(id_, archived_at=from_us(self.clock.now_us()))

    def _supersede(self, one: int, other: int) -> None:
        (table, id_), (other_table, other_id) = self._at(one), self._at(other)
        if table == other_table and table in ("notes", "artifacts") and id_ != other_id:
            getattr(self.memory.storage, table).update(id_, superseded_by=other_id)

    def _use(self, place: int, days: int) -> None:
        table, id_ = self._at(place)
        kind = {"notes": "note", "turns": "turn", "artifacts": "artifact", "scopes": "scope"}[table]
        at = from_us(self.clock.now_us() - days * 86_400_000_000)
        self.memory.storage.usages.insert(Usage(EntityType(kind), id_, 1, at))

    def _look(self, query: str) -> None:
        self.memory.search(query)

    def _compact(self) -> None:
        inspect(self.memory).resident.compact()

    def _advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)
