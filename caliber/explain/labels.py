"""Labels of candidates that a window left out: the beginnings of their texts, as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from caliber.config import CaliberConfig
from caliber.context.columns import ORDINAL, SOURCE, entered
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.record.record import unpack_record
from caliber.context.texts import text_of_content, turn_of_content
from caliber.explain.replayer import plan_for

if TYPE_CHECKING:
    from caliber.search.stored_content import StoredContents

LABEL_CHARS: Final = 160


def labels_of(record: bytes, config: CaliberConfig, source: StoredContents) -> dict[int, str]:
    """Return the beginnings of the texts of the records that a window left out, by rank."""
    kept = unpack_record(record)
    plan, ranked = plan_for(kept, config), kept.ranked
    out: dict[int, str] = {}
    left_out = np.ones(len(ranked), bool)
    left_out[entered(kept.codes)] = False
    for place in np.flatnonzero(left_out).tolist():
        number = int(ranked[SOURCE][place])
        relation = kept.facts.relation_of(number)
        content = None if relation is None else source.present(relation, int(ranked[ORDINAL][place]))
        if content is None:
            continue
        spoken = number in (SPOKEN, PASSAGE)
        text = turn_of_content(content).line if spoken else text_of_content(plan.records[number], content)
        out[place] = beginning(text)
    return out


def beginning(text: str) -> str:
    """Return the beginning of a text, as one line."""
    words = " ".join(text.split())
    return words if len(words) <= LABEL_CHARS else words[: LABEL_CHARS - 1].rstrip() + "…"
