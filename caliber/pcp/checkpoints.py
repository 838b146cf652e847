"""Checkpoints: the packed state of a task at one moment, and reading it with a check of its hash.

A state holds what restoring needs and no texts: records are marked when they are rolled back, never deleted, so their
numbers and ids suffice. The assembled window is kept as its sections and the sources of each.

Source: C-266 to C-270, K-023, K-089.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from caliber.kernels import uuid7
from caliber.model.errors import StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import Checkpoint
from caliber.model.references import CheckpointId
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, Trajectory, TrajectoryStatus
from caliber.model.windows import ContextWindow
from caliber.schema.erase import CHECKPOINT_HEAD
from caliber.schema.relations import CHECKPOINT
from caliber.storage.compile.codec import UNREADABLE, dump_json
from caliber.storage.write.unit_of_work import UnitOfWork

CODEC_JSON = "sha256+json"
CODEC_ZLIB = "sha256+json+zlib"
_MAX_STATE_BYTES: Final = 64 << 20
_HASH_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class RecordsInUse:
    """The records of one relation that were in use: their keys, and version and end of those that had changed.

    ``unused`` are keys of records of the task that were there and out of use: neither came later.
    Units: ends in µs.
    """

    keys: frozenset[bytes]
    changed: Mapping[bytes, tuple[int, int | None]]
    unused: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, records: Iterable[tuple[bytes, int, int | None]], unused: Iterable[bytes] = ()) -> RecordsInUse:
        """Return it for keys, versions and ends, and the keys of records that were out of use."""
        found = list(records)
        changed = {key: (version, until) for key, version, until in found if version != 1 or until is not None}
        return cls(frozenset(key for key, _, _ in found), changed, frozenset(unused))

    def wanted(self, key: bytes) -> tuple[int, int | None]:
        """Return the version and the end that a record in use had."""
        return self.changed.get(key, (1, None))

    def as_json(self) -> list[Any]:
        """Return it as JSON has it."""
        changed = sorted([key.hex(), version, until] for key, (version, until) in self.changed.items())
        return [sorted(key.hex() for key in self.keys), changed, sorted(key.hex() for key in self.unused)]

    @classmethod
    def from_json(cls, value: Any) -> RecordsInUse:
        """Return it from JSON."""
        keys, changed, unused = value
        ends = {bytes.fromhex(key): (int(version), until) for key, version, until in changed}
        return cls(frozenset(map(bytes.fromhex, keys)), ends, frozenset(map(bytes.fromhex, unused)))


NOTHING: Final = RecordsInUse(frozenset(), {})


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The state of a task when a checkpoint was made, and of the tasks below it. Source: C-268.

    ``scope_count`` scopes existed, those numbered ``open_scopes`` were open. Turns below ``turn_number`` existed.
    ``rolled_back_turns`` (ranges, the last included) and ``rolled_back_scopes`` were not in use. ``records`` are the
    others, by relation. ``conflicts`` are those with a side in use, also of a task below, and whether they were open.
    ``below`` are the tasks below at any depth, each without a ``below`` of its own.
    """

    trajectory_status: TrajectoryStatus
    scope_count: int
    open_scopes: tuple[int, ...]
    turn_number: int
    rolled_back_turns: tuple[tuple[int, int], ...]
    rolled_back_scopes: frozenset[int]
    records: Mapping[str, RecordsInUse]
    conflicts: Mapping[bytes, bool]
    below: Mapping[bytes, CheckpointState]
    context_snapshot: Mapping[str, Any]

    @property
    def is_empty(self) -> bool:
        """True where nothing was in use."""
        turns = self.turn_number - sum(last - first + 1 for first, last in self.rolled_back_turns)
        return not turns and not any(each.keys for each in self.records.values())

    def in_use(self, relation: str) -> RecordsInUse:
        """Return the records of a relation that were in use."""
        return self.records.get(relation, NOTHING)

    def had_open(self, scope: Scope) -> bool:
        """Return whether a scope existed and was open."""
        return scope.sequence_number in self.open_scopes

    def used(self, number: int) -> bool:
        """Return whether the turn of a number existed and was in use."""
        if number >= self.turn_number:
            return False
        return not any(first <= number <= last for first, last in self.rolled_back_turns)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "trajectory_status": self.trajectory_status.value,
            "scope_count": self.scope_count,
            "open_scopes": list(self.open_scopes),
            "turn_number": self.turn_number,
            "rolled_back_turns": self.rolled_back_turns,
            "rolled_back_scopes": sorted(self.rolled_back_scopes),
            "records": {name: used.as_json() for name, used in self.records.items() if used.keys or used.unused},
            "conflicts": {key.hex(): is_open for key, is_open in self.conflicts.items()},
            "below": {key.hex(): state.as_json() for key, state in self.below.items()},
            "context_snapshot": dict(self.context_snapshot),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> CheckpointState:
        """Return it from JSON."""
        return cls(
            trajectory_status=TrajectoryStatus(state["trajectory_status"]),
            scope_count=int(state["scope_count"]),
            open_scopes=tuple(state["open_scopes"]),
            turn_number=int(state["turn_number"]),
            rolled_back_turns=tuple((int(first), int(last)) for first, last in state["rolled_back_turns"]),
            rolled_back_scopes=frozenset(map(int, state["rolled_back_scopes"])),
            records={name: RecordsInUse.from_json(used) for name, used in state["records"].items()},
            conflicts={bytes.fromhex(key): bool(is_open) for key, is_open in state["conflicts"].items()},
            below={bytes.fromhex(key): cls.from_json(each) for key, each in state["below"].items()},
            context_snapshot=state["context_snapshot"],
        )


NEVER_BEGUN: Final = CheckpointState(TrajectoryStatus.SUSPENDED, 0, (), 0, (), frozenset(), {}, {}, {}, {})
"""The state of a task that had not been started: nothing of it is in use."""


def window_as_json(window: ContextWindow) -> dict[str, Any]:
    """Return the part of a window that a checkpoint keeps: its figures, its sections and their sources, no texts."""
    return {
        "window_id": str(window.window_id),
        "assembled_at": window.assembled_at.isoformat(),
        "max_tokens": window.max_tokens,
        "used_tokens": window.used_tokens,
        "config_hash": window.config_hash,
        "position": [window.position.epoch, window.position.sequence],
        "sections": [
            {
                "type": section.section_type.value,
                "name": section.name,
                "token_count": section.token_count,
                "priority": section.priority,
                "sources": [
                    [ref.source_type.value, None if ref.id is None else str(ref.id), ref.version]
                    for ref in section.sources
                ],
            }
            for section in window.sections
        ],
    }


def ranges_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers, the last included, among ascending ones."""
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return out


def build_state(state: CheckpointState, window: ContextWindow, compress: bool) -> tuple[str, bytes]:
    """Return codec and bytes of a checkpoint's state (C-268).

    One that is longer than a reader unpacks is kept as it is.
    """
    raw = dump_json(state.as_json() | {"context_snapshot": window_as_json(window)}).encode()
    compress = compress and len(raw) <= _MAX_STATE_BYTES
    body = zlib.compress(raw) if compress else raw
    return CODEC_ZLIB if compress else CODEC_JSON, CHECKPOINT_HEAD + hashlib.sha256(body).digest() + body


def read_state(checkpoint: Checkpoint) -> CheckpointState:
    """Return a checkpoint's state.

    Raises: StorageError when it is damaged, or was written by another version in a form that restores nothing.
    """
    if checkpoint.codec not in (CODEC_JSON, CODEC_ZLIB):
        raise StorageError(f"checkpoint {checkpoint.checkpoint_id} has the unknown codec {checkpoint.codec!r}")
    start = len(CHECKPOINT_HEAD) + _HASH_BYTES
    digest, body = checkpoint.state[len(CHECKPOINT_HEAD) : start], checkpoint.state[start:]
    if checkpoint.state[: len(CHECKPOINT_HEAD)] != CHECKPOINT_HEAD or hashlib.sha256(body).digest() != digest:
        raise _damaged(checkpoint)
    try:
        raw = zlib.decompressobj().decompress(body, _MAX_STATE_BYTES) if checkpoint.codec == CODEC_ZLIB else body
        return CheckpointState.from_json(json.loads(raw))
    except UNREADABLE as error:
        raise _damaged(checkpoint) from error


def _damaged(checkpoint: Checkpoint) -> StorageError:
    return StorageError(f"the state of checkpoint {checkpoint.checkpoint_id} is damaged; recover from another one")


def insert_checkpoint(
    uow: UnitOfWork,
    trajectory: Trajectory,
    scope_id: uuid.UUID | None,
    codec: str,
    state: bytes,
    *,
    keep: int,
    recovered_to: uuid.UUID | None = None,
) -> Checkpoint:
    """Store a recoverable checkpoint and drop all but the newest ``keep`` of its trajectory (C-266, K-092).

    Those that recoveries make are counted apart; the ones that recoveries went to stay as long as they do.
    """
    checkpoint = Checkpoint(
        checkpoint_id=CheckpointId(uuid7()),
        trajectory_id=trajectory.trajectory_id,
        turn_number=trajectory.turn_count,
        codec=codec,
        state=state,
        recoverable=True,
        created_at=from_us(uow.now_us),
        scope_id=scope_id,  # type: ignore[arg-type]
        recovered_to=None if recovered_to is None else CheckpointId(recovered_to),
    )
    ordinal = uow.insert(CHECKPOINT, checkpoint)
    uow.execute("checkpoint.prune", trajectory.trajectory_id.bytes, keep, ordinal)
    return checkpoint
