"""Words that a subject wrote into tasks of others, and the records that may have been drawn from them.

Notes name the tasks that they were drawn from, and some artifacts no turn: none of them says whose words it repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from caliber.erasure.subject import folded_words
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.text.sentences import split_sentences

_PART_CHARS: Final = 12
"""The length from which on a statement is known again inside a longer one: shorter ones are in many texts."""
Row = tuple[Any, ...]


class Drawn:
    """The words that went, by the tasks of others that they stood in; ``unclear`` counts what may repeat them."""

    def __init__(self, uow: UnitOfWork, ids: frozenset[bytes], gone: set[bytes]) -> None:
        self._uow, self._ids, self._gone = uow, ids, gone
        self._said: dict[bytes, set[str]] = {}
        self._traced: dict[str, set[Row]] = {}
        self.unclear: Counter[str] = Counter()

    def take(self, relation: Relation, row: Row) -> None:
        """Take note of the words of a record that went, if its author is the subject."""
        if relation.task is None or relation.text is None or relation.erase is None:
            return
        place = codec_of(relation).index
        task = row[place(relation.task)]
        if task in self._said or any(row[place(name)] in self._ids for name in relation.erase.owned):
            self._said.setdefault(task, set()).update(_statements(relation, row))

    def repeats(self, relation: Relation, row: Row) -> bool:
        """Return whether a record repeats words that went, from a task that it may have been drawn from."""
        said = {each for task in self._tasks(relation, row) for each in self._said[task]} if self._said else set()
        if not said:
            return False
        for own in _statements(relation, row):
            if own in said or any(_is_part(own, each) or _is_part(each, own) for each in said):
                return True
        self.unclear[relation.plural] += 1
        return False

    def _tasks(self, relation: Relation, row: Row) -> set[bytes]:
        """Return the tasks with such words that a record of no certain source is of."""
        erase, place = relation.erase, codec_of(relation).index
        if erase is None or relation.text is None:
            return set()
        tasks: set[bytes] = set()
        if erase.sources is not None:
            tasks = split_ids(row[place(erase.sources)] or b"")
        elif relation.task is not None and any(made.empties is None for made in erase.made_from):
            tasks = {row[place(relation.task)]}
        tasks &= self._said.keys() - self._gone
        return set() if tasks and self._is_traced(relation, row) else tasks

    def _is_traced(self, relation: Relation, row: Row) -> bool:
        """Return whether a record was made from a stored one that stays: of those that went it has gone."""
        assert relation.erase is not None
        place = codec_of(relation).index
        for made in relation.erase.made_from:
            values = tuple(row[place(name)] for name in made.columns)
            if made.relation not in self._traced:
                other = self._uow.catalog.by_name[made.relation]
                at = [codec_of(other).index(name) for name in made.target]
                rows = (each for page in self._uow.pages(other) for each in page)
                self._traced[made.relation] = {tuple(each[number] for number in at) for each in rows}
            if values in self._traced[made.relation]:
                return True
        return False


def _statements(relation: Relation, row: Row) -> Iterator[str]:
    assert relation.text is not None
    place = codec_of(relation).index
    for name in relation.text.searched:
        value = row[place(name)] or ""
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for part in (text, *text.splitlines(), *(sentence.text for sentence in split_sentences(text))):
            if statement := folded_words(part).strip(" .!;,:*_-•"):
                yield statement


def split_ids(ids: bytes) -> set[bytes]:
    """Return the ids that a column holds side by side, of 16 bytes each."""
    return {ids[at : at + 16] for at in range(0, len(ids), 16)}


def _is_part(part: str, whole: str) -> bool:
    return len(part) >= _PART_CHARS and part in whole
