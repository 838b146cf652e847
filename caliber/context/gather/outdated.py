"""Outdated turns: statements of users about themselves and their people that are known facts no longer.

A fact that was replaced, that ended, was forgotten or taken back keeps its note, which knows the tasks that taught it.
A turn states it if, in one of these tasks, it has the words that tell the fact from others; elsewhere, all its words.
Where a database does the searching, notes that ended are not read, and nothing is marked.

Source: docs/windows.md (Recall).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.owners import user_of_row
from caliber.context.conversation import TASKS, TURNS
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.model.trajectory import TurnRole
from caliber.resident.conversation import times_of
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import visible_rows
from caliber.schema.relations import NOTE
from caliber.schema.traits import NEVER_US

_PERSON: Final = "person"
_ID_BYTES: Final = 16


def outdated(inputs: AssemblyInputs, texts: TextSource, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the mask of turns that state a fact which has ended. Shapes: rows ``int64[n]``, ``bool[n]``"""
    turns, tasks, notes = (inputs.snapshot[name] for name in (TURNS, TASKS, NOTE.name))
    out = np.zeros(len(rows), np.bool_)
    ended = _ended(inputs, notes, texts)
    if not ended:
        return out
    from caliber.text.key_sentences import terms_of  # few windows need it

    said = np.flatnonzero(turns.column("role")[rows] == turns.enum_code("role", TurnRole.USER.value))
    times, codes = times_of(turns, rows).tolist(), turns.column("trajectory_id")[rows].tolist()
    names = turns.interned("trajectory_id")
    owners = {key: _owner(tasks, key) for key in {names[codes[at]] for at in said.tolist()}}
    contents = texts.texts(turns, rows[said].tolist())
    language = inputs.config.search.keyword.language
    for at, content in zip(said.tolist(), contents, strict=True):
        task, text = (
            names[codes[at]],
            content if isinstance(content, str) else bytes(content).decode("utf-8", "replace"),
        )
        words = terms_of(text, language)
        out[at] = any(
            times[at] < until and terms_of(own if task in taught else fact, language) <= words
            for fact, own, until, taught in ended
            if task in taught or owners[task] in [_owner(tasks, key) for key in taught]
        )
    return out


def _ended(
    inputs: AssemblyInputs, notes: RelationSnapshot, texts: TextSource
) -> list[tuple[str, str, int, list[bytes]]]:
    """Return each fact about a person that has ended, its own words, its end, and the tasks that taught it."""
    kind = notes.interned_codes("entity_type").get(_PERSON)
    if kind is None:
        return []
    readers = inputs.readers.over(notes)
    facts = notes.live_mask & (notes.column("entity_type") == kind)
    facts = facts if readers is None else facts & readers.mask()
    holds = visible_rows(notes, inputs.as_of_us, readers)
    begun = notes.column("valid_from") <= inputs.as_of_us
    rows = np.flatnonzero(facts & begun & ~holds)
    if not len(rows):
        return []
    ends, changed = notes.column("valid_until")[rows], notes.column("updated_at")[rows]
    ends = np.where(ends == NEVER_US, changed, ends).tolist()
    entities = notes.column("entity")
    current = np.flatnonzero(facts & holds)
    held = set(zip(entities[current].tolist(), texts.texts(notes, current.tolist()), strict=True))
    stored = zip(
        entities[rows].tolist(),
        texts.texts(notes, rows.tolist()),
        ends,
        notes.packed_values("source_trajectory_ids", rows.tolist()),
        strict=True,
    )
    return [
        (fact, _own_words(fact), until, [tasks[at : at + _ID_BYTES] for at in range(0, len(tasks), _ID_BYTES)])
        for entity, fact, until, tasks in stored
        if (entity, fact) not in held
    ]


def _own_words(fact: str) -> str:
    """Return the words of a fact that tell it from others: names and numbers, else the last one."""
    words = fact.split()
    return " ".join([word for word in words if not word[0].islower()] or words[-1:])


def _owner(tasks: RelationSnapshot, key: bytes) -> bytes | None:
    row = tasks.find(key)
    return None if row < 0 else user_of_row(tasks, row)
