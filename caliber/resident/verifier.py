"""Comparison of every mirror with the database, row by row and vector by vector; returns the differences.

Source: design, section 5.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from caliber.model.lazy_dataclass import dataclass
from caliber.resident.mirror import EVICTED, Generation
from caliber.resident.vectors import VectorIndex
from caliber.schema.relations import EMBEDDING
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession

_ID_BYTES: Final = 16
_PAGE_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a mirror and the store disagree."""

    relation: str
    ordinal: int
    what: str


def differences(
    session: StatementSession,
    plans: Mapping[str, RelationPlans],
    generations: Mapping[str, Generation],
    indexes: Mapping[tuple[str, uuid.UUID], VectorIndex] | None,
    holds: Callable[[uuid.UUID], bool],
) -> list[Difference]:
    """Return the differences between memory and store; both must be at the same commit boundary.

    ``indexes`` None: vectors are not kept in memory, and not compared. ``holds`` selects the spaces.
    """
    out: list[Difference] = []
    for generation in generations.values():
        out.extend(_of_relation(session, plans, generation))
    if indexes is None:
        return out
    out.extend(_of_vectors(session, plans, indexes.values(), holds, generations))
    for (owner_type, _), index in indexes.items():
        out.extend(_of_places(generations[owner_type], index))
    return out


def _of_relation(
    session: StatementSession, plans: Mapping[str, RelationPlans], generation: Generation
) -> list[Difference]:
    out = []
    layout = generation.layout
    name = layout.relation.name
    mirrored = {}
    for number in generation.live[: generation.length].nonzero()[0].tolist():
        row = generation.row(number)
        if row[0] in mirrored:
            out.append(Difference(name, row[0], "stands twice in memory"))
        mirrored[row[0]] = (number, row)
    groups = _grouped(generation)
    for page in pages(session, plans[name], _PAGE_ROWS):
        for stored in page:
            found = mirrored.pop(stored[0], None)
            if found is None:
                out.append(Difference(name, stored[0], "missing in memory"))
                continue
            number, row = found
            for place in layout.absent:
                if row[place] is EVICTED and stored[place] is not None:
                    row = (*row[:place], stored[place], *row[place + 1 :])
            if row != stored:
                out.append(Difference(name, stored[0], "packed row differs"))
            out.extend(_of_columns(generation, number, stored))
            for group, place in layout.groups:
                expected = () if stored[place] is None else (stored[place],)
                if tuple(groups[group].get(number, ())) != expected:
                    out.append(Difference(name, stored[0], f"group {group} differs"))
    out.extend(Difference(name, ordinal, "not in the store") for ordinal in mirrored)
    return out


def _grouped(generation: Generation) -> dict[str, dict[int, list[bytes]]]:
    """Return, for each group, under which values a row is listed."""
    out: dict[str, dict[int, list[bytes]]] = {}
    for group, values in generation.groups.items():
        listed = out[group] = {}
        for value, numbers in values.items():
            for number in numbers:
                listed.setdefault(number, []).append(value)
    return out


def _of_columns(generation: Generation, number: int, stored: Row) -> list[Difference]:
    layout = generation.layout
    out = []
    if generation.index.get(layout.key_of(stored)) != number:
        out.append(Difference(layout.relation.name, stored[0], "index points elsewhere"))
    if generation.ordinals.at(number) != stored[0]:
        out.append(Difference(layout.relation.name, stored[0], "ordinal differs"))
    if layout.has_tie and generation.ties.at(number).astype(">u8").tobytes() != layout.key_of(stored):
        out.append(Difference(layout.relation.name, stored[0], "id differs"))
    for column, place, *_ in layout.columns:
        try:
            same = bool(generation.arrays[column].at(number) == generation.resident_value(column, stored[place]))
        except (KeyError, TypeError, ValueError, OverflowError):  # the store holds a value that memory cannot
            same = False
        if not same:
            out.append(Difference(layout.relation.name, stored[0], f"column {column} differs"))
    return out


def _of_vectors(
    session: StatementSession,
    plans: Mapping[str, RelationPlans],
    indexes: Iterable[VectorIndex],
    holds: Callable[[uuid.UUID], bool],
    owners: Container[str],
) -> list[Difference]:
    codec = codec_of(EMBEDDING)
    held: dict[bytes, bool] = {}
    mirrored = {ordinal: value for index in indexes for ordinal, value in index.content().items()}
    out = []
    for page in pages(session, plans[EMBEDDING.name], _PAGE_ROWS):
        for row in page:
            space = row[codec.index("space_id")]
            if not isinstance(space, bytes) or len(space) != _ID_BYTES:
                out.append(Difference("embedding", row[0], "names no space"))
                continue
            if not held.setdefault(space, holds(uuid.UUID(bytes=space))):
                continue
            if row[codec.index("owner_type")] not in owners:
                continue  # of a memory that is not held, such as one that came after this process
            expected = (row[codec.index("owner_id")], row[codec.index("vector")], row[codec.index("version")])
            found = mirrored.pop(row[0], None)
            if found is None:
                out.append(Difference("embedding", row[0], "missing in memory"))
            elif found != expected:
                out.append(Difference("embedding", row[0], "vector differs"))
    out.extend(Difference("embedding", ordinal, "not in the store") for ordinal in mirrored)
    return out


def _of_places(owners: Generation, index: VectorIndex) -> list[Difference]:
    """Return the vectors that a search would not find, or would take for another record's."""
    out = []
    for ordinal, owner, row, found in index.places():
        if not found:
            out.append(Difference("embedding", ordinal, "vector is not searched"))
        current = owners.index.get(owner, -1)
        if current >= 0 and owners.live[current] and row != current:
            out.append(Difference("embedding", ordinal, "points to another record"))
    return out
