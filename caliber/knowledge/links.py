"""Facet ``memory.links``: typed links between records of any kind, made, listed and followed.

Source: B-022 to B-026, M-092; docs/api.md.
"""

from __future__ import annotations

import builtins
import dataclasses
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Final

from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import CircularReference, ConstraintViolation, InvalidValue
from caliber.model.knowledge import Edge, EdgeRelation, Neighbour
from caliber.model.references import EdgeId, EntityRef, Id, kind_named
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import EDGE
from caliber.schema.validity import is_valid
from caliber.search.service import Searching
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

SYMMETRIC: Final = frozenset((EdgeRelation.CONTRADICTS, EdgeRelation.RELATED_TO, EdgeRelation.LINK))
"""Relations that hold both ways: one link stands for both."""
ACYCLIC: Final = frozenset((EdgeRelation.SUPERSEDES, EdgeRelation.CAUSED_BY))
_MOST_STEPS: Final = 10_000
"""Links followed for one answer."""


class LinkedRecords:
    """The links of records, for one principal. Safe to share between threads.

    A record is named by its id, or by ``EntityRef`` of its kind and id.
    """

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine, self._principal, self._searching = engine, principal, searching

    def add(
        self,
        source: Id | EntityRef,
        relation: EdgeRelation | str,
        target: Id | EntityRef,
        *,
        weight: float = 1.0,
        guard: LockToken | None = None,
    ) -> Edge:
        """Link a record that the principal may write to with one that it may see; the link that is there is returned.

        ``relation`` says what the source is to the target; ``contradicts``, ``related_to`` and ``link`` hold both ways.
        ``weight``, from 0 to 1, is how much a search takes from one record to the other; another weight replaces it.

        Raises: InputError kinds, NotFound, PermissionDenied, ConstraintViolation (a record that is no longer in use),
            CircularReference (``supersedes`` and ``caused_by`` lead in no circle), LockExpired.
        """
        kind = arguments.as_enum(relation, EdgeRelation, "relation")
        share = arguments.as_fraction(weight, "weight")
        ends = self._reference(source, "source"), self._reference(target, "target")
        if ends[0].id == ends[1].id:
            raise InvalidValue(field="target", reason="is the source: a record is not linked to itself")

        def work(uow: UnitOfWork) -> Edge:
            uow.guard(guard, self._principal)
            self._check_end(uow, ends[0], writes=True)
            self._check_end(uow, ends[1], writes=False)
            if kind in ACYCLIC:
                uow.serialize(f"links {kind.value}")
            elif kind in SYMMETRIC:
                uow.serialize("link " + " ".join(sorted(end.id.hex for end in ends)))
            known = self._between(uow, *ends, kind)
            if known is not None and known.weight == share:
                return known
            if known is not None:
                changed: Edge = uow.update(EDGE, dataclasses.replace(known, weight=share, base_weight=share))
                return changed
            if kind in ACYCLIC:
                self._check_circle(uow, *ends, kind)
            now = from_us(uow.now_us)
            edge = Edge(EdgeId(uuid7()), *ends, kind, share, share, now, auto_linked=False, user_created=True)
            uow.insert(EDGE, edge)
            return edge

        return self._engine.write(work)

    def remove(
        self,
        source: Id | EntityRef,
        relation: EdgeRelation | str,
        target: Id | EntityRef,
        *,
        guard: LockToken | None = None,
    ) -> bool:
        """Remove a link; return whether there was one. Raises: as ``add``."""
        kind = arguments.as_enum(relation, EdgeRelation, "relation")
        ends = self._reference(source, "source"), self._reference(target, "target")

        def work(uow: UnitOfWork) -> bool:
            uow.guard(guard, self._principal)
            self._check_end(uow, ends[0], writes=True, retired=True)
            known = self._between(uow, *ends, kind)
            if known is None:
                return False
            uow.update(EDGE, dataclasses.replace(known, removed_at=from_us(uow.now_us)))
            return True

        return self._engine.write(work)

    def list(self, record: Id | EntityRef, *, relation: EdgeRelation | str | None = None) -> builtins.list[Edge]:
        """Return the links from and to a record whose other end the principal may see, the oldest first.

        Raises: NotFound, InputError kinds.
        """
        key, kind = self._reference(record, "record"), self._kind(relation)

        def work(uow: UnitOfWork) -> builtins.list[Edge]:
            self._check_end(uow, key, writes=False, retired=True)
            return sorted(self._edges(uow, key.id, kind), key=lambda edge: (edge.created_at, edge.edge_id))

        return self._engine.read(work)

    def neighbours(
        self,
        record: Id | EntityRef,
        *,
        relation: EdgeRelation | str | None = None,
        depth: int = 1,
        limit: int | None = None,
    ) -> builtins.list[Neighbour]:
        """Return the records that links lead to from a record, in either direction, the nearest first.

        Each comes once, with its distance in links and the link by which it was reached first.

        Raises: NotFound, InputError kinds; InvalidValue where more than 10,000 links would be followed.
        """
        start, kind = self._reference(record, "record"), self._kind(relation)
        furthest = arguments.as_whole(depth, "depth", 1)
        most = None if limit is None else arguments.as_whole(limit, "limit", 1)

        def work(uow: UnitOfWork) -> builtins.list[Neighbour]:
            self._check_end(uow, start, writes=False, retired=True)
            seen, out, steps = {start.id}, builtins.list[Neighbour](), 0
            waiting = deque([(start.id, 0)])
            while waiting and (most is None or len(out) < most):
                key, distance = waiting.popleft()
                for edge in self._edges(uow, key, kind):
                    steps = _counted(steps, "depth")
                    other = edge.target if edge.source.id == key else edge.source
                    if other.id in seen:
                        continue
                    seen.add(other.id)
                    out.append(Neighbour(other, distance + 1, edge))
                    if distance + 1 < furthest:
                        waiting.append((other.id, distance + 1))
            return out[:most]

        return self._engine.read(work)

    def paths(
        self,
        source: Id | EntityRef,
        target: Id | EntityRef,
        *,
        relation: EdgeRelation | str | None = None,
        longest: int = 4,
        limit: int = 10,
    ) -> builtins.list[tuple[Edge, ...]]:
        """Return the ways from a record to another over links in either direction, the shortest first.

        No way passes a record twice. Raises: as ``neighbours``.
        """
        start, end = self._reference(source, "source"), self._reference(target, "target")
        kind, most = self._kind(relation), arguments.as_whole(limit, "limit", 1)
        furthest = arguments.as_whole(longest, "longest", 1)

        def work(uow: UnitOfWork) -> builtins.list[tuple[Edge, ...]]:
            self._check_end(uow, start, writes=False, retired=True)
            self._check_end(uow, end, writes=False, retired=True)
            out: builtins.list[tuple[Edge, ...]] = []
            waiting: deque[tuple[tuple[uuid.UUID, ...], tuple[Edge, ...]]] = deque([((start.id,), ())])
            known: dict[uuid.UUID, builtins.list[Edge]] = {}
            steps = 0
            while waiting and len(out) < most:
                way, edges = waiting.popleft()
                if way[-1] == end.id:
                    out += [edges] if edges else []
                    continue
                if len(edges) == furthest:
                    continue
                if way[-1] not in known:
                    known[way[-1]] = builtins.list(self._edges(uow, way[-1], kind))
                for edge in known[way[-1]]:
                    steps = _counted(steps, "longest")
                    other = edge.target.id if edge.source.id == way[-1] else edge.source.id
                    if other not in way:
                        waiting.append(((*way, other), (*edges, edge)))
            return out

        return self._engine.read(work)

    # --- how ---------------------------------------------------------------------------------------

    def _kind(self, relation: EdgeRelation | str | None) -> EdgeRelation | None:
        return None if relation is None else arguments.as_enum(relation, EdgeRelation, "relation")

    def _reference(self, record: Id | EntityRef, field: str) -> EntityRef:
        """Return the kind and id of a record. Raises: NotFound, InputError kinds."""
        if isinstance(record, EntityRef):
            named = arguments.as_reference(record, field, self._engine.store.catalog.by_name)
        else:
            key = arguments.as_uuid(record, field)
            located = self._engine.snapshot().locate(key.bytes)
            if located is None or not located[0].relation.linked:
                raise self._searching.readers.not_found("record", key)
            named = EntityRef(kind_named(located[0].relation.name), key)
        found = self._engine.store.catalog.by_name.get(str(named.entity_type))
        if found is None or not found.linked:
            raise InvalidValue(field=field, reason=f"a {named.entity_type} has no links")
        return named

    def _check_end(self, uow: UnitOfWork, end: EntityRef, *, writes: bool, retired: bool = False) -> None:
        """Raise unless the principal may see a record, or write to it, and it is in use or may be ``retired``."""
        relation: Relation = self._engine.store.catalog.by_name[str(end.entity_type)]
        record, readers = uow.find(relation, end.id.bytes), self._searching.readers
        if record is None or not readers.allows_change(relation, record):
            raise readers.not_found(relation.name, end.id)
        if writes:
            readers.require_write(relation, codec_of(relation).encode(record))
        if not retired and not is_valid(relation, record, from_us(uow.now_us)):
            raise ConstraintViolation(constraint="link_ends", reason=f"{relation.name} {end.id} is no longer in use")
        if writes or not retired:
            uow.lock(relation, end.id.bytes)

    def _edges(self, uow: UnitOfWork, key: uuid.UUID, kind: EdgeRelation | None) -> Iterator[Edge]:
        """Yield the links of a record that the principal may see, both of whose ends there are."""
        readers, catalog = self._searching.readers, self._engine.store.catalog
        for path, mine in (("list_by_source", "target"), ("list_by_target", "source")):
            for edge in uow.select_path(EDGE, path, key.bytes):
                if edge.removed_at is not None or kind not in (None, edge.relation):
                    continue
                other: EntityRef = getattr(edge, mine)
                relation = catalog.by_name.get(str(other.entity_type))
                if relation is None or uow.find(relation, other.id.bytes) is None:
                    continue  # its record is gone
                if readers.allows_entity(EDGE, edge):
                    yield edge

    def _between(self, uow: UnitOfWork, source: EntityRef, target: EntityRef, kind: EdgeRelation) -> Edge | None:
        """Return the link of a kind between two records; of a symmetric one whichever way it was made."""
        ways = ((source, target), (target, source)) if kind in SYMMETRIC else ((source, target),)
        for start, end in ways:
            for edge in uow.select_path(EDGE, "list_by_source", start.id.bytes):
                if edge.removed_at is None and edge.relation is kind and edge.target.id == end.id:
                    return edge  # type: ignore[no-any-return]
        return None

    def _check_circle(self, uow: UnitOfWork, source: EntityRef, target: EntityRef, kind: EdgeRelation) -> None:
        """Raise CircularReference if links of a kind lead from the target to the source already."""
        came_from: dict[uuid.UUID, uuid.UUID | None] = {target.id: None}
        waiting = deque([target.id])
        while waiting:
            key = waiting.popleft()
            if key == source.id:
                way = [key]
                while (before := came_from[way[-1]]) is not None:
                    way.append(before)
                raise CircularReference(entity_type="edge", ids=[str(each) for each in (source.id, *reversed(way))])
            for edge in uow.select_path(EDGE, "list_by_source", key.bytes):
                if edge.removed_at is None and edge.relation is kind and edge.target.id not in came_from:
                    came_from[edge.target.id] = key
                    waiting.append(edge.target.id)


def _counted(steps: int, field: str) -> int:
    if steps == _MOST_STEPS:
        raise InvalidValue(field=field, reason=f"more than {_MOST_STEPS} links would be followed; take less")
    return steps + 1
