"""Derived columns: the values that every store has, of one record as of whole columns; what is declared wrongly."""

from __future__ import annotations

import dataclasses
import itertools
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.entities import plain
from hypothesis import given
from hypothesis import strategies as st
from support.memories import AT, FACT, record

from caliber.config.memories import MemoryConfig
from caliber.kernels.tokens.estimators import Estimator, open_estimator
from caliber.model.knowledge import NoteType
from caliber.model.trust import TrustLabel
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.derived import Derived, Sha256, Tokens
from caliber.schema.memory_definitions import definition_of
from caliber.schema.relation import Relation, blob, integer, text
from caliber.schema.relations import ARTIFACT, NOTE, RELATIONS, SCOPE, TRAJECTORY, TURN, TURN_SUMMARY
from caliber.schema.relations.storage import StoredMemory
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.derived import completed, derive_column, derived_value, wrong_hash
from caliber.trajectory.turns import check_turn
from tests.support.declarations import check_declaration

WHEN = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)
TEXTS = ("", "a word", "Zürich – naïve ☃ 日本語 🦊", 'two\nlines, and "quotes" \\ \0', "x" * 1_000)
BYTE_CONTENTS = (*(text.encode() for text in TEXTS), b"\xff\x00raw", "Zoë".encode("utf-16-le"))


def notes() -> list[Any]:
    """Return notes that differ in each column that makes a statement."""
    out = [
        plain(NOTE, entity=f"e{at}", entity_type="t", note_type=NoteType.FACT, content=text)
        for at, text in enumerate(TEXTS)
    ]
    times = itertools.product((None, WHEN), repeat=3)
    readers = (None, (), ("b", "a", "é"))
    for (start, end, when), seen_by in itertools.product(times, readers):
        out.append(
            plain(
                NOTE, entity="é", entity_type="type", note_type=NoteType.FACT, content="said", valid_from=start,
                valid_until=end, occurred_at=when, visible_to=seen_by, created_by="agent:x", namespace="n",
                trust=TrustLabel.USER,
            )
        )  # fmt: skip
    return out


def records(catalog: Catalog) -> list[tuple[Relation, Any]]:
    """Return records of every relation with derived columns; of the memory fact too."""
    out: list[tuple[Relation, Any]] = [(NOTE, note) for note in notes()]
    for raw in BYTE_CONTENTS:
        out += [(ARTIFACT, plain(ARTIFACT, content=raw)), (TURN, plain(TURN, content=raw))]
    for words in TEXTS:
        out += [(TURN_SUMMARY, plain(TURN_SUMMARY, content=words)), (SCOPE, plain(SCOPE, summary=words))]
        out += [(TRAJECTORY, plain(TRAJECTORY, goal=words))]
    out += [(SCOPE, plain(SCOPE, summary=None))]
    fact = catalog.memories["fact"].relation
    said: dict[str, Any] = {"subject": "ß", "kind": "claim"}
    more: dict[str, Any] = {
        "content": TEXTS[2], "score": 0.1, "count": -3, "certain": True, "seen_at": WHEN, "about": {"b": [1, "é"]},
        "owner": uuid.UUID(int=7),
    }  # fmt: skip
    out += [(fact, record(catalog, "fact", **said)), (fact, record(catalog, "fact", **said, **more))]
    out += [(fact, record(catalog, "fact", **said, **{name: value})) for name, value in more.items()]
    out += [(fact, record(catalog, "fact", **said, content=text, certain=False)) for text in TEXTS]
    return out


FROZEN = Path(__file__).parents[1] / "data" / "derived_values.json"
"""Relation and derived values of each record, hashes in hex: made by the program of before relations declared them."""
CALIBRATED = open_estimator("calibrated", bytes_per_token=4.0, vocabulary="o200k_base")
BYTES = open_estimator("bytes", bytes_per_token=3.5, vocabulary=None)


def _catalog() -> Catalog:
    definition = definition_of(MemoryConfig.model_validate(FACT).declared)
    return BUILT_IN.with_memories([StoredMemory(64, "fact", definition, AT, AT)])


CATALOG = _catalog()


@dataclasses.dataclass
class Stored:
    """Records of one relation as columns of driver values."""

    relation: Relation
    records: list[Any]

    @property
    def rows(self) -> int:
        return len(self.records)

    def values(self, name: str) -> list[Any]:
        codec = codec_of(self.relation)
        return [codec.encode(each)[codec.index(name)] for each in self.records]

    def spans(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        raw = [each.encode() if isinstance(each, str) else each or b"" for each in self.values(name)]
        edges = np.cumsum([0, *map(len, raw)])
        return np.frombuffer(b"".join(raw), np.uint8), edges


def _columns(relation: Relation, made: list[Any], estimator: Estimator) -> list[dict[str, Any]]:
    batch, out = Stored(relation, made), [dict[str, Any]() for _ in made]
    for rule in relation.derived or ():
        for place, value in enumerate(derive_column(rule, batch.rows, batch.spans, batch.values, estimator)):
            out[place][rule.column] = value.tobytes() if value.ndim else int(value)
    return out


def _of(relation: Relation, made: Any, estimator: Estimator) -> dict[str, Any]:
    whole = completed(relation, made, estimator)
    return {rule.column: getattr(whole, rule.column) for rule in relation.derived or ()}


@pytest.mark.parametrize("whole", [False, True], ids=["one by one", "columns"])
def test_derived_values_are_those_of_every_store(whole: bool) -> None:
    # design section 3: fingerprints and hashes of stores that are there must still match
    frozen = json.loads(FROZEN.read_text())
    made = [(estimator, *pair) for estimator in (CALIBRATED, BYTES) for pair in records(CATALOG)]
    assert [relation.name for _, relation, _ in made] == [name for name, _ in frozen]
    for (estimator, relation, entity), (_, wanted) in zip(made, frozen, strict=True):
        found = _columns(relation, [entity], estimator)[0] if whole else _of(relation, entity, estimator)
        assert {name: value.hex() if isinstance(value, bytes) else value for name, value in found.items()} == wanted


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
times = st.none() | st.just(AT)
_NOTES = st.builds(
    lambda **said: plain(NOTE, entity_type="t", **said),
    entity=words, note_type=st.sampled_from(NoteType), content=words, valid_from=times, valid_until=times,
    occurred_at=times, namespace=st.none() | words, created_by=st.none() | words,
    visible_to=st.none() | st.lists(words, max_size=3).map(tuple),
)  # fmt: skip
_FACTS = st.builds(
    lambda **said: record(CATALOG, "fact", kind="claim", **said),
    subject=words, content=st.none() | words, score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    certain=st.none() | st.booleans(), seen_at=times, about=st.none() | st.dictionaries(words, st.integers()),
)  # fmt: skip
_KINDS: list[tuple[Relation, Any]] = [
    (NOTE, _NOTES),
    (CATALOG.by_name["memory_fact"], _FACTS),
    (TURN, st.builds(lambda content: plain(TURN, content=content), st.binary(max_size=40))),
    (ARTIFACT, st.builds(lambda content: plain(ARTIFACT, content=content), st.binary(max_size=40))),
    (TRAJECTORY, st.builds(lambda goal: plain(TRAJECTORY, goal=goal), words)),
]


@given(data=st.data(), kind=st.sampled_from(_KINDS), estimator=st.sampled_from([CALIBRATED, BYTES]))
def test_one_record_is_derived_as_columns_are(data: Any, kind: tuple[Relation, Any], estimator: Estimator) -> None:
    relation, strategy = kind
    made = data.draw(st.lists(strategy, max_size=4))
    assert _columns(relation, made, estimator) == [_of(relation, each, estimator) for each in made]


def test_only_what_follows_from_a_change_is_made_anew() -> None:
    turn = plain(TURN, content=b"some words", token_count=99)  # as its writer counted
    assert completed(TURN, turn, BYTES, {"name"}) == turn
    assert completed(TURN, turn, BYTES, {"content"}).token_count == 3
    kept = plain(TRAJECTORY, goal=None, goal_hash=b"h" * 32)  # of a goal whose text is not kept
    assert completed(TRAJECTORY, kept, BYTES) == kept
    assert _wrong(TRAJECTORY, kept) is None
    assert derived_value(TRAJECTORY, "goal_hash", None, goal=None) is None


@pytest.mark.parametrize("estimator", [CALIBRATED, BYTES])
def test_a_new_turn_is_counted_as_its_relation_declares(estimator: Estimator) -> None:
    for raw in BYTE_CONTENTS:
        turn = check_turn(estimator, lambda role, name: TrustLabel.USER, role="user", content=raw)
        assert turn.token_count == derived_value(TURN, "token_count", estimator, content=raw)


def _wrong(relation: Relation, entity: Any) -> str | None:
    codec = codec_of(relation)
    rule = wrong_hash(relation, dict(zip(codec.names, codec.encode(entity), strict=True)))
    return None if rule is None else rule.column


@pytest.mark.parametrize("column", ["content_hash", "fingerprint"])
def test_a_hash_of_something_else_is_found(column: str) -> None:  # C-041
    note = completed(NOTE, plain(NOTE, content="said"), BYTES)
    assert _wrong(NOTE, note) is None
    assert _wrong(NOTE, dataclasses.replace(note, **{column: bytes(32)})) == column


def _declared(rule: Derived) -> Relation:
    columns = (integer("number"), text("words"), blob("hash", length=32))
    none: dict[str, Any] = {"erase": None, "links": None, "trust": None, "exported": None}
    return Relation("planted", "planted", object, columns, ("number",), 63, "Planted.", derived=(rule,), **none)


@pytest.mark.parametrize("rule", [Sha256("hash", ("word",)), Sha256("number", ("words",)), Tokens("hash", ("words",))])
def test_a_rule_that_cannot_be_is_refused(rule: Derived) -> None:
    with pytest.raises(AssertionError, match=f"column {rule.column if rule.of == ('words',) else 'word'} is"):
        check_declaration(_declared(rule))


def test_every_relation_states_its_derived_columns() -> None:
    with pytest.raises(TypeError, match="derived"):
        Relation("planted", "planted", object, (integer("number"),), ("number",), 63, "Planted.")  # type: ignore[call-arg]
    hashes = {
        (relation.name, column.name)
        for relation, column in itertools.chain.from_iterable(
            ((relation, column) for column in relation.columns) for relation in RELATIONS
        )
        if column.name in ("token_count", "summary_tokens", "content_hash", "goal_hash", "fingerprint")
    }
    derived = {(relation.name, rule.column) for relation in RELATIONS for rule in relation.derived or ()}
    # Those two are of a text that is made of another record.
    assert hashes - derived == {("embedding", "content_hash"), ("embedding_cache", "content_hash")}
