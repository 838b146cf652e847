"""Reader of one memory: ``find``, ``count``, ``get`` and ``search``, in resident memory or by SQL.

Source: design, section 7; docs/search.md.
"""

from __future__ import annotations

import itertools
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

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
from caliber.schema.relation import ORDINAL, Column, ColumnType, Relation, Residence
from caliber.schema.validity import validity
from caliber.search.filtering.visible import variables
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import codec_of, decoder_of
from caliber.storage.compile.conditions import PAGE_ROWS, Behind, Listing
from caliber.storage.protocol import reading

if TYPE_CHECKING:
    from caliber.engine.engine import Engine
    from caliber.search.service import Searching

T = TypeVar("T")
_FEW: Final = 4
"""A page of less than this part of the rows is cheaper to choose first."""


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
        """Return one record. Raises: NotFound, also for a record of another memory, and one whose time has passed."""
        found: T = self._searching.get(arguments.as_uuid(id, "id"), only=self._relation.name)
        return found

    @overload
    def find(
        self,
        filter: str | Mapping[str, Any] | None = None,
        *,
        fields: None = None,
        order_by: str | None = None,
        descending: bool = False,
        limit: int | None = None,
        after: Any = None,
        valid: bool = True,
        **equal: Any,
    ) -> list[T]: ...

    @overload
    def find(
        self,
        filter: str | Mapping[str, Any] | None = None,
        *,
        fields: Sequence[str],
        order_by: str | None = None,
        descending: bool = False,
        limit: int | None = None,
        after: Any = None,
        valid: bool = True,
        **equal: Any,
    ) -> list[tuple[Any, ...]]: ...

    def find(
        self,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (the pinned name)
        *,
        fields: Sequence[str] | None = None,
        order_by: str | None = None,
        descending: bool = False,
        limit: int | None = None,
        after: Any = None,
        valid: bool = True,
        **equal: Any,
    ) -> list[T] | list[tuple[Any, ...]]:
        """Return the records that a filter holds for and whose fields have given values, in the order of their ids.

        ``filter`` is a condition in words, or a mapping of fields to values, as the keywords are; of a list of values
        one must do. ``fields``: the values of these alone, a tuple a record. ``order_by`` names a number, an instant or
        a text, or is ``"sequence"``, the order in which they were stored if there is no such field: records without a
        value come last, equal ones by id. A page begins behind ``after``, a record or its id; in the order of storing
        it must still be there. Records that were taken back or do not hold now are left out, unless ``valid`` is False.
        The application sees what is shared, and with ``trajectory_id=`` what the task's user sees.

        Raises: InvalidValue, DTypeError; NotFound for the id of a record that there is not.
        """
        self._engine.check_open()
        order = conditions.order_of(self._bound, order_by)
        arguments.as_flag(descending, "descending")
        most = None if limit is None else arguments.as_whole(limit, "limit", 1)
        chosen = None if fields is None else conditions.fields_of(self._bound, fields)
        predicate = self._predicate(filter, equal, valid)
        behind = None if after is None else self._behind(after, order)
        snapshot = self._snapshot()
        readers = self._seeing(equal, predicate, order)
        shown, relation = readers.shown, self._relation
        if snapshot is None:
            found = self._find_stored(predicate, order, descending, most, behind, readers)
        else:
            meeting, memory = self._meeting(snapshot, predicate, readers), self._engine.memory
            rows = _in_order(snapshot, meeting, order, descending, behind, most, memory.stored)
            stored = any(column.residence is Residence.STORED for column in chosen or ())
            if chosen is not None and not stored and not (readers.limited and relation.follows):
                return memory.columns(snapshot, rows, chosen)
            found = [shown(relation, record) for record in memory.entities(snapshot, rows)]
        return found if chosen is None else [_picked(relation, record, chosen) for record in found]

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

    def distinct(
        self,
        field: str,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``find``)
        *,
        prefix: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        valid: bool = True,
        **equal: Any,
    ) -> list[Any]:
        """Return the different values that a field has in the records that ``find`` would return, in order.

        Records without a value give none. ``prefix`` is how a text must begin. The first ``offset`` are left out.

        Raises: as ``find``; InvalidValue for a field that has no order.
        """
        self._engine.check_open()
        column = conditions.sortable(self._bound, field)
        most = None if limit is None else arguments.as_whole(limit, "limit", 1)
        first = arguments.as_whole(offset, "offset", 0)
        predicate = all_of(self._predicate(filter, equal, valid), conditions.beginning(column, prefix))
        snapshot = self._snapshot()
        readers = self._seeing(equal, predicate, column)
        if snapshot is None:
            values = sorted(self._distinct_stored(column, predicate, readers))
        else:
            values = self._engine.memory.distinct(snapshot, column, self._meeting(snapshot, predicate, readers))
        decode = decoder_of(column)
        page = values[first : None if most is None else first + most]
        return page if decode is None else list(map(decode, page))

    def nearest(
        self,
        to: Any,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``find``)
        *,
        limit: int | None = None,
        offset: int = 0,
        min_similarity: float = -1.0,
        **equal: Any,
    ) -> list[tuple[T, float]]:
        """Return the records nearest in meaning to a text or vector, each with the cosine, best first, ties by id.

        ``filter`` and the keywords are those of ``find``. The first ``offset`` are left out. A space of another metric
        (``vector.distance_metric``) has its own similarity for the cosine. Records without a vector are left out.

        Raises: as ``find``; DimensionMismatch; ProviderNotConfigured for a text without a provider, and a store without
            vectors; LlmError kinds.
        """
        self._engine.check_open()
        if self._relation.embedded is None:
            raise InvalidValue(field="memory", reason=f"{self._name} has no vectors; use find")
        first, least = arguments.as_whole(offset, "offset"), arguments.as_fraction(min_similarity, "min_similarity", -1)
        most, predicate = first + self._searching.limit_of(limit), self._predicate(filter, equal, False)
        readers = self._seeing(equal, predicate)
        searching, entity = self._searching.with_readers(readers), self._engine.memory.entity
        owners, rows, scores = searching.nearest(self._relation.name, to, predicate, most, least)
        records = (readers.shown(self._relation, entity(owners, row)) for row in rows[first:].tolist())
        return list(zip(records, scores[first:].tolist(), strict=True))

    def search(
        self,
        query: str = "",
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``Caliber.search``)
        *,
        vector: Any = None,
        meaning: float | None = None,
        limit: int | None = None,
        author: Principal | str | None = None,
        include_archived: bool = False,
        as_of: datetime | None = None,
    ) -> SearchResult:
        """Search this memory alone, as ``Caliber.search`` does. Raises: as that; InvalidValue if it has no texts."""
        kind = self._relation.name
        called = next((name for name, relation in self._shared.kinds.items() if relation == kind), None)
        if called is None:
            raise InvalidValue(field="memory", reason=f"{self._name} {self._unsearched()}; use find")
        return self._searching.search_many(
            [arguments.as_text(query, "query", allow_empty=True)],
            vector=vector,
            meaning=meaning,
            kinds=(called,),
            limit=limit,
            conditions=filter,
            author=author,
            archived=include_archived,
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

    def _distinct_stored(self, column: Column, predicate: Predicate | None, readers: Readers) -> set[Any]:
        listing = Listing(self._relation, predicate, self._engine.store.dialect)
        variables_now = variables(self._principal, self._engine.clock.now_us())
        with reading(self._engine.store, self._relation) as session:
            hides = self._relation.rights.hides and not readers.everything
            found = None if hides else listing.distinct(session, variables_now, column)
            if found is None:
                at = codec_of(self._relation).index(column.name)
                rows = listing.rows(session, variables_now)
                found = {row[at] for row in rows if readers.allows_row(self._relation, row)}
            return found - {None}

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
        if order is ORDINAL and isinstance(after, self._relation.entity):
            after = getattr(after, self._relation.key[0])  # a record does not say which it was
        if isinstance(after, self._relation.entity):
            row = codec.encode(after)
        elif isinstance(after, uuid.UUID | str):
            key = arguments.as_uuid(after, "after")
            if order is None:
                return Behind(key.bytes)
            _, snapshot, number = self._searching.locate(key)
            if snapshot.relation.name != self._relation.name:
                raise NotFound(entity_type=self._name, id=key)
            if order.residence is Residence.TEXT:
                return Behind(key.bytes, self._engine.memory.texts(snapshot, [number])[0])
            row = snapshot.packed(number)
        else:
            raise DTypeError(field="after", expected="a record or its id", got=type(after).__name__)
        return Behind(row[codec.key_places[0]], None if order is None else row[codec.index(order.name)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name})"


def _picked(relation: Relation, record: Any, columns: Sequence[Column]) -> tuple[Any, ...]:
    """Return the values of a record in some columns."""
    codec = codec_of(relation)
    stored, out = codec.encode(record), []
    for column in columns:
        value, decode = stored[codec.index(column.name)], decoder_of(column)
        out.append(value if value is None or decode is None else decode(value))
    return tuple(out)


def _in_order(
    snapshot: RelationSnapshot,
    meeting: NDArray[np.bool_],
    order: Column | None,
    descending: bool,
    behind: Behind | None,
    most: int | None,
    read: Callable[[RelationSnapshot, Sequence[int], Column], Sequence[Any]],
) -> list[int]:
    """Return the rows that meet a condition, in order, after a given record, up to a limit."""
    rows = np.flatnonzero(meeting)
    high, low = snapshot.ties()[rows].T
    if order is not None and order.type is ColumnType.TEXT:
        values, behind = _ranks(snapshot, order, rows, behind, read)
        unset = values < 0
    else:
        values, unset = _values(snapshot, order, rows)
    if behind is not None:
        kept = _beyond(high, low, None if order is None else (values, unset), behind, descending)
        rows, high, low, values, unset = rows[kept], high[kept], low[kept], values[kept], unset[kept]
    if descending:
        # Each key is reversed separately: NULL comes last in either direction.
        high, low, values = ~high, ~low, (-values if values.dtype.kind == "f" else ~values)
    if most is not None and most < len(rows) // _FEW:
        # Only those that may be among the first are sorted.
        last = np.inf if values.dtype.kind == "f" else np.iinfo(np.int64).max
        leading = high if order is None else np.where(unset, last, values)
        kept = leading <= np.partition(leading, most - 1)[most - 1]
        rows, high, low, values, unset = rows[kept], high[kept], low[kept], values[kept], unset[kept]
    places = np.lexsort((low, high, values, unset))
    found: list[int] = rows[places[:most]].tolist()
    return found


def _ranks(
    snapshot: RelationSnapshot,
    order: Column,
    rows: NDArray[np.int64],
    behind: Behind | None,
    read: Callable[[RelationSnapshot, Sequence[int], Column], Sequence[Any]],
) -> tuple[NDArray[np.int64], Behind | None]:
    """Return numbers in the order of the rows' texts, -1 for None, and the position with a number for its text."""
    beside = None if behind is None else behind.value
    if order.residence is Residence.INTERNED:
        texts, codes = snapshot.in_order(order.name)
        number_of = np.full(len(snapshot.interned(order.name)), -1, np.int64)
        number_of[codes] = np.arange(len(codes))
        values = number_of[snapshot.column(order.name)[rows]]
    else:
        read_texts = read(snapshot, rows.tolist(), order)
        texts = sorted({text for text in read_texts if text is not None})
        ranks = {text: rank for rank, text in enumerate(texts)}
        values = np.fromiter([-1 if text is None else ranks[text] for text in read_texts], np.int64, len(read_texts))
    if behind is None or beside is None:
        return values, behind
    at = bisect_left(texts, beside)
    # A text that no row has stands between two: every second number is free.
    known = at < len(texts) and texts[at] == beside
    return np.where(values < 0, -1, 2 * values), Behind(behind.key, 2 * at if known else 2 * at - 1)


def _values(
    snapshot: RelationSnapshot, order: Column | None, rows: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the values of rows in a column, 0 for nothing, and the mask of rows without a value."""
    if order is None:
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    dtype = np.float64 if order.type is ColumnType.FLOAT else np.int64
    if order.residence is Residence.COLUMN or order is ORDINAL:
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
