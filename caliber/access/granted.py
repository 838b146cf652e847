"""Lookup of the tasks, sessions and records that a reader was granted, in resident memory. Source: C-422."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np

from caliber.model.grants import Grant, Right
from caliber.model.time import to_us
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations import GRANT
from caliber.storage.compile.codec import codec_of

NEVER: Final = 2**63 - 1


class Granted(NamedTuple):
    """The ids of what a reader was granted, until ``until_us`` or until a task is added, perhaps to a session."""

    keys: frozenset[bytes]
    until_us: int


NOTHING: Final = Granted(frozenset(), NEVER)


def is_active(grant: Grant, now_us: int) -> bool:
    """Return whether a grant gives its right at an instant: until it ends or is revoked."""
    return grant.revoked_at is None and (grant.until is None or to_us(grant.until) > now_us)


def granted_to(
    grants: RelationSnapshot, tasks: RelationSnapshot, ids: Collection[bytes], now_us: int, *, writing: bool
) -> Granted:
    """Return the rights that grants give the entities ``ids`` at an instant; with ``writing`` only those to write."""
    keys: set[bytes] = set()
    until_us = NEVER
    decode, to = codec_of(GRANT).decode, grants.interned_codes("to_id")
    for code in [to[key] for key in ids if key in to]:
        for row in np.flatnonzero((grants.column("to_id") == code) & grants.live_mask).tolist():
            grant: Grant = decode(grants.packed(row))
            if not is_active(grant, now_us) or (writing and grant.right is not Right.WRITE):
                continue
            keys.add(grant.on.id.bytes)
            if grant.until is not None:
                until_us = min(until_us, to_us(grant.until))
    for key in tuple(keys):  # of a session the tasks
        keys |= {tasks.entity_id(int(task)).bytes for task in tasks.group("session_id", key)}
    return Granted(frozenset(keys), until_us)
