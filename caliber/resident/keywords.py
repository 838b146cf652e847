"""Keyword index over resident records: built lazily at the first keyword search, extended as rows are added.

Documents are rows of a mirror, so the length of a relation's snapshot tells which of them it includes. The reader that
first needs rows indexes them in batches; nothing is written twice, and the index can be rebuilt from texts alone.

Source: issue "Search in native memory", design section 5; P-039, P-040.
"""

from __future__ import annotations

import contextlib
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from caliber.kernels import Analysis, KeywordIndex, KeywordSnapshot, Vocabulary
from caliber.model.deadline import deadline_passed, remaining_s
from caliber.model.errors import NotFound, Unavailable
from caliber.resident.documents import document, documents_joined
from caliber.resident.memory import ResidentMemory
from caliber.resident.mirror import EVICTED, Generation, RelationSnapshot
from caliber.storage.waiting import Places

T = TypeVar("T")

ASKS: Final = 128
"""Flag of a text that ends with a question; the others are the words' own."""

_QUESTION: Final = tuple(mark.encode() for mark in ("?", "\uff1f", "\u061f", "\u037e", "\u055e"))
BATCH_ROWS: Final = 4_096


class Keywords:
    """The postings of one tenant."""

    def __init__(self, memory: ResidentMemory, analyze: Callable[[str], Analysis]) -> None:
        self._memory = memory
        self.dictionary = Vocabulary(analyze)
        self.place = Places(1)

    def of(self, snapshot: RelationSnapshot) -> KeywordSnapshot:
        """Return the index of a relation, at least up to the rows of ``snapshot``.

        Raises: Unavailable when the deadline passes first; indexed rows are kept
        """
        found = snapshot.keywords
        if found is None or found.dictionary is not self.dictionary:
            found = snapshot.keywords = self._indexed(snapshot, None, KeywordIndex.snapshot)
        return found

    def advance(self, snapshot: RelationSnapshot) -> bool:
        """Index one batch of rows more; return whether that was all that a relation has at a boundary."""
        return self._indexed(snapshot, BATCH_ROWS, len) >= snapshot.length

    def _indexed(self, snapshot: RelationSnapshot, most: int | None, read: Callable[[KeywordIndex], T]) -> T:
        """Bring the index of a relation up to date, by ``most`` rows, under a lock; return its snapshot."""
        me = object()
        try:
            if not self.place.take(me, remaining_s()):
                raise deadline_passed("words were indexed")
            index = self._index_of(snapshot.generation)
            try:
                self._catch_up(index, snapshot, most)
            except Unavailable:  # the time was up between two batches
                raise
            except BaseException:
                # Whatever the error was (an interrupt, no memory): half of a batch may be indexed, and is rebuilt.
                snapshot.generation.keywords = None
                raise
            return read(index)
        finally:
            try:
                self.place.leave(me)
            finally:
                if me in self.place.holders:  # interrupted: in another thread no handler runs
                    start_new_thread(self.place.leave, (me,))

    def _index_of(self, generation: Generation) -> KeywordIndex:
        index = generation.keywords
        # An erasure renumbers words: an index with earlier numbers is stale.
        if index is None or index.dictionary is not self.dictionary:
            index = generation.keywords = KeywordIndex(self.dictionary)
        return index

    def _catch_up(self, index: KeywordIndex, snapshot: RelationSnapshot, most: int | None = None) -> None:
        end = snapshot.length if most is None else min(snapshot.length, len(index) + most)
        while len(index) < end:
            start = len(index)
            documents = self._documents(snapshot, range(start, min(end, start + BATCH_ROWS)))
            index.append(documents, [ASKS if document.rstrip().endswith(_QUESTION) else 0 for document in documents])

    def _documents(self, snapshot: RelationSnapshot, rows: range) -> list[bytes]:
        texts = {row: snapshot.text(row) for row in rows}
        evicted = [row for row, text in texts.items() if text is EVICTED]
        live = [row for row in evicted if snapshot.live_mask[row]]
        texts.update(zip(live, self._memory.texts(snapshot, live), strict=True))
        # Readers of an older boundary may still see a deleted row.
        texts.update(self._past_texts(snapshot, [row for row in evicted if not snapshot.live_mask[row]]))
        contents = list(texts.values())
        layout, text = snapshot.layout, snapshot.relation.text
        if text is not None and (len(text.searched) > 1 or layout.codec.index(text.searched[0]) != layout.text_place):
            fields: list[Sequence[Any]] = [
                contents if layout.codec.index(name) == layout.text_place else snapshot.packed_values(name, rows)
                for name in text.searched
            ]
            return [documents_joined(parts) for parts in zip(*fields, strict=True)]
        if text is None or text.head is None:
            return [document(None, part) for part in contents]
        heads, codes = snapshot.interned(text.head), snapshot.column(text.head)[rows.start : rows.stop].tolist()
        return [document(heads[code], part) for code, part in zip(codes, contents, strict=True)]

    def _past_texts(self, snapshot: RelationSnapshot, rows: list[int]) -> dict[int, Any]:
        """Return the texts of deleted rows; nothing for rows whose texts were not kept."""
        try:
            return dict(zip(rows, self._memory.texts(snapshot, rows), strict=True))
        except NotFound:
            pass
        found: dict[int, Any] = {}
        for row in rows:
            with contextlib.suppress(NotFound):
                found[row] = self._memory.texts(snapshot, [row])[0]
        return dict.fromkeys(rows) | found
