"""Records of every relation with derived columns, by a name each; their derived values are frozen in tests/data."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime
from typing import Any

from contract.entities import plain
from support.memories import record

from caliber.model.knowledge import NoteType
from caliber.model.trust import TrustLabel
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE, TRAJECTORY, TURN, TURN_SUMMARY

WHEN = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)
TEXTS = ("", "a word", "Zürich – naïve ☃ 日本語 🦊", 'two\nlines, and "quotes" \\ \0', "x" * 1_000)
BYTES = (*(text.encode() for text in TEXTS), b"\xff\x00raw", "Zoë".encode("utf-16-le"))


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
    for raw in BYTES:
        out += [(ARTIFACT, plain(ARTIFACT, content=raw)), (TURN, plain(TURN, content=raw))]
    for text in TEXTS:
        out += [
            (TURN_SUMMARY, plain(TURN_SUMMARY, content=text)),
            (SCOPE, plain(SCOPE, summary=text)),
            (TRAJECTORY, plain(TRAJECTORY, goal=text)),
        ]
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
