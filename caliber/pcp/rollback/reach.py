"""Records within reach of a recovery, by the trait ``Recovers`` of their relations: in memory, and in a transaction.

A checkpoint keeps the ids of those in use, and the version and end of those that were changed before. So a recovery
knows which came later, and what was done to the others since.

Source: C-266 to C-272, K-088; docs/pcp.md.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from caliber.engine.engine import Engine
from caliber.model.trajectory import Scope, Trajectory
from caliber.pcp.checkpoints import CheckpointState, RecordsInUse, ranges_of
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot, active_rows
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import CONFLICT, SCOPE, TRAJECTORY, TURN
from caliber.schema.traits import NEVER_US
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

ALL: Final = 2**31 - 1
"""The limit of a path that has one."""
_KEY_BYTES: Final = 16


def reached(catalog: Catalog) -> Iterator[Relation]:
    """Yield the relations whose records follow a recovery of their task."""
    return (relation for relation in catalog.relations if relation.recovered is not None)


# --- as a checkpoint keeps them --------------------------------------------------------------------


def state_of(engine: Engine, snapshot: ResidentSnapshot, trajectory: Trajectory) -> CheckpointState:
    """Return the state of a task as memory has it, and of the tasks below it."""
    own, *below = (_own_state(engine, snapshot, each) for each in _with_tasks_below(engine, snapshot, trajectory))
    keys = frozenset().union(*(used.keys for _, state in (own, *below) for used in state.records.values()))
    children = {task.trajectory_id.bytes: state for task, state in below}
    return dataclasses.replace(own[1], conflicts=_conflicts(snapshot, keys), below=children)


def _with_tasks_below(engine: Engine, snapshot: ResidentSnapshot, trajectory: Trajectory) -> Iterator[Trajectory]:
    """Yield a task and those below it, each once: only a damaged store has a chain that comes back to itself."""
    tasks, waiting, seen = snapshot[TRAJECTORY.name], [trajectory], {trajectory.trajectory_id}
    while waiting:
        task = waiting.pop()
        yield task
        for number in tasks.group("parent_trajectory_id", task.trajectory_id.bytes).tolist():
            child: Trajectory = engine.memory.entity(tasks, number)
            if child.trajectory_id not in seen:
                seen.add(child.trajectory_id)
                waiting.append(child)


def _own_state(
    engine: Engine, snapshot: ResidentSnapshot, trajectory: Trajectory
) -> tuple[Trajectory, CheckpointState]:
    """Return a task and its state, without conflicts and tasks below."""
    search, key = engine.part(SearchEngine), trajectory.trajectory_id
    rows = snapshot[SCOPE.name]
    scopes: list[Scope] = [
        engine.memory.entity(rows, number) for number in rows.group("trajectory_id", key.bytes).tolist()
    ]
    gone = [scope.scope_id for scope in scopes if scope.rolled_back_at is not None]
    rolled_back: list[int] = []
    if gone:
        turns = search.around(snapshot, key, gone)[TURN.name]
        code = turns.interned_codes("trajectory_id").get(key.bytes)
        of_task = turns.live_mask & ~turns.standing_mask & (turns.column("trajectory_id") == code)
        rolled_back = np.sort(turns.column("turn_number")[of_task]).tolist()
    relations = list(reached(engine.store.catalog))
    if search.records is None:
        used = {each.name: _resident(snapshot[each.name], key.bytes) for each in relations}
    else:
        used = engine.read(lambda uow: {each.name: _stored(uow, each, key.bytes) for each in relations})
    return trajectory, CheckpointState(
        trajectory_status=trajectory.status,
        scope_count=1 + max((scope.sequence_number for scope in scopes), default=-1),
        open_scopes=tuple(sorted(scope.sequence_number for scope in scopes if scope.is_open)),
        turn_number=trajectory.turn_count,
        rolled_back_turns=tuple(ranges_of(rolled_back)),
        rolled_back_scopes=frozenset(scope.sequence_number for scope in scopes if scope.rolled_back_at is not None),
        records=used,
        conflicts={},
        below={},
        context_snapshot={},
    )


def _conflicts(snapshot: ResidentSnapshot, keys: frozenset[bytes]) -> dict[bytes, bool]:
    """Return the conflicts of which a side is among keys, and whether each is open."""
    conflicts = snapshot[CONFLICT.name]
    numbers = conflicts.rows()
    if not len(numbers):
        return {}
    is_open = (conflicts.column("resolved_at")[numbers] == NEVER_US).tolist()
    sides = [conflicts.packed_values(name, numbers.tolist()) for name in ("a_id", "b_id")]
    return {
        conflicts.entity_id(number).bytes: standing
        for number, standing, one, other in zip(numbers.tolist(), is_open, *sides, strict=True)
        if one in keys or other in keys
    }


def _resident(owners: RelationSnapshot, task: bytes) -> RecordsInUse:
    relation = owners.relation
    group = drawn_rows(owners, task) if relation.rights.task is None else owners.group(relation.rights.task, task)
    numbers = active_rows(owners, group)
    keys = _keys(owners, numbers)
    unused = () if relation.rights.task is None else _keys(owners, np.setdiff1d(group, numbers))
    versions = owners.column("version")[numbers].tolist()
    until = relation.times.until
    ends = [NEVER_US] * len(keys) if until is None else owners.column(until)[numbers].tolist()
    return RecordsInUse.of(zip(keys, versions, (None if end == NEVER_US else end for end in ends), strict=True), unused)


def _keys(owners: RelationSnapshot, numbers: NDArray[np.int64]) -> list[bytes]:
    return [pair.tobytes() for pair in owners.ties()[numbers].astype(">u8")]


def _stored(uow: UnitOfWork, relation: Relation, task: bytes) -> RecordsInUse:
    found = list(entries_of(uow, relation, task))
    unused = [each.key for each in found if not each.active and relation.rights.task is not None]
    return RecordsInUse.of(((each.key, each.version, each.until) for each in found if each.active), unused)


class Entry(NamedTuple):
    """A row, with what decides about it: its key, version, end, whether it is in use, and its mark."""

    key: bytes
    version: int
    until: int | None
    active: bool
    marked: int | None
    row: Row


def entries_of(uow: UnitOfWork, relation: Relation, task: bytes) -> Iterator[Entry]:
    """Yield the records of a task, or drawn from it, as a transaction has them."""
    assert relation.recovered is not None
    if relation.rights.task is None:
        codec, head = codec_of(relation), 0 if relation.ordinal else None
        rows = [codec.encode(each, head) for each in uow.drawn_from(relation, task)]
    else:
        path = next(path for path in relation.paths if path.by == (relation.rights.task,))
        rows = uow.path_rows(relation, path.name, task, *((ALL,) if path.limited else ()))
    index = codec_of(relation).index
    key, version, mark = index(relation.key[0]), index("version"), index(relation.recovered)
    active = [index(name) for name in relation.active]
    until = None if relation.times.until is None else index(relation.times.until)
    for row in rows:
        in_use = all(row[place] is None for place in active)
        end = None if until is None else row[until]
        yield Entry(row[key], row[version], end, in_use, row[mark], row)


# --- records that were drawn from a task -------------------------------------------------------------


class _Drawn:
    __slots__ = ("by_task", "length")

    def __init__(self) -> None:
        self.by_task: dict[bytes, list[int]] = {}
        self.length = 0


_drawn: WeakKeyDictionary[Generation, _Drawn] = WeakKeyDictionary()
_lock = threading.Lock()


def drawn_rows(owners: RelationSnapshot, task: bytes) -> NDArray[np.int64]:
    """Return the live rows that name a task among their sources. Shapes: ``int64[n]``

    A row never changes, so each is read once: the next call reads those that came since.
    """
    sources = None if owners.relation.erase is None else owners.relation.erase.sources
    assert sources is not None  # only relations that list their sources are asked
    with _lock:
        known = _drawn.setdefault(owners.generation, _Drawn())
        numbers = range(known.length, owners.length)
        for number, value in zip(numbers, owners.packed_values(sources, numbers), strict=True):
            for key in {value[at : at + _KEY_BYTES] for at in range(0, len(value or b""), _KEY_BYTES)}:
                known.by_task.setdefault(key, []).append(number)
        known.length = max(known.length, owners.length)
        rows = np.array(known.by_task.get(task, ()), np.int64)
    rows = rows[rows < owners.length]
    return rows[owners.live_mask[rows]]
