"""Choice of the facts and preferences that a window always holds about the user of its task.

The choice and its order depend on the facts and on the budget alone, so that the text stays in the prefix that
providers cache: vital facts first, then other facts, then tastes, the newest first of each. Source: docs/windows.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import VALUE
from caliber.context.gather.candidates import Members, Part, made_part
from caliber.context.gather.scores import Scored
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan
from caliber.context.texts import about_line
from caliber.model.knowledge import NoteType
from caliber.model.learning import PersonAttribute
from caliber.model.trust import TrustLabel
from caliber.resident.mirror import RelationSnapshot

_VITAL = (PersonAttribute.ALLERGY, PersonAttribute.DIET, PersonAttribute.HEALTH, "safety")
"""Tags of facts that must be known before the user is advised: attributes of learnt ones, or an application's tag."""
_MOST = 256
"""The facts whose texts are read for one window: no section holds more of them."""


def about_user(inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, texts: TextSource) -> Part | None:
    """Return the facts about the task's user, as many as the floor of their section holds; None without a section."""
    section = plan.about
    if section is None or section.source not in members.knowledge:
        return None
    owners = inputs.snapshot[plan.records[section.source].name]
    rows = _ordered(owners, np.flatnonzero(members.knowledge[section.source].visible & _of(owners, inputs)))
    left = int(section.floor * plan.longest(plan.budget(inputs.max_tokens))) - plan.overheads[section.index]
    lengths = plan.measure([about_line(text) for text in texts.texts(owners, rows.tolist())]) + plan.separator_length
    chosen = []
    for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
        if length <= left:
            chosen.append(row)
            left -= length
    rows = np.array(chosen, np.int64)
    part = made_part(section.source, section.index, owners, rows, Scored(np.ones(len(rows), np.float32)))
    return replace(part, columns={VALUE: np.arange(len(rows), 0, -1)})


def _of(owners: RelationSnapshot, inputs: AssemblyInputs) -> NDArray[np.bool_]:
    """Return the facts and preferences about the user that are trusted enough to be recalled."""
    erase, trust = owners.relation.erase, owners.relation.trust
    assert erase is not None
    assert erase.kind is not None
    assert trust is not None

    def among(column: str, codes: list[int]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.isin(owners.column(column), [code for code in codes if code >= 0])
        return found

    known = owners.interned_codes(erase.names[0])
    kinds = owners.interned_codes(erase.kind)
    out = among(erase.names[0], [known.get(name, -1) for name in inputs.user_names])
    out &= among(erase.kind, [kinds.get(kind, -1) for kind in erase.people])
    out &= among("note_type", [owners.enum_code("note_type", each) for each in (NoteType.FACT, NoteType.PREFERENCE)])
    trusted = [label for label in TrustLabel if label.distrust <= inputs.config.recall.trust.distrust]
    return out & among(trust.column, [owners.enum_code(trust.column, label) for label in trusted])


def _ordered(owners: RelationSnapshot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return facts in the order in which they enter."""
    if not len(rows):
        return rows
    tags = owners.packed_values("tags", rows.tolist())
    vital = np.array([any(f'"{tag}"' in (text or "") for tag in _VITAL) for text in tags])
    taste = owners.column("note_type")[rows] == owners.enum_code("note_type", NoteType.PREFERENCE)
    made = owners.column(owners.relation.times.entered)[rows]
    order = np.lexsort((-owners.column("ordinal")[rows], -made, np.where(vital, 0, 1 + taste)))
    return rows[order[:_MOST]]
