"""A summary of turns goes in the transaction that deletes or changes one of them; a worker makes it anew.

Whoever makes a summary locks its turns first: of two that meet, the second one sees what the first one did.
Source: docs/decisions/0192.
"""

from __future__ import annotations

from typing import Final

from caliber.schema.relations import TURN
from caliber.storage.compile.codec import Row, codec_of

OVERLAPPING: Final = "turn_summary.overlapping"
"""Gives the summaries of a scope that have a turn between two numbers."""
_SCOPE: Final = codec_of(TURN).index("scope_id")
_NUMBER: Final = codec_of(TURN).index("turn_number")
_SAID: Final = tuple(
    codec_of(TURN).index(name) for name in (*TURN.content_columns, "trust", "trajectory_id", "scope_id", "turn_number")
)


def outdated_by(old: Row, new: Row | None) -> list[tuple[bytes, int, int]]:
    """Return where summaries no longer hold once a turn was changed or deleted, as ``OVERLAPPING`` asks for them."""
    if new is not None and all(old[place] == new[place] for place in _SAID):
        return []
    places = dict.fromkeys((row[_SCOPE], row[_NUMBER]) for row in (old, new) if row is not None)
    return [(scope_id, number, number) for scope_id, number in places]
