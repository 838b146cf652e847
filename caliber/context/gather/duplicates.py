"""Duplicate handling among recalled records: equal texts enter once, near-equal texts lose score to the newest one.

Records that are almost alike but differ in a word may be a fact and its correction, or two facts: none is dropped. The
newest counts as much as the most relevant one; the others count less.

Source: docs/windows.md; decision 0197.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.cron import zone_of
from caliber.context import limits
from caliber.context.conversation import PASSAGE, SUMMARY
from caliber.context.gather.scores import Scored
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan
from caliber.kernels import pairs_above
from caliber.resident.conversation import days_of, times_of
from caliber.resident.documents import document_of
from caliber.resident.mirror import RelationSnapshot
from caliber.text.words import normalized

Rows = NDArray[np.int64]

_COMPARED: Final = 256
"""Best candidates whose vectors are compared with each other."""
_COVERED: Final = np.float32(0.5)
"""A summary yields to a turn that it covers, and that is relevant by this share of its own relevance, or more."""
_ALIKE: Final = "alike"
"""The part of a relevance that a record gains or loses as there are others almost like it."""


@dataclass(slots=True)
class Recalled:
    """The records of one source. Shapes: rows, twins ``int64[n]``; a twin is the ordinal of an equal record, or 0."""

    source: int
    owners: RelationSnapshot
    rows: Rows
    scored: Scored
    twins: NDArray[np.int64]

    def ordinal(self, place: int) -> int:
        return int(self.owners.column("ordinal")[self.rows[place]])

    def made(self, place: int) -> tuple[int, int]:
        """Return the sort key of a record's age: its time, then its ordinal."""
        row = self.rows[place : place + 1]
        made = self.owners.relation.times.entered
        times = times_of(self.owners, row) if self.source == PASSAGE else self.owners.column(made)[row]
        return int(times[0]), self.ordinal(place)


@dataclass(slots=True)
class _Ranked:
    """Candidates of all sources, most relevant first. Shapes: ``int64[n]`` each."""

    part: NDArray[np.int64]
    place: NDArray[np.int64]


def find_twins(inputs: AssemblyInputs, plan: AssemblyPlan, found: Mapping[int, Recalled], texts: TextSource) -> None:
    """Mark records that repeat a more relevant one, and reweigh records that are almost alike."""
    parts = list(found.values())
    if not parts:
        return
    relevance = np.concatenate([item.scored.relevance for item in parts])
    ties = np.concatenate([item.owners.ties().take(item.rows, axis=0) for item in parts])
    part = np.repeat(np.arange(len(parts)), [len(item.rows) for item in parts])
    place = np.concatenate([np.arange(len(item.rows)) for item in parts])
    order = np.lexsort((ties[:, 1], ties[:, 0], -relevance))
    ranked = _Ranked(part[order], place[order])
    if SUMMARY in found and PASSAGE in found:
        _yield_to_turns(found[SUMMARY], found[PASSAGE])
    _equal_texts(plan, parts, ranked, texts)
    if inputs.space_id is not None:
        _Alike(inputs, plan, parts, ranked, texts).settle()


def _yield_to_turns(summaries: Recalled, turns: Recalled) -> None:
    """Mark summaries of scopes of which a turn was found that is relevant too."""
    scopes = turns.owners.column("scope_id")[turns.rows]
    values = turns.owners.interned("scope_id")
    best: dict[bytes, int] = {}
    for place in np.argsort(-turns.scored.relevance, kind="stable").tolist():
        best.setdefault(values[int(scopes[place])], place)
    for place, row in enumerate(summaries.rows.tolist()):
        turn = best.get(summaries.owners.entity_id(row).bytes)
        if turn is not None and turns.scored.relevance[turn] >= _COVERED * summaries.scored.relevance[place]:
            summaries.twins[place] = turns.ordinal(turn)


def _equal_texts(plan: AssemblyPlan, parts: Sequence[Recalled], ranked: _Ranked, texts: TextSource) -> None:
    """Mark turns whose text a more relevant turn of their day has too: on another day it is another event."""
    for at, item in enumerate(parts):
        if item.source != PASSAGE:
            continue
        places = ranked.place[ranked.part == at]
        tokens = item.owners.column("token_count")[item.rows[places]]
        _, where, counts = np.unique(tokens, return_inverse=True, return_counts=True)
        several = places[counts[where] > 1].tolist()
        alike: dict[str, list[int]] = {}
        for place, text in zip(several, texts.texts(item.owners, item.rows[several].tolist()), strict=True):
            alike.setdefault(_text(text).strip(), []).append(place)
        for content, equal in alike.items():
            if len(equal) < 2 or not content:  # tool calls have no content of their own
                continue
            first_of: dict[tuple[str, int | None], int] = {}
            for place in equal:
                first = first_of.setdefault((_wording(item, place, content), _day(plan, item, place)), place)
                if first != place:
                    item.twins[place] = item.ordinal(first)


def _day(plan: AssemblyPlan, item: Recalled, place: int) -> int | None:
    """Return the day of a turn where its writer is; None for other records."""
    if item.source != PASSAGE:
        return None
    return int(days_of(item.owners, item.rows[place : place + 1], zone_of(plan.config.time_zone))[0])


def _wording(item: Recalled, place: int, text: str) -> str:
    """Return the text of a record with its head: its speaker or subject."""
    return _text(document_of(item.owners.relation, item.owners.packed(int(item.rows[place])), text))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else bytes(content).decode("utf-8", "replace")


def _words(text: str) -> str:
    """Return a text without differences that readers ignore: case and amount of white space."""
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join(normalized("NFC", word).casefold() for word in text.split())


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, without the signs between them."""
    return frozenset(re.findall(r"\w+", _words(text)))


class _Alike:
    """Records whose vectors are almost equal, in groups around the most relevant of each."""

    def __init__(
        self,
        inputs: AssemblyInputs,
        plan: AssemblyPlan,
        parts: Sequence[Recalled],
        ranked: _Ranked,
        texts: TextSource,
    ) -> None:
        self._inputs = inputs
        self._plan = plan
        self._parts = parts
        self._ranked = ranked
        self._texts = texts

    def settle(self) -> None:
        """Mark in each group the records with the words of a more relevant one, and reweigh the rest."""
        changed: dict[int, np.float32] = {}
        for first, followers in self._groups():
            first_of: dict[tuple[str, int | None], int] = {}
            ranks = [first, *followers]
            worded = list(map(_words, self._contents(ranks)))
            several = len(set(worded)) < len(worded)
            for rank, text in zip(ranks, worded, strict=True):
                day = _day(self._plan, *self._at(rank)) if several else None
                better = first_of.setdefault((text, day), rank)
                if better != rank:
                    item, place = self._at(rank)
                    kept, at = self._at(better)
                    item.twins[place] = kept.ordinal(at)
            others = [rank for rank in first_of.values() if rank != first]
            if others:
                changed |= self._weighed(first, others)
        self._weigh(changed)

    def _at(self, rank: int) -> tuple[Recalled, int]:
        return self._parts[int(self._ranked.part[rank])], int(self._ranked.place[rank])

    def _contents(self, ranks: Sequence[int]) -> list[str]:
        out: list[str] = []
        for rank in ranks:
            item, place = self._at(rank)
            (text,) = self._texts.texts(item.owners, [int(item.rows[place])])
            out.append(_wording(item, place, _text(text)))
        return out

    def _groups(self) -> Iterable[tuple[int, list[int]]]:
        """Return ranks of records with those of less relevant ones that are almost like them; each rank once."""
        ranks, vectors = self._vectors()
        if len(ranks) < 2:
            return ()
        pairs = pairs_above(vectors, limits.DUPLICATE_SIMILARITY, max_pairs=len(ranks) * len(ranks))
        yields = np.concatenate([item.twins != 0 for item in self._parts])[self._at_once(ranks)]
        yielding = set(np.flatnonzero(yields).tolist())
        groups: dict[int, list[int]] = {}
        for first, second in sorted(pairs.index.tolist()):
            if first not in yielding and second not in yielding:
                yielding.add(second)
                groups.setdefault(ranks[first], []).append(ranks[second])
        return groups.items()

    def _at_once(self, ranks: Sequence[int] | slice) -> NDArray[np.int64]:
        """Return the places of candidates in all sources joined."""
        starts = np.cumsum([0, *(len(item.rows) for item in self._parts)])
        places: NDArray[np.int64] = starts[self._ranked.part[ranks]] + self._ranked.place[ranks]
        return places

    def _vectors(self) -> tuple[list[int], NDArray[np.float32]]:
        """Return the ranks of the best candidates that have a vector, and their vectors."""
        assert self._inputs.space_id is not None
        parts, ranked = self._parts, self._ranked
        counted = [item.owners.column(item.owners.relation.tokens) for item in parts]
        tokens = np.concatenate([column[item.rows] for column, item in zip(counted, parts, strict=True)])
        sums = np.cumsum(tokens[self._at_once(slice(None))])
        budget = self._inputs.max_tokens
        # Candidates further down never enter: one and a half budgets are used up before them.
        best = slice(0, min(_COMPARED, 1 + int(np.searchsorted(sums, budget + budget // 2))))
        chosen_part, chosen_place = ranked.part[best], ranked.place[best]
        owner: list[int] = []
        rows: list[NDArray[np.float32]] = []
        for at, item in enumerate(parts):
            vectors = self._inputs.snapshot.vectors.get((item.owners.relation.name, self._inputs.space_id))
            members = np.flatnonzero(chosen_part == at)
            if vectors is None or not len(members):
                continue
            found, present = vectors.first(item.owners, item.rows[chosen_place[members]])
            rows.append(found)
            owner.extend(members[present].tolist())
        if not owner:
            return [], np.empty((0, 0), np.float32)
        order = np.argsort(owner, kind="stable")
        return np.array(owner)[order].tolist(), np.concatenate(rows)[order]

    def _weighed(self, first: int, others: Sequence[int]) -> dict[int, np.float32]:
        """Return the new relevance of records that are almost like a more relevant one, by rank.

        A differing word may be a correction or another fact. The newest record may be the correction, so it counts as
        much as the most relevant one; the others count for a share.
        """

        def made(rank: int) -> tuple[int, int]:
            item, place = self._at(rank)
            return item.made(place)

        def relevance(rank: int) -> np.float32:
            item, place = self._at(rank)
            return np.float32(item.scored.relevance[place])

        newest = max([first, *others], key=made)
        share = np.float32(limits.ALIKE_SHARE)
        return {rank: relevance(first) if rank == newest else relevance(rank) * share for rank in others}

    def _weigh(self, changed: Mapping[int, np.float32]) -> None:
        for at, item in enumerate(self._parts):
            changes = {self._at(rank)[1]: new for rank, new in changed.items() if self._ranked.part[rank] == at}
            if changes:
                relevance = item.scored.relevance.copy()
                places = list(changes)
                relevance[places] = list(changes.values())
                part = (relevance - item.scored.relevance).astype(np.float64)
                item.scored = Scored(relevance, item.scored.error, {**item.scored.parts, _ALIKE: part})
