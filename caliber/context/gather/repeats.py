"""Records with the words of a turn that they were drawn from, or of another record drawn from it: one of them enters.

A record repeats another one of its task if it has no word beyond the other's, in any form of the words. Turns that
were said on different days are different events, and no turn repeats another here. Source: docs/windows.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from caliber.context.columns import TURN_NUMBER
from caliber.context.conversation import PASSAGE, SUMMARY, TURNS
from caliber.context.gather.candidates import Part
from caliber.context.gather.duplicates import Recalled, Rows
from caliber.context.gather.turns import TurnFacts
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.documents import shown
from caliber.resident.mirror import RelationSnapshot
from caliber.storage.compile.codec import decoder_of
from caliber.text.words import Analyzer

_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_CHARS: Final = 2_000
"""Longer texts are not compared: nothing else says all of one."""
_COMPARED: Final = 24
"""The most relevant hits of a kind that are compared: few others enter."""
_TURNS: Final = 64
"""The newest turns of the conversation with which records of its task are compared."""
_TASK: Final = "trajectory_id"


@dataclass(frozen=True, slots=True)
class _Said:
    """A record, whether it is a turn, and the hit that it is; None for one that enters in any case."""

    relevance: float
    ordinal: int
    owners: RelationSnapshot
    is_turn: bool
    item: Recalled | None
    place: int
    words: frozenset[str]


@lru_cache(maxsize=16)
def _left_out(stop_words: frozenset[str]) -> frozenset[str]:
    """Return the words that carry no meaning: all stop words but those that deny."""
    return frozenset([word for word in stop_words if not word.endswith(("no", "nor", "not", "n't"))])


class Repeats:
    """Compares the words of records, whatever their form, without words that carry no meaning."""

    def __init__(self, inputs: AssemblyInputs, texts: TextSource, analyzer: Analyzer) -> None:
        self._inputs = inputs
        self._texts = texts
        self._analyzer = analyzer
        self._left_out = _left_out(analyzer.lexicon.stop_words)

    def mark(self, found: Mapping[int, Recalled], known: Part | None, owners: RelationSnapshot | None) -> None:
        """Mark hits without a word beyond a more relevant hit of their task; ``known`` enters in any case."""
        said: dict[bytes, list[_Said]] = {}
        if known is not None and owners is not None:
            self._add(said, owners, known.rows, np.full(len(known.rows), np.inf), None)
        for source, item in found.items():
            if source not in (PASSAGE, SUMMARY):
                self._add(said, item.owners, item.rows, item.scored.relevance, item)
        if said and (turns := found.get(PASSAGE)) is not None:
            self._add(said, turns.owners, turns.rows, turns.scored.relevance, turns, within=True)
        for group in said.values():
            group.sort(key=lambda each: (-each.relevance, each.ordinal))
            before: set[str] = set()
            for at, each in enumerate(group):
                if each.item is not None and each.words and each.words <= before:  # few pass: then one by one
                    twins = (other.ordinal for other in group[:at] if _says(other, each))
                    each.item.twins[each.place] = each.item.twins[each.place] or next(twins, 0)
                before |= each.words

    def in_conversation(self, part: Part, owners: RelationSnapshot, turns: TurnFacts) -> Part:
        """Return records with one more than the number of the turn that has all words of a record of the task."""
        task, numbers = self._inputs.trajectory_id.bytes, np.zeros(len(part.rows), np.int64)
        if part.source in (PASSAGE, SUMMARY) or not len(turns):
            return part
        best = np.argsort(-part.scored.relevance, kind="stable")[:_COMPARED]
        tasks_of = _tasks_of(owners, part.rows[best])
        own = [at for at, tasks in zip(best.tolist(), tasks_of, strict=True) if task in tasks]
        if not own:
            return part
        spoken = self._words(self._inputs.snapshot[TURNS], turns.rows[-_TURNS:])
        every: frozenset[str] = frozenset().union(*spoken)
        for at, words in zip(own, self._words(owners, part.rows[own]), strict=True):
            if words and words <= every:
                last = next((place for place in range(len(spoken) - 1, -1, -1) if words <= spoken[place]), None)
                numbers[at] = 0 if last is None else turns.numbers[-_TURNS:][last] + 1
        return replace(part, columns={**part.columns, TURN_NUMBER: numbers})

    def _add(
        self,
        said: dict[bytes, list[_Said]],
        owners: RelationSnapshot,
        rows: Rows,
        relevance: Sequence[float] | np.ndarray,
        item: Recalled | None,
        *,
        within: bool = False,
    ) -> None:
        """Add records to the groups of their tasks; ``within`` to those that there are."""
        best = np.argsort(-np.asarray(relevance), kind="stable")[:_COMPARED]
        tasks = _tasks_of(owners, rows[best])
        if within:
            tasks = [tuple(filter(said.__contains__, each)) for each in tasks]
        kept = [at for at, each in enumerate(tasks) if each]
        places = best[kept]
        ordinals = owners.column("ordinal")[rows]
        for at, place, words in zip(kept, places.tolist(), self._words(owners, rows[places]), strict=True):
            made = _Said(float(relevance[place]), int(ordinals[place]), owners, within, item, place, words)
            for task in tasks[at]:
                said.setdefault(task, []).append(made)

    def _words(self, owners: RelationSnapshot, rows: Rows) -> list[frozenset[str]]:
        def read(new: list[int]) -> Iterator[tuple[str, ...]]:
            for text in map(shown, self._texts.texts(owners, new)):
                words = (word.casefold().replace("’", "'") for word in _WORD.findall(text) if len(text) <= _CHARS)
                terms = (self._analyzer.cached(word).terms for word in words if word not in self._left_out)
                yield tuple({term for each in terms for term in each})

        return list(map(frozenset, owners.generation.read_once("words", rows.tolist(), read)))


def _says(better: _Said, other: _Said) -> bool:
    same = better.owners is other.owners and better.ordinal == other.ordinal
    return other.words <= better.words and not same and not (better.is_turn and other.is_turn)


def _tasks_of(owners: RelationSnapshot, rows: Rows) -> Sequence[tuple[bytes, ...]]:
    """Return the tasks that each record belongs to, or was drawn from."""
    relation, chosen = owners.relation, rows.tolist()
    if relation.has(_TASK):
        return [(task,) if task else () for task in owners.packed_values(_TASK, chosen)]
    if relation.erase is None or relation.erase.sources is None:
        return [()] * len(chosen)
    decode, drawn = decoder_of(relation.column(relation.erase.sources)), relation.erase.sources

    def read(new: list[int]) -> Iterator[tuple[bytes, ...]]:
        for value in owners.packed_values(drawn, new):
            tasks = value if decode is None else decode(value)
            yield tuple([each.bytes for each in tasks or ()])

    return owners.generation.read_once("tasks", chosen, read)
