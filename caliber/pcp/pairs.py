"""Pairs of statements that may contradict each other: about one subject, or with vectors near each other.

Source: C-260, C-262, K-085.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import Final, NamedTuple

import numpy as np

from caliber.kernels import pairs_above
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, kind_named
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot

_MAX_PAIRS: Final = 50_000
"""Pairs that one check compares: those of one subject first, then the most similar ones."""


class Statement(NamedTuple):
    """A statement of a record in use. Units: instants in µs; ``since`` and ``until`` bound when it holds."""

    text: str
    subject: tuple[str, ...]
    made: int
    since: int
    until: int
    confidence: float | None
    owners: RelationSnapshot
    number: int

    @property
    def ref(self) -> EntityRef:
        """The record."""
        return EntityRef(kind_named(self.owners.relation.name), self.owners.entity_id(self.number))


class Candidate(NamedTuple):
    """Two statements to compare; ``similarity`` is that of their vectors, None if they are of one subject only."""

    first: Statement
    second: Statement
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs to compare, each once; ``complete`` is False where there were more."""

    candidates: list[Candidate]
    complete: bool


def candidate_pairs(statements: Sequence[Statement], snapshot: ResidentSnapshot, threshold: float) -> Candidates:
    """Return the pairs of one subject, and those whose vectors are at least as similar as ``threshold``.

    Pairs of the same content, and of statements that never hold at the same time, are left out (C-260).
    """
    similar, truncated = _similar(statements, snapshot, threshold)
    found: dict[tuple[int, int], float | None] = dict.fromkeys(_of_one_subject(statements))
    found.update(similar)
    out = list(_differing(statements, found.items()))
    return Candidates(out[:_MAX_PAIRS], not truncated and len(out) <= _MAX_PAIRS)


def first_pairs(
    statements: Sequence[Statement], snapshot: ResidentSnapshot, threshold: float, most: int
) -> list[Candidate]:
    """Return the first of the pairs of ``candidate_pairs``; vectors are compared if too few are of one subject."""
    of_one_subject = ((pair, None) for pair in _of_one_subject(statements))
    out = list(islice(_differing(statements, of_one_subject), most))
    return out if len(out) == most else candidate_pairs(statements, snapshot, threshold).candidates[:most]


def _differing(
    statements: Sequence[Statement], pairs: Iterable[tuple[tuple[int, int], float | None]]
) -> Iterator[Candidate]:
    """Yield the pairs that state different things of the same time."""
    for (one, other), similarity in pairs:
        first, second = statements[one], statements[other]
        if first.text != second.text and first.since < second.until and second.since < first.until:
            yield Candidate(first, second, similarity)


def _of_one_subject(statements: Sequence[Statement]) -> Iterator[tuple[int, int]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, each in enumerate(statements):
        if each.subject:
            groups.setdefault(each.subject, []).append(place)
    left = _MAX_PAIRS
    for group in groups.values():
        for pair in combinations(group, 2):
            if left <= 0:
                return
            left -= 1
            yield pair


def _similar(
    statements: Sequence[Statement], snapshot: ResidentSnapshot, threshold: float
) -> tuple[dict[tuple[int, int], float], bool]:
    """Return the pairs of statements with near vectors; statements without a vector are in none (C-262)."""
    if snapshot.space_in_use is None:
        return {}, False
    matrices, places = [], []
    names = [each.owners.relation.name for each in statements]
    for name in dict.fromkeys(names):
        index = snapshot.vectors.get((name, snapshot.space_in_use))
        if index is None:
            continue
        members = [place for place, of in enumerate(names) if of == name]
        rows = np.array([statements[place].number for place in members], np.int64)
        vectors, present = index.first(statements[members[0]].owners, rows)
        matrices.append(vectors)
        places += [place for place, has in zip(members, present.tolist(), strict=True) if has]
    if len(places) < 2:
        return {}, False
    most = min(len(places) * (len(places) - 1) // 2, _MAX_PAIRS)
    pairs = pairs_above(np.concatenate(matrices), threshold, max_pairs=most)
    found = {}
    for (left, right), score in zip(pairs.index.tolist(), pairs.score.tolist(), strict=True):
        one, other = places[left], places[right]
        found[min(one, other), max(one, other)] = score
    return found, pairs.truncated
