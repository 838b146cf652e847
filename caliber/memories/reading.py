"""Reader of one memory: ``find``, ``count``, ``get`` and ``search``, in resident memory or by SQL.

Source: design, section 7; docs/search.md.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from caliber.access.visibility import Readers
from caliber.memories import conditions
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import DTypeError, InvalidValue, NotFound
from caliber.model.windows import SearchResult
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import mask
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.memories import MemoryBinding
from caliber.schema.predicate import Predicate, all_of, columns_in
from caliber.schema.relation import Column, ColumnType, Residence
from caliber.schema.validity import validity
from caliber.search.filtering.visible import variables
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.conditions import PAGE_ROWS, Behind, Listing
from caliber.storage.protocol import reading

if TYPE_CHECKING:
    from caliber.engine.engine import Engine
    from caliber.search.service import Searching

T = TypeVar("T")


class RecordReader(Generic[T]):
    """The records of one memory. Safe to share between threads."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching, bound: MemoryBinding) -> None:
        self._engine, self._principal, self._searching = engine, principal, searching
        self._bound, self._relation = bound, bound.relation
        self._shared = engine.part(SearchEngine)
        self._readers = searching.readers
        self._name = bound.type.name

    @property
    def name(self) -> str:
        """The name of the memory."""
        return self._name

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that filters and keywords may name."""
        return tuple(name for name in dict.fromkeys(self._bound.fields) if name not in self._bound.vectors)

    @property
    def Record(self) -> type[T]:  # noqa: N802  (a class)
        """The class of its records."""
        return self._relation.entity

    # --- reading ---------------------------------------------------------------------------------

    def get(self, id: uuid.UUID | str) -> T:  # noqa: A002  (as ``Caliber.get``)
        """Return one record. Raises: NotFound, also for a record of another memory."""
        found: T = self._searching.get(arguments.as_uuid(id, "id"), only=self._relation.name)
        return found

    def find(
        self,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (the pinned name)
        *,
        order_by: str | None = None,
        descending: bool = False,
        limit: int | None = None,
        after: Any = None,
        valid: bool = True,
        **equal: Any,
    ) -> list[T]:
        """Return the records that a filter holds for and whose fields have given values, in the order of their ids.

        ``filter`` is a condition in words, or a mapping of fields to values, as the keywords are; of a list of values
        one must do. ``order_by`` names a number or an instant: records without one come last, equal ones by id. A page
        begins behind ``after``, a record or its id. Records that were taken back or do not hold now are left out,
        unless ``valid`` is False. The application sees what is shared, and with ``trajectory_id=`` what the task's user
        sees.

        Raises: InvalidValue, DTypeError; NotFound for the id of a record that there is not.
        """
        self._engine.check_open()
        order = conditions.order_of(self._bound, order_by)
        arguments.as_flag(descending, "descending")
        most = None if limit is None else arguments.as_whole(limit, "limit", 1)
        predicate = self._predicate(filter, equal, valid)
        behind = None if after is None else self._behind(after, order)
        snapshot = self._snapshot()
        readers = self._seeing(equal, predicate, order)
        if snapshot is None:
            return self._find_stored(predicate, order, descending, most, behind, readers)
        rows = _in_order(snapshot, self._meeting(snapshot, predicate, readers), order, descending, behind, most)
        shown, relation = readers.shown, self._relation
        return [shown(relation, self._engine.memory.entity(snapshot, row)) for row in rows]

    def count(
        self,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``find``)
        *,
        valid: bool = True,
        **equal: Any,
    ) -> int:
        """Return how many records ``find`` would return. Raises: as ``find``."""
        self._engine.check_open()
        predicate = self._predicate(filter, equal, valid)
        snapshot = self._snapshot()
        readers = self._seeing(equal, predicate)
        if snapshot is not None:
            return int(np.count_nonzero(self._meeting(snapshot, predicate, readers)))
        return self._count_stored(predicate, readers)

    def search(
        self,
        query: str,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``Caliber.search``)
        *,
        limit: int | None = None,
        as_of: datetime | None = None,
    ) -> SearchResult:
        """Search this memory alone, as ``Caliber.search`` does. Raises: as that; InvalidValue if it has no texts."""
        kind = self._relation.name
        called = next((name for name, relation in self._shared.kinds.items() if relation == kind), None)
        if called is None:
            raise InvalidValue(field="memory", reason=f"{self._name} {self._unsearched()}; use find")
        return self._searching.search_many(
            [arguments.as_text(query, "query", allow_empty=True)],
            kinds=(called,),
            limit=limit,
            conditions=filter,
            as_of=arguments.as_instant(as_of, "as_of"),
            consistency=None,
        )[0]

    # --- how ---------------------------------------------------------------------------------------

    def _predicate(
        self, condition: str | Mapping[str, Any] | None, equal: Mapping[str, Any], counting: bool
    ) -> Predicate | None:
        kind = self._relation.name
        arguments.as_flag(counting, "valid")
        asked = None
        if isinstance(condition, str):
            asked = self._shared.filters.of(condition, (kind,), named=True)[kind]
        elif condition is not None:
            asked = conditions.equalities(self._bound, arguments.as_mapping(condition, "filter"))
        return all_of(validity(self._relation) if counting else None, asked, conditions.equalities(self._bound, equal))

    def _unsearched(self) -> str:
        return "is not searched by words"

    def _snapshot(self) -> RelationSnapshot | None:
        """Return the records in memory, or None where the database answers."""
        whole: ResidentSnapshot = self._engine.snapshot()
        return whole.relations.get(self._relation.name)

    def _seeing(self, equal: Mapping[str, Any], predicate: Predicate | None, order: Column | None = None) -> Readers:
        """Return the readers of a call: of one about the records of a task, for who acts for users, its user's.

        Raises: PermissionDenied for a condition or order by values that rights by kind hide.
        """
        readers, task = (
            self._readers,
            None if self._relation.rights.task is None else equal.get(self._relation.rights.task),
        )
        if readers.limited and self._relation.follows:
            readers.require_columns(self._relation, () if predicate is None else columns_in(predicate))
            readers.require_columns(self._relation, () if order is None else (order.name,))
        if not readers.serves_tasks or readers.everything or not isinstance(task, uuid.UUID | str):
            return readers
        return readers.acting_for(arguments.as_uuid(task, "trajectory_id"))

    def _meeting(self, snapshot: RelationSnapshot, predicate: Predicate | None, readers: Readers) -> NDArray[np.bool_]:
        among = snapshot.live_mask
        seen = readers.over(snapshot, texts=False)
        if seen is not None:
            among = among & seen.verdicts[seen.codes]
        if predicate is None:
            return among
        variables_now = variables(self._principal, self._engine.clock.now_us())
        return mask(predicate, snapshot, variables_now, self._engine.memory.texts, among)

    def _count_stored(self, predicate: Predicate | None, readers: Readers) -> int:
        listing = Listing(self._relation, predicate, self._engine.store.dialect)
        variables_now = variables(self._principal, self._engine.clock.now_us())
        with reading(self._engine.store, self._relation) as session:
            hides = self._relation.rights.hides and not readers.everything
            count = None if hides else listing.count(session, variables_now)
            if count is None:
                rows = listing.rows(session, variables_now)
                count = sum(readers.allows_row(self._relation, row) for row in rows)
            return count

    def _find_stored(
        self,
        predicate: Predicate | None,
        order: Column | None,
        descending: bool,
        most: int | None,
        behind: Behind | None,
        readers: Readers,
    ) -> list[Any]:
        engine, decode = self._engine, codec_of(self._relation).decode
        listing = Listing(self._relation, predicate, engine.store.dialect, order, descending=descending)
        variables_now = variables(self._principal, engine.clock.now_us())
        with reading(engine.store, self._relation) as session:
            pages = PAGE_ROWS if most is None else min(PAGE_ROWS, most)
            rows = listing.rows(session, variables_now, behind, page_rows=pages)
            seen = (row for row in rows if readers.allows_row(self._relation, row))
            return [readers.shown(self._relation, decode(row)) for row in itertools.islice(seen, most)]

    def _behind(self, after: Any, order: Column | None) -> Behind:
        """Return the position a page begins after; a record that was passed in counts with the values it holds."""
        codec = codec_of(self._relation)
        if isinstance(after, self._relation.entity):
            row = codec.encode(after)
        elif isinstance(after, uuid.UUID | str):
            key = arguments.as_uuid(after, "after")
            if order is None:
                return Behind(key.bytes)
            _, snapshot, number = self._searching.locate(key)
            if snapshot.relation.name != self._relation.name:
                raise NotFound(entity_type=self._name, id=key)
            row = snapshot.packed(number)
        else:
            raise DTypeError(field="after", expected="a record or its id", got=type(after).__name__)
        return Behind(row[codec.key_places[0]], None if order is None else row[codec.index(order.name)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name})"


def _in_order(
    snapshot: RelationSnapshot,
    meeting: NDArray[np.bool_],
    order: Column | None,
    descending: bool,
    behind: Behind | None,
    most: int | None,
) -> list[int]:
    """Return the rows that meet a condition, in order, after a given record, up to a limit."""
    rows = np.flatnonzero(meeting)
    high, low = snapshot.ties()[rows].T
    values, unset = _values(snapshot, order, rows)
    if behind is not None:
        kept = _beyond(high, low, None if order is None else (values, unset), behind, descending)
        rows, high, low, values, unset = rows[kept], high[kept], low[kept], values[kept], unset[kept]
    if descending:
        # Each key is reversed separately: NULL comes last in either direction.
        high, low, values = ~high, ~low, (-values if values.dtype.kind == "f" else ~values)
    places = np.lexsort((low, high, values, unset))
    found: list[int] = rows[places[:most]].tolist()
    return found


def _values(
    snapshot: RelationSnapshot, order: Column | None, rows: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the values of rows in a column, 0 for nothing, and the mask of rows without a value."""
    if order is None:
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    dtype = np.float64 if order.type is ColumnType.FLOAT else np.int64
    if order.residence is Residence.COLUMN:
        array = snapshot.column(order.name)[rows]
        null = order.resident_null if order.nullable else None
        unset = np.zeros(len(rows), np.bool_) if null is None else array == array.dtype.type(null)
        return np.where(unset, 0, array).astype(dtype), unset
    stored = snapshot.packed_values(order.name, rows.tolist())
    unset = np.fromiter((value is None for value in stored), np.bool_, len(stored))
    return np.array([0 if value is None else value for value in stored], dtype), unset


def _beyond(
    high: NDArray[np.uint64],
    low: NDArray[np.uint64],
    ordered: tuple[NDArray[Any], NDArray[np.bool_]] | None,
    behind: Behind,
    descending: bool,
) -> NDArray[np.bool_]:
    """Return the rows after a record in an order; the same order as ``Listing`` in a database."""
    before = np.less if descending else np.greater
    first, second = np.frombuffer(behind.key, ">u8").astype(np.uint64)
    after: NDArray[np.bool_] = before(high, first) | ((high == first) & before(low, second))
    if ordered is None:
        return after
    values, unset = ordered
    if behind.value is None:
        return unset & after
    value = values.dtype.type(behind.value)
    found: NDArray[np.bool_] = unset | before(values, value) | ((values == value) & after)
    return found
