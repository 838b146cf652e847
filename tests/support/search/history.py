"""Content of a store at each of its positions, from the changes it recorded; for stores that only grow."""

from __future__ import annotations

import random
import uuid
from typing import Any

from support.inspection import inspect
from support.search.checks import language_of
from support.search.twin import World, link_turns, world_of

from caliber.embedding.service import Embeddings
from caliber.knowledge import notes
from caliber.knowledge.notes import NewNote
from caliber.model.knowledge import NoteType
from caliber.schema.relations import BY_NAME
from caliber.storage.write.changes import unpack_changes

_CONSONANTS, _VOWELS = "bcdfglmnprst", "aeiou"


class Texts:
    """Texts of words as frequent as words are, from a seed."""

    def __init__(self, seed: int, words: int = 3_000, distinct: int = 1_000_000) -> None:
        """``distinct`` bounds the numbers that texts end with: words that hardly another text has."""
        self._distinct = distinct
        self._random = random.Random(seed)
        choose = self._random.choice
        self._words = [
            "".join(choose(_CONSONANTS) + choose(_VOWELS) for _ in range(self._random.randint(2, 4)))
            for _ in range(words)
        ]
        self.made = 0

    def words(self, count: int) -> str:
        last = len(self._words) - 1
        return " ".join(self._words[min(int(self._random.paretovariate(0.7)) - 1, last)] for _ in range(count))

    def questions(self, count: int) -> list[str]:
        """Return questions of every form."""
        forms = ("{}", "{}", "what is {} of thing 7?", '"{}"', "{}*", "when did {} in May 2023", "")
        return [forms[at % len(forms)].format(self.words(1 + at % 5)) for at in range(count)]

    def note(self) -> NewNote:
        self.made += 1
        return NewNote(
            entity=f"thing {self.made % 50}",
            entity_type="topic",
            note_type=NoteType.FACT,
            content=f"{self.words(12)} n{self.made % self._distinct}",
            confidence=0.9,
            token_count=14,
        )


def add_notes(memory: Any, texts: Texts, count: int) -> list[uuid.UUID]:
    """Add notes in one commit; return their ids."""
    new = [texts.note() for _ in range(count)]
    added: list[uuid.UUID] = inspect(memory).write(
        lambda uow: [notes.add_note(uow, note)[0].note_id for note in new]
    )  # fmt: skip
    return added


class History:
    """Every record of a store with the position at which it came; nothing may have been changed or deleted."""

    def __init__(self, memory: Any) -> None:
        store, embedder = inspect(memory).store, inspect(memory).part(Embeddings).embedder
        language = language_of(memory.config.search.keyword.language)
        came: dict[tuple[int, int], int] = {}
        with store.read() as session:
            for sequence, _, entries in session.run(store.statements["change.since"], (0,)):
                for code, _, ordinal, _ in unpack_changes(entries):
                    came.setdefault((code, ordinal), sequence)
            ordinals = {
                name: [row[0] for row in session.run(store.plans[name].page, (-1, 10_000_000))]
                for name in ("note", "turn", "embedding")
            }
        self._world = world_of(memory.storage, None, language)
        by_id = {record.id: record for record in self._world.records}
        self._came = dict.fromkeys(self._world.records, 0)
        for name, plural in (("note", "notes"), ("turn", "turns")):
            code = BY_NAME[name].code
            for ordinal, entity in zip(ordinals[name], getattr(memory.storage, plural).all(), strict=True):
                self._came[by_id[getattr(entity, f"{name}_id")]] = came[code, ordinal]
        self._vectors: list[tuple[int, Any, bytes]] = []
        if embedder is not None:
            code = BY_NAME["embedding"].code
            for ordinal, row in zip(ordinals["embedding"], memory.storage.embeddings.all(), strict=True):
                if row.space_id == embedder.space.space_id:
                    self._vectors.append((came[code, ordinal], by_id[row.owner_id], row.vector))

    def at(self, sequence: int) -> World:
        """Return the contents of the store at a position."""
        records = [record for record, came in self._came.items() if came <= sequence]
        link_turns(records)
        for record in records:
            record.vectors.clear()
        for came, owner, vector in self._vectors:
            if came <= sequence:
                owner.add_vector(vector)
        return World(records, self._world.edges, {})
