"""Duplicate handling among recalled records: equal texts enter once, near-equal texts lose score to the newest one.

Records that are almost alike but differ in a word may be a fact and its correction, or two facts: none is dropped. The
newest counts as much as the most relevant one; the others count less.

Source: docs/windows.md; decision 0197.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.cron import zone_of
from caliber.context import limits
from caliber.context.conversation import PASSAGE, SUMMARY
from caliber.context.gather.scores import Scored
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan
from caliber.kernels import near_groups
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

    def ages(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sort keys of records' ages: their times, then their ordinals."""
        rows, owners = self.rows[places], self.owners
        entered = owners.relation.times.entered
        times = times_of(owners, rows) if self.source == PASSAGE else owners.column(entered)[rows]
        return times, owners.column("ordinal")[rows]

    def days(self, places: NDArray[np.int64], plan: AssemblyPlan) -> Sequence[int | None]:
        """Return the day of each turn where its writer is; None for other records."""
        if self.source != PASSAGE or not len(places):
            return [None] * len(places)
        days: list[int] = days_of(self.owners, self.rows[places], zone_of(plan.config.time_zone)).tolist()
        return days

    def prints(self, places: NDArray[np.int64], texts: TextSource) -> list[bytes]:
        """Return a digest of each record's words, the same for texts that differ in nothing a reader minds."""
        owners = self.owners

        def read(rows: list[int]) -> Iterator[bytes]:
            for row, text in zip(rows, texts.texts(owners, rows), strict=True):
                yield _digest(_words(_wording(owners, row, _text(text))))

        return owners.generation.read_once("digest", self.rows[places].tolist(), read)


@dataclass(slots=True)
class _Ranked:
    """Candidates of all sources, most relevant first. Shapes: ``int64[n]``; ``joined`` is where they were before."""

    part: NDArray[np.int64]
    place: NDArray[np.int64]
    joined: NDArray[np.int64]


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
    ranked = _Ranked(part[order], place[order], order)
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
        tokens = item.owners.column("token_count")[item.rows[places]].tolist()
        counts = Counter(tokens)
        several = places[[counts[each] > 1 for each in tokens]]
        said = item.owners.generation.read_once("said", item.rows[several].tolist(), partial(_said, item.owners, texts))
        alike = Counter(said)
        again = [at for at, digest in enumerate(said) if digest and alike[digest] > 1] if len(alike) < len(said) else []
        places, ordinals = several[again], item.owners.column("ordinal")
        first_of: dict[tuple[bytes, int | None], int] = {}
        for at, place, day in zip(again, places.tolist(), item.days(places, plan), strict=True):
            first = first_of.setdefault((said[at], day), place)
            if first != place:
                item.twins[place] = ordinals[item.rows[first]]


def _said(owners: RelationSnapshot, texts: TextSource, rows: list[int]) -> Iterator[bytes]:
    """Yield a digest of each turn with its head; none of tool calls, which have no content of their own."""
    for row, text in zip(rows, texts.texts(owners, rows), strict=True):
        content = _text(text).strip()
        yield _digest(_wording(owners, row, content)) if content else b""


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _wording(owners: RelationSnapshot, row: int, text: str) -> str:
    """Return the text of a record with its head: its speaker or subject."""
    return _text(document_of(owners.relation, owners.packed(row), text))


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
        ranks, group = self._groups()
        if not len(ranks):
            return
        times, ordinals = np.empty(len(ranks), np.int64), np.empty(len(ranks), np.int64)
        prints = [b""] * len(ranks)
        for at, item in enumerate(self._parts):
            members = np.flatnonzero(self._ranked.part[ranks] == at)
            places = self._ranked.place[ranks[members]]
            times[members], ordinals[members] = item.ages(places)
            for member, made in zip(members.tolist(), item.prints(places, self._texts), strict=True):
                prints[member] = made
        stays = self._unlike(ranks, group, prints)
        ranks, group, times, ordinals = [each[stays] for each in (ranks, group, times, ordinals)]
        # A differing word may be a correction or another fact. The newest record may be the correction, so it counts as
        # much as the most relevant one; the others count for a share.
        relevance = np.concatenate([item.scored.relevance for item in self._parts])
        own = relevance[self._ranked.joined[ranks]]
        firsts = np.flatnonzero(np.diff(group, prepend=-1))
        by_age = np.lexsort((-np.arange(len(ranks)), ordinals, times, group))
        newest = by_age[np.append(firsts[1:], len(ranks)) - 1]
        weighed = own * np.float32(limits.ALIKE_SHARE)
        weighed[newest] = own[firsts]
        others = np.ones(len(ranks), np.bool_)
        others[firsts] = False
        self._weigh(ranks[others], weighed[others], relevance)

    def _unlike(self, ranks: NDArray[np.int64], group: NDArray[np.int64], prints: list[bytes]) -> NDArray[np.bool_]:
        """Mark records with the words of a more relevant one of their group and day; return which are the others."""
        stays = np.ones(len(ranks), np.bool_)
        if len(set(prints)) == len(prints):
            return stays
        keys = list(zip(group.tolist(), prints, strict=True))
        counts = Counter(keys)
        several = np.array([at for at, key in enumerate(keys) if counts[key] > 1], np.int64)
        days: dict[int, int | None] = {}
        for number, item in enumerate(self._parts):
            members = several[self._ranked.part[ranks[several]] == number]
            days.update(zip(members.tolist(), item.days(self._ranked.place[ranks[members]], self._plan), strict=True))
        first_of: dict[tuple[int, bytes, int | None], int] = {}
        for at in several.tolist():
            better = first_of.setdefault((*keys[at], days[at]), at)
            if better != at:
                item, place = self._at(int(ranks[at]))
                kept, where = self._at(int(ranks[better]))
                item.twins[place] = kept.ordinal(where)
                stays[at] = False
        return stays

    def _at(self, rank: int) -> tuple[Recalled, int]:
        return self._parts[int(self._ranked.part[rank])], int(self._ranked.place[rank])

    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ranks of records with those of less relevant ones that are almost like them, and each one's group."""
        ranks, vectors = self._vectors()
        if len(ranks) < 2:
            return ranks[:0], ranks[:0]
        yielding = np.concatenate([item.twins for item in self._parts])[self._ranked.joined[ranks]] != 0
        group = near_groups(vectors, limits.DUPLICATE_SIMILARITY, left_out=yielding.view(np.uint8))
        members = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
        return ranks[members], group[members]

    def _vectors(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ranks of the best candidates that have a vector, and their vectors."""
        assert self._inputs.space_id is not None
        parts, ranked = self._parts, self._ranked
        counted = [item.owners.column(item.owners.relation.tokens) for item in parts]
        tokens = np.concatenate([column[item.rows] for column, item in zip(counted, parts, strict=True)])
        sums = np.cumsum(tokens[ranked.joined])
        budget = self._inputs.max_tokens
        # Candidates further down never enter: one and a half budgets are used up before them.
        best = slice(0, min(_COMPARED, 1 + int(np.searchsorted(sums, budget + budget // 2))))
        chosen_part, chosen_place = ranked.part[best], ranked.place[best]
        owner: list[NDArray[np.int64]] = []
        rows: list[NDArray[np.float32]] = []
        for at, item in enumerate(parts):
            vectors = self._inputs.snapshot.vectors.get((item.owners.relation.name, self._inputs.space_id))
            members = np.flatnonzero(chosen_part == at)
            if vectors is None or not len(members):
                continue
            found, present = vectors.first(item.owners, item.rows[chosen_place[members]])
            rows.append(found)
            owner.append(members[present])
        if not owner:
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        ranks = np.concatenate(owner)
        order = np.argsort(ranks, kind="stable")
        return ranks[order], np.concatenate(rows)[order]

    def _weigh(self, ranks: NDArray[np.int64], new: NDArray[np.float32], relevance: NDArray[np.float32]) -> None:
        """Give records a new relevance; ``relevance`` is that of all, joined."""
        changed = relevance.copy()
        changed[self._ranked.joined[ranks]] = new
        ends = np.cumsum([len(item.rows) for item in self._parts]).tolist()
        for at in np.unique(self._ranked.part[ranks]).tolist():
            item = self._parts[at]
            mine = changed[ends[at] - len(item.rows) : ends[at]]
            part = (mine - item.scored.relevance).astype(np.float64)
            item.scored = Scored(mine, item.scored.error, {**item.scored.parts, _ALIKE: part})
