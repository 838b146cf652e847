"""Facet ``memory.links``: typed links between records of any kind, made, listed and followed.

Source: B-022 to B-026, M-092; docs/api.md.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Final

from caliber.access.corrections import Corrections
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import CircularReference, ConstraintViolation, InvalidValue
from caliber.model.joining import JOINED
from caliber.model.knowledge import Edge, EdgeRelation, Neighbour
from caliber.model.references import EdgeId, EntityRef, Id, kind_named
from caliber.model.storage import ReadConsistency
from caliber.model.time import from_us
from caliber.resident.snapshot import is_gone
from caliber.schema.relation import Relation
from caliber.schema.relations import EDGE
from caliber.schema.validity import is_valid
from caliber.search.service import Searching
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

SYMMETRIC: Final = frozenset((EdgeRelation.CONTRADICTS, EdgeRelation.RELATED_TO, EdgeRelation.LINK))
"""Relations that hold both ways: one link stands for both."""
ACYCLIC: Final = frozenset((EdgeRelation.SUPERSEDES, EdgeRelation.CAUSED_BY))
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
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

        ``relation`` says what the source is to the target, one of ``EdgeRelation`` or a name of your own, such as
        ``"answers"``; ``contradicts``, ``related_to`` and ``link`` hold both ways.
        ``weight``, from 0 to 1, is how much a search takes from one record to the other; another weight replaces it.

        Raises: InputError kinds, NotFound, PermissionDenied, ConstraintViolation (a record that is no longer in use),
            CircularReference (``supersedes`` and ``caused_by`` lead in no circle), LockExpired.
        """
        kind = _named(relation)
        share = arguments.as_fraction(weight, "weight")
        ends = self._ends(source, kind, target)

        def work(uow: UnitOfWork) -> Edge:
            uow.guard(guard, self._principal)
            self._check_end(uow, ends[0], writes=True)
            self._check_end(uow, ends[1], writes=False)
            if kind in ACYCLIC:
                uow.serialize(f"links {kind}")
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
        kind = _named(relation)
        ends = self._ends(source, kind, target)

        def work(uow: UnitOfWork) -> bool:
            uow.guard(guard, self._principal)
            self._check_end(uow, ends[0], writes=True, retired=True)
            self._check_end(uow, ends[1], writes=False, retired=True)
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
        view, kind = self._view(), self._kind(relation)
        key = view.end(record, "record")

        def work(uow: UnitOfWork) -> builtins.list[Edge]:
            edges = [edge for edge, _ in view.edges(uow, key.id, kind)]
            return sorted(edges, key=lambda edge: (edge.created_at, edge.edge_id))

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
        view, kind = self._view(), self._kind(relation)
        start = view.end(record, "record")
        furthest = arguments.as_whole(depth, "depth", 1)
        most = None if limit is None else arguments.as_whole(limit, "limit", 1)

        def work(uow: UnitOfWork) -> builtins.list[Neighbour]:
            seen, out, steps = {start.id}, builtins.list[Neighbour](), 0
            waiting = deque([(start.id, 0)])
            while waiting and (most is None or len(out) < most):
                key, distance = waiting.popleft()
                for edge, other in view.edges(uow, key, kind):
                    steps = _counted(steps, "depth")
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
        view = self._view()
        start, end = view.end(source, "source"), view.end(target, "target")
        kind, most = self._kind(relation), arguments.as_whole(limit, "limit", 1)
        furthest = arguments.as_whole(longest, "longest", 1)

        def work(uow: UnitOfWork) -> builtins.list[tuple[Edge, ...]]:
            out: builtins.list[tuple[Edge, ...]] = []
            waiting: deque[tuple[tuple[uuid.UUID, ...], tuple[Edge, ...]]] = deque([((start.id,), ())])
            known: dict[uuid.UUID, builtins.list[tuple[Edge, EntityRef]]] = {}
            steps = 0
            while waiting and len(out) < most:
                way, edges = waiting.popleft()
                if way[-1] == end.id:
                    out += [edges] if edges else []
                    continue
                if len(edges) == furthest:
                    continue
                if way[-1] not in known:
                    known[way[-1]] = builtins.list(view.edges(uow, way[-1], kind))
                for edge, other in known[way[-1]]:
                    steps = _counted(steps, "longest")
                    if other.id not in way:
                        waiting.append(((*way, other.id), (*edges, edge)))
            return out

        return self._engine.read(work)

    # --- how ---------------------------------------------------------------------------------------

    def _kind(self, relation: EdgeRelation | str | None) -> EdgeRelation | str | None:
        return None if relation is None else _named(relation)

    def _view(self) -> _View:
        return _View(self._engine, self._searching.readers)

    def _ends(
        self, source: Id | EntityRef, kind: EdgeRelation | str, target: Id | EntityRef
    ) -> tuple[EntityRef, EntityRef]:
        """Return both ends of a link. Raises: NotFound, InputError kinds."""
        view = self._view()
        start, end = view.end(source, "source"), view.end(target, "target")
        if start.id == end.id:
            raise InvalidValue(field="target", reason="is the source: a record is not linked to itself")
        ends = self._relation(start).ends
        if kind is EdgeRelation.SUPERSEDES and ends is not None and ends.supersede is not None:
            reason = f"a {start.entity_type} supersedes another by its own call, such as supersede_note"
            raise InvalidValue(field="relation", reason=reason)
        return start, end

    def _relation(self, end: EntityRef) -> Relation:
        return self._engine.store.catalog.by_name[str(end.entity_type)]

    def _check_end(self, uow: UnitOfWork, end: EntityRef, *, writes: bool, retired: bool = False) -> None:
        """Raise unless the principal may see a record, or write to it, and it is in use or may be ``retired``."""
        relation = self._relation(end)
        uow.lock(relation, end.id.bytes)
        record, readers = uow.find(relation, end.id.bytes), self._searching.readers
        if record is None or not readers.allows_change(relation, record):
            raise readers.not_found("record", end.id)
        if writes:
            readers.require_write(relation, codec_of(relation).encode(record))
            Corrections(self._engine, self._principal).check_author(relation, record, "link")
        if not retired and not is_valid(relation, record, from_us(uow.now_us)):
            raise ConstraintViolation(constraint="link_ends", reason=f"{relation.name} {end.id} is no longer in use")

    def _between(self, uow: UnitOfWork, source: EntityRef, target: EntityRef, kind: EdgeRelation | str) -> Edge | None:
        """Return the link of a kind between two records; of a symmetric one whichever way it was made."""
        ways = ((source, target), (target, source)) if kind in SYMMETRIC else ((source, target),)
        for start, end in ways:
            for edge in _links_from(uow, start.id, kind):
                if edge.target.id == end.id:
                    return edge
        return None

    def _check_circle(self, uow: UnitOfWork, source: EntityRef, target: EntityRef, kind: EdgeRelation | str) -> None:
        """Raise CircularReference if links of a kind lead from the target to the source already."""
        seen, waiting, steps = {target.id}, deque([target.id]), 0
        while waiting:
            key = waiting.popleft()
            if key == source.id:
                # What is between may be hidden from the principal.
                raise CircularReference(entity_type="edge", ids=[str(source.id), str(target.id)])
            for edge in _links_from(uow, key, kind):
                if edge.target.id not in seen:
                    steps = _counted(steps, "target")
                    seen.add(edge.target.id)
                    waiting.append(edge.target.id)


class _View:
    """Records and links as the principal sees them at one boundary: what came later is not there yet."""

    def __init__(self, engine: Engine, readers: Readers) -> None:
        self._engine, self._readers = engine, readers
        self._snapshot = engine.snapshot(ReadConsistency.LATEST)

    def end(self, record: Id | EntityRef, field: str) -> EntityRef:
        """Return the kind and id of a record. Raises: NotFound, InputError kinds."""
        if not isinstance(record, EntityRef):
            key = arguments.as_uuid(record, field)
            found = self._located(key)
            if found is None or not found.linked:
                raise self._readers.not_found("record", key)
            return EntityRef(kind_named(found.name), key)
        catalog = self._engine.store.catalog.by_name
        named = arguments.as_reference(record, field, catalog)
        relation = catalog.get(str(named.entity_type))
        if relation is None or not relation.linked:
            raise InvalidValue(field=field, reason=f"a {named.entity_type} has no links")
        # A record of a transaction that has not ended is looked for in it.
        found = self._located(named.id)  # compared by name: a declaration may be bound anew
        if (found is None or found.name != relation.name) and JOINED.get() is None:
            raise self._readers.not_found("record", named.id)
        return named

    def edges(
        self, uow: UnitOfWork, key: uuid.UUID, kind: EdgeRelation | str | None
    ) -> Iterator[tuple[Edge, EntityRef]]:
        """Yield the links of a record whose other end there is, and may be seen; each with that end."""
        for path, end in (("list_by_source", "target"), ("list_by_target", "source")):
            for edge in uow.select_path(EDGE, path, key.bytes):
                if edge.removed_at is not None or kind not in (None, edge.relation):
                    continue
                other: EntityRef = getattr(edge, end)
                if self._located(other.id) is not None:
                    yield edge, other

    def _located(self, key: uuid.UUID) -> Relation | None:
        """Return the relation of a record that may be seen, or whose user may be acted for; None for all others."""
        found, readers = self._snapshot.locate(key.bytes), self._readers
        if found is None or is_gone(*found, self._engine.clock):
            return None
        relation: Relation = found[0].relation
        acted = readers.serves_tasks and not relation.rights.listed
        return relation if acted or readers.allows(*found) else None


def _links_from(uow: UnitOfWork, key: uuid.UUID, kind: EdgeRelation | str) -> list[Edge]:
    """Return the links of a kind that a record is the source of."""
    edges: list[Edge] = uow.select_path(EDGE, "list_by_source", key.bytes)
    return [edge for edge in edges if edge.removed_at is None and edge.relation == kind]


def _named(relation: EdgeRelation | str) -> EdgeRelation | str:
    """Return the relation of a link. Raises: DTypeError, InvalidValue."""
    name = arguments.as_text(relation, "relation")
    if _NAME.fullmatch(name) is None:
        names = ", ".join(EdgeRelation)
        reason = f"must be one of {names}, or a name of at most 48 small letters, digits and _, not a digit first"
        raise InvalidValue(field="relation", reason=reason)
    return EdgeRelation(name) if name in tuple(EdgeRelation) else name


def _counted(steps: int, field: str) -> int:
    if steps == _MOST_STEPS:
        raise InvalidValue(field=field, reason=f"more than {_MOST_STEPS} links would be followed; take less")
    return steps + 1
