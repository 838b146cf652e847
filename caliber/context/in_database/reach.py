"""Records that a window may recall, as conditions that a database is asked with.

``caliber.context.gather.recall.recallable`` is the same over columns of memory; a test holds both against each other.

Source: design section 5 (What a window is for).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation


def conditions_of(
    relation: Relation, tasks: Sequence[bytes] | None, own: bytes, least: TrustLabel
) -> list[dict[str, Any]]:
    """Return conditions of which a record meets exactly one if a window may recall it, and none if not.

    ``tasks`` are those in reach, None for every task; ``own`` is the window's. What is not the task's own is trusted
    ``least`` or more.
    """
    if not relation.has("trajectory_id"):  # knowledge belongs to no task
        return [{}]
    whose: dict[str, Any] = {}
    if tasks is not None:
        keys: list[uuid.UUID | None] = [uuid.UUID(bytes=key) for key in tasks]
        # A record that may belong to no task, and does not, is everybody's.
        whose["trajectory_id"] = [*keys, None] if relation.column("trajectory_id").nullable else keys
    labels = list(TrustLabel)
    trusted = labels[: labels.index(least) + 1]
    if trusted == labels:
        return [whose]
    mine = {"trajectory_id": [uuid.UUID(bytes=own)], "trust": [label for label in labels if label not in trusted]}
    return [{**whose, "trust": trusted}, mine]
