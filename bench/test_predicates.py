"""A compiled filter asked of 100k notes, against its meaning asked record by record (goal: 20 times faster).

Numba's row is a loop written for exactly this filter. It stands beside NumPy's to show whether one would pay
(docs/decisions/0147).
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from harness.contest import ASIDE, CPU, OURS, PEER, Contender
from harness.report import amount

from caliber.dsl.filters import compile_filter
from caliber.kernels.patterns import matches
from caliber.model.knowledge import Note, NoteType
from caliber.model.time import to_us
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.predicates import mask
from caliber.resident.tables import Layout
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import Predicate, Variable, holds
from caliber.schema.relations import NOTE
from caliber.storage.compile.codec import codec_of

numba = pytest.importorskip("numba", reason="the extra jit is not installed")

SEED = int(os.environ.get("CALIBER_SEED", "1"))
ROWS, QUICK_ROWS, GOAL = 100_000, 10_000, 20
NOW = datetime(2026, 3, 1, tzinfo=UTC)
VARIABLES: dict[Variable, Any] = {
    Variable.NOW: NOW,
    Variable.TRAJECTORY: uuid.UUID(int=1),
    Variable.SCOPE: None,
    Variable.AGENT: None,
}
COLUMNS = (
    'confidence > 0.5 and valid_until > now() and created_at > "2026-01-01T00:00:00Z" and token_count < 80'
    ' and note_type != "preference"'
)
CODES = COLUMNS + ' and (entity ~ "^team [1-4]" or entity contains "7")'
TEXTS = CODES + ' and tags contains "ops" and content contains "99"'


class Notes:
    """Notes in memory, and the same as plain records."""

    def __init__(self, rows: int) -> None:
        chance = random.Random(SEED)
        encode, generation = codec_of(NOTE).encode, Generation(Layout(NOTE), 1 << 17)
        notes = [self._note(chance, number) for number in range(rows)]
        generation.load([encode(note, at) for at, note in enumerate(notes, start=1)])
        self.snapshot = RelationSnapshot(generation)
        self.records = [{column.name: getattr(note, column.name) for column in NOTE.columns} for note in notes]

    @staticmethod
    def _note(chance: random.Random, number: int) -> Note:
        written = NOW - timedelta(minutes=chance.randrange(200_000))
        return Note(
            note_id=uuid.UUID(int=number), entity=f"team {number % 97}", entity_type="team",
            note_type=chance.choice(list(NoteType)), content=f"what was noted as number {number}",
            content_hash=bytes(32), fingerprint=bytes(32), confidence=chance.random(),
            token_count=chance.randrange(100), created_at=written, updated_at=written,
            valid_until=written + timedelta(days=chance.randrange(300)) if chance.random() < 0.2 else None,
            tags=tuple(chance.sample(["ops", "web", "data"], chance.randrange(3))), version=1,
        )  # fmt: skip

    @property
    def size(self) -> str:
        return f"{amount(len(self.records))} notes"

    def texts(self, snapshot: RelationSnapshot, numbers: Any) -> list[Any]:
        return [snapshot.text(number) for number in numbers]


@pytest.fixture(scope="module")
def notes(quick: bool) -> Notes:
    return Notes(QUICK_ROWS if quick else ROWS)


def contenders(notes: Notes, predicate: Predicate, goal: float | None) -> list[Contender]:
    def ours() -> Any:
        return mask(predicate, notes.snapshot, VARIABLES, notes.texts)

    def plain() -> list[bool]:
        return [holds(predicate, record, VARIABLES, matches) for record in notes.records]

    found = ours()
    assert found.tolist() == plain()
    assert 0 < np.count_nonzero(found) < len(notes.records)
    return [
        Contender(OURS, f"NumPy {np.__version__}", ours, goal=goal),
        Contender(PEER, "plain Python, record by record", plain),
    ]


@numba.njit  # type: ignore[untyped-decorator]
def _fused(live: Any, sure: Any, until: Any, created: Any, tokens: Any, kinds: Any, bounds: Any, out: Any) -> Any:
    for row in range(live.shape[0]):
        out[row] = (
            live[row] & (sure[row] > 0.5) & (until[row] > bounds[0]) & (created[row] > bounds[1])
            & (tokens[row] < bounds[2]) & (kinds[row] != bounds[3])
        )  # fmt: skip


def test_filter_over_columns(contest: Callable[..., None], notes: Notes) -> None:
    snapshot = notes.snapshot
    columns = [
        snapshot.column(name) for name in ("confidence", "valid_until", "created_at", "token_count", "note_type")
    ]
    since = datetime(2026, 1, 1, tzinfo=UTC)
    bounds = np.array([to_us(NOW), to_us(since), 80, snapshot.enum_code("note_type", "preference")])

    def loop() -> Any:
        out = np.empty(len(notes.records), np.bool_)
        _fused(snapshot.live_mask, *columns, bounds, out)
        return out

    both = contenders(notes, compile_filter(COLUMNS, BUILT_IN["note"]), GOAL)
    assert np.array_equal(loop(), both[0].call())
    aside = Contender(ASIDE, f"Numba {numba.__version__}, one loop", loop, note="written for this filter alone")
    contest(f"filter of five comparisons, {notes.size}", [*both, aside], clock=CPU)


def test_filter_with_patterns(contest: Callable[..., None], notes: Notes) -> None:
    both = contenders(notes, compile_filter(CODES, BUILT_IN["note"]), GOAL)
    contest(f"filter with a pattern on names, {notes.size}", both, clock=CPU)


def test_filter_with_texts(contest: Callable[..., None], notes: Notes) -> None:
    both = contenders(notes, compile_filter(TEXTS, BUILT_IN["note"]), None)
    contest(f"filter with tags and texts, {notes.size}", both, clock=CPU)
