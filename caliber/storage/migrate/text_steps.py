"""Full-text changes of each step of a memory's migration, and their statements. Source: docs/decisions/0160, 0082."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from caliber.storage.sql.full_text import Memories, packed_memories, text_table_of

if TYPE_CHECKING:
    from caliber.storage.migrate.memory_steps import MemoryStep


class TextStep(NamedTuple):
    """The change to the index of one memory. ``table`` is the beginning of its tables' names."""

    table: str
    was: bool
    """True when the index held it before."""
    records: str | None
    """The table of the records whose words it holds from now on; None when it holds none."""
    kept: str
    """The memories of the index afterwards, as the store keeps them, in quotes."""


class TextWords(Protocol):
    """The statements of one database for a step: before its own statements, and after them."""

    def first(self, step: TextStep) -> tuple[str, ...]:
        """Return the statements before those of the step."""
        ...

    def then(self, step: TextStep) -> tuple[str, ...]:
        """Return the statements after those of the step. Existing records make the index incomplete."""
        ...


class TextSteps:
    """Follows steps of memories of a store whose index holds ``memories``; None for a store without an index."""

    def __init__(self, memories: Memories | None, words: TextWords) -> None:
        self._memories = None if memories is None else dict(memories)
        self._words = words

    def with_texts(self, step: MemoryStep) -> MemoryStep:
        """Return a step extended by its full-text statements."""
        found = self._follow(step)
        if found is None:
            return step
        return replace(step, statements=(*self._words.first(found), *step.statements, *self._words.then(found)))

    def _follow(self, step: MemoryStep) -> TextStep | None:
        index = self._memories
        relation = step.relation
        if index is None:
            return None
        code = step.row.code
        before, after = index.pop(code, ()), () if relation is None or relation.text is None else relation.text.searched
        if after:
            index[code] = after
        if before == after:
            return None
        records = relation.name if relation is not None and after else None
        return TextStep(
            text_table_of(code), bool(before), records, "'" + packed_memories(index).replace("'", "''") + "'"
        )
