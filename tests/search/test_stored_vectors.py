"""Vectors that a search in the database keeps are those that it would read: whoever writes, and whatever is erased.

Source: issue "The diet", 4; docs/decisions/0209.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.drawn import needs
from support.evidence import scale, seed
from support.inspection import inspect

from caliber.schema.relations import NOTE
from caliber.search.in_database import vectors
from caliber.search.in_database.vectors import StoredVectors
from caliber.search.opening import SearchEngine

pytestmark = pytest.mark.usefixtures("full_text")
ABOUT = {"entity": "x", "entity_type": "t", "note_type": "fact", "confidence": 1.0}


class Reading:
    """The vectors as one handle keeps them, beside those that are read anew; ``pages`` counts what was read."""

    def __init__(self, memory: Any) -> None:
        self.engine = inspect(memory).engine
        self.stored = self.engine.part(SearchEngine).stored
        self.kept = StoredVectors(self.engine.store, self.stored.kinds)
        self.pages = 0

    def nearest(self, kept: StoredVectors, session: Any, query: Any) -> list[tuple[str, list[bytes]]]:
        def ask(statement: str, *values: Any) -> Any:
            rows = session.run(self.stored.statements[f"search.{statement}"], values)
            self.pages += bool(rows)
            return rows

        (space,) = self.engine.memory.snapshot.spaces.values()
        keys, places = kept.nearest(session, space, query, ask)
        return [(kind, [keys[at] for at in some.tolist()]) for kind, some in sorted(places.items())]

    def compare(self, query: Any) -> int:
        """Assert that both are equal; return how many pages the keeping one read."""
        with self.engine.store.read() as session:
            self.pages = 0
            found, read = self.nearest(self.kept, session, query), self.pages
            anew = self.nearest(StoredVectors(self.engine.store, self.stored.kinds), session, query)
        assert found == anew
        return read


def query_of(reading: Reading, rng: random.Random) -> Any:
    (space,) = reading.engine.memory.snapshot.spaces.values()
    return np.array([rng.uniform(-1, 1) for _ in range(space.dimensions)], np.float32)


@pytest.mark.databases("all")
@needs("sharing")
def test_kept_vectors_are_those_of_the_database(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_PAGE_VECTORS", 3)
    rng = random.Random(f"{seed()} stored vectors")
    memory, other = (backend.open(search__mode="backend", jobs__poll_ms=0) for _ in range(2))
    reading = Reading(memory)
    made: list[Any] = []
    for step in range(scale(60, 400)):
        handle = rng.choice((memory, other))
        kind = rng.choice(("add", "add", "add", "change", "delete", "nothing", "forget"))
        if kind == "add" or not made:
            owner = {"user": "ana"} if rng.random() < 0.2 else {}
            made.append((handle.add_note(content=f"the lake {step} {rng.random()}", **ABOUT, **owner).note_id, owner))
        elif kind == "change":
            handle.update_note(rng.choice(made)[0], content=f"the boat {step} {rng.random()}")
        elif kind == "delete":
            handle.delete_note(made.pop(rng.randrange(len(made)))[0])
        elif kind == "forget":
            handle.forget(user="ana")
            made = [each for each in made if not each[1]]
        for each in (memory, other):
            each.flush()
        memory.search("", consistency="latest", kinds=[NOTE.name])
        if reading.engine.memory.snapshot.spaces:
            reading.compare(query_of(reading, rng))


@pytest.mark.databases("all")
@needs("sharing")
def test_vectors_are_read_once_and_then_those_that_were_added(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_PAGE_VECTORS", 4)
    memory = backend.open(search__mode="backend", jobs__poll_ms=0)
    notes = [memory.add_note(content=f"the lake {at}", **ABOUT).note_id for at in range(12)]
    memory.flush()
    reading, rng = Reading(memory), random.Random(1)
    query = query_of(reading, rng)
    ordered = reading.engine.store.feed.ordered
    assert reading.compare(query) == 3
    assert reading.compare(query) == (0 if ordered else 3)
    with reading.engine.store.read() as older:
        before = reading.nearest(reading.kept, older, query)
        for at in range(2):
            memory.add_note(content=f"a boat {at}", **ABOUT)
        memory.flush()
        assert reading.compare(query) == (1 if ordered else 4)
        assert reading.nearest(reading.kept, older, query) == before, "an earlier boundary sees no later vector"
    assert reading.compare(query) == (0 if ordered else 4)
    memory.delete_note(notes[0])
    memory.flush()
    reading.compare(query)
    reading.kept.forget(0)
    assert reading.compare(query) == 4
    monkeypatch.setattr(vectors, "_CHANGES_READ", 0)
    memory.add_note(content="one more", **ABOUT)
    memory.flush()
    assert reading.compare(query) == 4, "too many commits to look through"
    monkeypatch.setattr(vectors, "_KEPT_BYTES", 100)
    assert reading.compare(query) == (0 if ordered else 4), "what is kept stays"
    reading.kept.forget(0)
    assert [reading.compare(query) for _ in range(2)] == [4, 4], "a space over the limit is read for each query"
    reading.kept.forget(1 << 40)
    monkeypatch.setattr(vectors, "_KEPT_BYTES", 1 << 20)
    assert [reading.compare(query) for _ in range(2)] == [4, 4], "a search of before an erasure keeps nothing"
