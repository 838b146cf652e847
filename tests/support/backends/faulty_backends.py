"""Backends with one fault each, and the case of the contract suite that must see it.

Each is SQLite in memory behind sessions that do one thing wrong, as a careless backend would.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from contract.suite import bulk, changes, errors, filters, races, rules, statements, transactions, values
from contract.world import Contract, World

from caliber.backends import backend
from caliber.model.errors import CaliberError, Conflict, StorageError
from caliber.schema.relation import AccessPath, ColumnType
from caliber.schema.relations import BY_NAME, EMBEDDING_SPACE, EVENT, NOTE, SCOPE, TRAJECTORY, TURN


class Session:
    """A session that does what the one below does."""

    def __init__(self, inner: Any, plans: dict[str, Any]) -> None:
        self._inner = inner
        self._plans = plans

    def run(self, plan: Any, parameters: Sequence[Any]) -> Any:
        return self.do(self._inner.run, plan, parameters)

    def run_all(self, asked: Sequence[tuple[Any, Sequence[Any]]]) -> Any:
        return [self.run(plan, parameters) for plan, parameters in asked]

    def run_many(self, plan: Any, parameters: Sequence[Sequence[Any]]) -> Any:
        return [row for each in parameters for row in self.run(plan, each)]

    def insert(self, plan: Any, row: Sequence[Any]) -> Any:
        return self.do(self._inner.insert, plan, row)

    def changed(self, plan: Any, parameters: Sequence[Any]) -> Any:
        return self.do(self._inner.changed, plan, parameters)

    def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
        return call(plan, parameters)


class Store:
    """A store whose sessions are faulty once it is armed."""

    def __init__(self, inner: Any, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _session(self, session: Any) -> Any:
        return self._fault.session(session, self._inner.plans) if self.armed else session

    def write(self, work: Any, *, exclusive: bool = False) -> Any:
        def faulty(uow: Any) -> Any:
            uow._session = self._session(uow._session)
            return work(uow)

        if self.armed and self._fault.write is not None:
            return self._fault.write(self._inner, faulty)
        return self._inner.write(faulty, exclusive=exclusive)

    @contextmanager
    def read(self) -> Iterator[Any]:
        with self._inner.read() as session:
            yield self._session(session)

    @contextmanager
    def first_read(self) -> Iterator[Any]:
        with self._inner.first_read() as session:
            yield self._session(session)

    def bulk_read(self, relation: Any, batch_rows: int) -> Iterator[Any]:
        batches = list(self._inner.bulk_read(relation, batch_rows))
        return iter(self._fault.batches(batches) if self.armed else batches)

    def close(self) -> None:
        if not (self.armed and self._fault.stays_open):
            self._inner.close()


class Module:
    """A backend of one fault; its stores are armed when they are opened, or later by hand."""

    def __init__(self, fault: Fault, *, armed: bool) -> None:
        self._fault = fault
        self._armed = armed
        self._sqlite = backend("sqlite")
        self.stores: list[Store] = []

    def create(self, config: Any, *, exist_ok: bool, clock_us: Any) -> None:
        self._sqlite.create(config, exist_ok=exist_ok, clock_us=clock_us)

    def migrate(self, config: Any, *, clock_us: Any) -> list[int]:
        return self._sqlite.migrate(config, clock_us=clock_us)

    def open_store(self, config: Any, *, clock_us: Any) -> Any:
        store = Store(self._sqlite.open_store(config, clock_us=clock_us), self._fault)
        store.armed = self._armed
        self.stores.append(store)
        return store


class Fault(NamedTuple):
    """A planted fault, and the case that must see it: in a shared store, or in fresh ones."""

    session: type[Session] = Session
    on_world: Callable[[World], Any] | None = None
    on_contract: Callable[[Contract], Any] | None = None
    write: Callable[[Any, Any], Any] | None = None
    stays_open: bool = False
    batches: Callable[[list[Any]], list[Any]] = list


def _verb(plan: Any) -> str:
    return plan.name.rpartition(".")[2]


# --- faults of values --------------------------------------------------------------------------------


def _writing(change: Callable[[ColumnType | None, Any], Any]) -> type[Session]:
    """Return sessions that change what they are given to write."""

    class Changing(Session):
        def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
            relation = BY_NAME.get(plan.name.partition(".")[0])
            if relation is not None and _verb(plan) in ("insert", "insert_or_ignore", "upsert", "update"):
                types = [relation.column(name).type if relation.has(name) else None for name in plan.binds]
                parameters = tuple(change(kind, value) for kind, value in zip(types, parameters, strict=True))
            return call(plan, parameters)

    return Changing


def _texts(change: Callable[[str], Any]) -> type[Session]:
    texts = (ColumnType.TEXT, ColumnType.TEXT_ARRAY, ColumnType.JSON)
    return _writing(lambda kind, value: change(value) if kind in texts and isinstance(value, str) else value)


def _of(kind: ColumnType, change: Callable[[Any], Any]) -> type[Session]:
    return _writing(lambda each, value: change(value) if each is kind and value is not None else value)


def _edges(relation: Any = NOTE) -> Callable[[World], Any]:
    return lambda world: values.test_edges_of_every_column_come_back(relation, False, world)


# --- faults of statements ----------------------------------------------------------------------------


class LosesUpdates(Session):
    """Writes whatever the version is by now."""

    def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
        if _verb(plan) == "update":
            plans = self._plans[plan.name.partition(".")[0]]
            keys = len(plans.relation.key)
            rows = self._inner.run(plans.get, parameters[-1 - keys : -1])
            parameters = (*parameters[:-1], rows[0][plans.codec.version_place])
        return call(plan, parameters)


def _answering(verb: str | Callable[[str], bool], answer: Callable[[Any], Any]) -> type[Session]:
    """Return sessions that change what one kind of statement answers."""
    concerns = verb if callable(verb) else verb.__eq__

    class Answering(Session):
        def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
            result = call(plan, parameters)
            return answer(result) if concerns(_verb(plan)) else result

    return Answering


def _asking(verb: str, ask: Callable[[Sequence[Any]], Sequence[Any]]) -> type[Session]:
    class Asking(Session):
        def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
            return call(plan, ask(parameters) if _verb(plan) == verb else parameters)

    return Asking


class Deletes(Session):
    """Says that it deleted, and does not."""

    def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
        return 1 if _verb(plan) == "delete" else call(plan, parameters)


class KeepsOldRows(Session):
    """Upserts only what is not there yet."""

    def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
        if _verb(plan) == "upsert":
            plans = self._plans[plan.name.partition(".")[0]]
            rows = self._inner.run(plans.get, plans.codec.key_of(tuple(parameters)))
            if rows:
                return [(rows[0][0],)]
        return call(plan, parameters)


class CountsAll(Session):
    """Counts without the condition."""

    def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
        if _verb(plan).startswith("count_"):
            return call(self._plans[plan.name.partition(".")[0]].count, ())
        return call(plan, parameters)


# --- faults of errors --------------------------------------------------------------------------------


def _failing(answer: Callable[[CaliberError, Any, Sequence[Any]], Any]) -> type[Session]:
    """Return sessions that treat errors in their own way."""

    class Failing(Session):
        def do(self, call: Any, plan: Any, parameters: Sequence[Any]) -> Any:
            try:
                return call(plan, parameters)
            except StorageError as error:
                return answer(error, plan, parameters)

    return Failing


def _swallow_duplicates(error: CaliberError, plan: Any, parameters: Sequence[Any]) -> Any:
    if isinstance(error, Conflict):
        return [(1,)]
    raise error


def _raise_the_drivers(error: CaliberError, plan: Any, parameters: Sequence[Any]) -> Any:
    assert error.__cause__ is not None
    raise error.__cause__


def _raise_another(error: CaliberError, plan: Any, parameters: Sequence[Any]) -> Any:
    raise StorageError(error.message) from error.__cause__


def _quote_values(error: CaliberError, plan: Any, parameters: Sequence[Any]) -> Any:
    raise type(error)(f"{error.message}: {parameters}", **error.context) from error.__cause__


def _forget_the_cause(error: CaliberError, plan: Any, parameters: Sequence[Any]) -> Any:
    raise type(error)(error.message, retryable=error.retryable, **error.context) from None


# --- faults of transactions --------------------------------------------------------------------------


def _commits_halves(inner: Any, work: Any) -> Any:
    failed: list[BaseException] = []

    def run(uow: Any) -> Any:
        try:
            return work(uow)
        except BaseException as error:
            failed.append(error)

    result = inner.write(run)
    if failed:
        raise failed[0]
    return result


def _records_one_change(inner: Any, work: Any) -> Any:
    def run(uow: Any) -> Any:
        result = work(uow)
        del uow.changes[1:]
        return result

    return inner.write(run)


def _runs_twice(inner: Any, work: Any) -> Any:
    inner.write(lambda uow: None)

    def run(uow: Any) -> Any:
        work(uow)
        return work(uow)

    return inner.write(run)


def _path(name: str) -> AccessPath:
    return next(path for path in NOTE.paths if path.name == name)


def _fingerprint(world: World) -> None:
    rules.test_uniqueness_holds_where_its_condition_does(NOTE, NOTE.uniques[0], world)


LISTED = frozenset(path.name for relation in BY_NAME.values() for path in relation.paths)


def _changing(part: str, change: Callable[[list[Any]], list[Any]]) -> type[Session]:
    """Return sessions that change what statements answer whose name has a part."""

    class Changing(Session):
        def run(self, plan: Any, parameters: Sequence[Any]) -> Any:
            rows = super().run(plan, parameters)
            return change(rows) if part in plan.name and not plan.name.startswith("change") else rows

    return Changing


PAGES = partial(statements.test_pages_give_every_row_once_and_in_order, NOTE)
LISTS = partial(statements.test_access_path_lists_what_it_says_in_its_order, NOTE, _path("find_by_entity"))
FILTERS = partial(filters.test_a_filter_gives_the_records_it_holds_for, NOTE)
FAULTS: dict[str, Fault] = {
    "drops zero characters": Fault(_texts(lambda text: text.replace("\0", "")), _edges()),
    "ends texts at a zero character": Fault(_texts(lambda text: text.partition("\0")[0]), _edges()),
    "empty text is NULL": Fault(_texts(lambda text: text or None), _edges(TURN)),
    "trims texts": Fault(_texts(str.rstrip), _edges()),
    "normalizes texts": Fault(_texts(lambda text: unicodedata.normalize("NFC", text)), _edges()),
    "basic plane only": Fault(_texts(lambda text: "".join(c if ord(c) < 65_536 else "?" for c in text)), _edges()),
    "keys regardless of case": Fault(
        _texts(str.casefold), values.test_texts_are_told_apart_whatever_a_collation_thinks
    ),
    "truncates to milliseconds": Fault(_of(ColumnType.INSTANT, lambda us: us // 1_000 * 1_000), _edges()),
    "no instants before 1970": Fault(_of(ColumnType.INSTANT, lambda us: max(0, us)), _edges()),
    "instants as floats": Fault(_of(ColumnType.INSTANT, lambda us: int(us / 1e6 * 1e6)), _edges()),
    "integers as floats": Fault(_of(ColumnType.INT, lambda n: min(int(float(n)), 2**63 - 1)), _edges(TRAJECTORY)),
    "floats of 32 bits": Fault(_of(ColumnType.FLOAT, lambda x: struct.unpack("<f", struct.pack("<f", x))[0]), _edges()),
    "ends bytes at a zero byte": Fault(_of(ColumnType.BYTES, lambda b: b.partition(b"\0")[0]), _edges(TURN)),
    "loses updates": Fault(
        LosesUpdates, partial(statements.test_update_of_a_version_that_is_gone_changes_nothing, NOTE)
    ),
    "turns pages around": Fault(_answering("page", lambda rows: rows[::-1]), PAGES),
    "begins pages with the last row": Fault(_asking("page", lambda given: (given[0] - 1, given[1])), PAGES),
    "ignores limits": Fault(_asking("page", lambda given: (*given[:-1], 1_000_000)), PAGES),
    "loses the last row of a page": Fault(_answering("page", lambda rows: rows[:-1] if len(rows) > 1 else rows), PAGES),
    "lists in no order": Fault(_answering(LISTED.__contains__, lambda rows: rows[::-1]), LISTS),
    "counts without the condition": Fault(CountsAll, LISTS),
    "reads all but one of many": Fault(
        _answering("get_many", lambda rows: rows[1:]), partial(statements.test_many_rows_are_read_by_ordinal, NOTE)
    ),
    "gives ordinals again": Fault(
        _answering("insert", lambda rows: [(row[0] % 3,) for row in rows] if isinstance(rows, list) else rows),
        partial(statements.test_many_rows_are_read_by_ordinal, TRAJECTORY),
    ),
    "deletes nothing": Fault(Deletes, partial(statements.test_delete_removes_the_row_and_only_it, EVENT)),
    "upserts only what is new": Fault(
        KeepsOldRows, partial(statements.test_upsert_inserts_and_then_overwrites_every_column, EMBEDDING_SPACE)
    ),
    "accepts a duplicate": Fault(_failing(_swallow_duplicates), _fingerprint),
    "accepts an equal key": Fault(
        _failing(_swallow_duplicates), partial(rules.test_second_row_with_a_key_is_refused, SCOPE)
    ),
    "says that it inserted": Fault(
        _answering("insert_or_ignore", lambda rows: rows or [(1,)]),
        partial(statements.test_insert_new_inserts_once, NOTE),
    ),
    "swallows errors": Fault(_failing(lambda *_: []), partial(rules.test_number_out_of_range_is_refused, NOTE)),
    "raises errors of the driver": Fault(
        _failing(_raise_the_drivers), partial(errors.test_fault_is_its_error_everywhere, "equal key")
    ),
    "raises errors of another class": Fault(
        _failing(_raise_another), partial(errors.test_fault_is_its_error_everywhere, "equal key")
    ),
    "quotes values": Fault(_failing(_quote_values), errors.test_messages_name_ids_and_never_values),
    "forgets the cause": Fault(
        _failing(_forget_the_cause), partial(errors.test_fault_is_its_error_everywhere, "required")
    ),
    "answers when closed": Fault(on_contract=errors.test_closed_store_says_so, stays_open=True),
    "commits halves": Fault(on_contract=transactions.test_failed_work_leaves_nothing_behind, write=_commits_halves),
    "does work twice": Fault(
        on_contract=partial(races.test_no_update_is_lost_between_threads, "commit"), write=_runs_twice
    ),
    "records one change of a commit": Fault(
        on_contract=transactions.test_committed_work_is_told_after_the_commit_in_one_change_record,
        write=_records_one_change,
    ),
    "tells mirrors half": Fault(
        on_contract=lambda contract: (
            changes.test_own_commits_are_told_in_order_and_are_no_news(contract),
            transactions.test_committed_work_is_told_after_the_commit_in_one_change_record(contract),
        ),
        write=_records_one_change,
    ),
    "filters keep one back": Fault(_changing(".filter_", lambda rows: rows[1:]), FILTERS),
    "counts one too few": Fault(_changing(".count_", lambda rows: [(row[0] - 1,) for row in rows]), FILTERS),
    "lists in another order": Fault(
        _changing(".list_", lambda rows: rows[::-1]),
        partial(filters.test_records_are_listed_in_order_page_by_page, NOTE),
    ),
    "reads in bulk all but the last batch": Fault(
        on_contract=bulk.test_load_is_whole_or_nothing_and_passes_over_what_is_there,
        batches=lambda batches: batches[:-1],
    ),
}
