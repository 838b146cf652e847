"""Facet ``memory.admin.inspect``: plain values that tools for people show of a store; statistics of a tenant.

Statistics are record counts, bytes, memory use, recent operations, and differences to the database.
"""

from __future__ import annotations

import math
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np

from caliber.access.identities import MERGED
from caliber.access.owners import TaskOwners, may_be_latest
from caliber.access.visibility import Readers
from caliber.admin import spaces
from caliber.admin.absence import Expected, Miss, Question
from caliber.admin.checking import check_full_text, check_hashes, check_memory
from caliber.admin.tables import Tables
from caliber.context.record.log import WindowLog
from caliber.context.service import ContextService
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.jobs.queue import JobQueue
from caliber.kernels import active_path
from caliber.kernels.jit.code import CompiledCode
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import NotFound
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.references import EntityRef, Id
from caliber.model.storage import OperationStats, ReadConsistency
from caliber.model.trajectory import Trajectory, TrajectoryStatus
from caliber.resident.memory import ResidentMemory
from caliber.schema.relation import Relation
from caliber.schema.relations import EMBEDDING_SPACE, EVENT, TRAJECTORY
from caliber.search.filtering.filters import check_kinds
from caliber.search.opening import SearchEngine
from caliber.search.service import Searching
from caliber.storage.maintain.integrity import Finding
from caliber.trajectory.summarizer import TurnSummarizer

_WINDOWS_TRIED = 100
"""The newest windows of each task among which that of a principal who is no administrator is looked for."""
_TWO_STATEMENTS = ("The build takes 7 minutes.", "The build takes 9 minutes.")


class Inspection:
    """Values that tools show of a store, as one principal sees it; no use of records is counted."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        engine.check_open()
        self._engine = engine
        self._principal = principal
        self._searching = Searching(engine, principal)
        self._readers = self._searching.readers

    # --- records ---------------------------------------------------------------------------------

    def record(self, record_id: Id) -> Any | None:
        """Return a record, or None where there is none that may be seen; the application sees those of its users."""
        searching = Searching(self._engine, Principal.admin()) if self._principal.serves else self._searching
        try:
            _, relation, row = searching.locate(arguments.as_uuid(record_id, "record_id"))
        except NotFound:
            return None
        return searching.readers.shown(relation.relation, self._engine.memory.entity(relation, row))

    def latest_task(self) -> uuid.UUID | None:
        """Return the active task with the latest activity that the principal may work on; of a user, an own one."""
        self._engine.snapshot(ReadConsistency.LATEST)
        return latest_task(self._engine.memory, self._readers, self._principal)

    def latest_window(self) -> uuid.UUID | None:
        """Return the window that was assembled last, of those that the principal may read."""
        tables, found = Tables(self._engine), []
        for task in tables.trajectories.all():
            if not self._readers.allows_change(TRAJECTORY, task):
                continue
            most = 1 if self._principal.is_admin else _WINDOWS_TRIED
            windows = tables.context_windows.list_by_trajectory(task.trajectory_id, limit=most)
            found += [(each.assembled_at, each.window_id) for each in windows if self._reads(each.window_id)]
        return max(found)[1] if found else None

    def window_hash(self, window_id: Id) -> bytes:
        """Return the SHA-256 of the text that a window had when it was assembled. Raises: NotFound."""
        return self._windows().recorded(arguments.as_uuid(window_id, "window_id"))[0].text_hash

    def user_of(self, trajectory_id: Id) -> EntityRef | None:
        """Return the user that a task is private to, if it is. Raises: NotFound."""
        key = arguments.as_uuid(trajectory_id, "trajectory_id")
        self._engine.snapshot(ReadConsistency.LATEST)
        if not (self._principal.serves or self._readers.sees_task(key.bytes)):
            raise NotFound(entity_type=TRAJECTORY.name, id=key)
        return self._readers.user_of_tasks([key])

    def named(self, names: Iterable[str]) -> list[tuple[EntityRef, str]]:
        """Return users and agents of these names in any case, each with its name.

        Raises: PermissionDenied unless the principal is an admin or the application.
        """
        each_name = [
            arguments.as_text(name, "names", allow_empty=True)
            for name in arguments.as_items(names, "names", "several names")
        ]
        tables, wanted = Tables(self._whole("look up names of")), {name.casefold(): name for name in each_name}
        found: list[tuple[EntityRef, str]] = [
            (each.entity, f"{each.namespace}:{each.name}".removeprefix(":"))
            for each in tables.identities.all()
            if each.namespace != MERGED and each.name.casefold() in wanted
        ]
        for name in wanted.values():  # users of imports have no stored name
            user = EntityRef.user(name)
            if tables.trajectories.list_by_initiator("user", user.id, limit=1):
                found.append((user, name))
        return found

    # --- search ----------------------------------------------------------------------------------

    def filters(self, kinds: Sequence[str] | None = None) -> Mapping[str, frozenset[str]]:
        """Return the names that a filter of searches of these kinds, or of all, may have, with their types.

        Raises: InvalidValue, DTypeError for what is no kind.
        """
        searched = self._engine.part(SearchEngine).kinds
        out: dict[str, frozenset[str]] = {}
        for relation in check_kinds(kinds, searched):
            for column in self._engine.store.catalog.by_name[relation].columns:
                out[column.name] = out.get(column.name, frozenset()) | {column.type.value}
        return out

    def absence(
        self,
        query: str,
        expected: Id | str,
        *,
        kinds: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  (as of Caliber.search)
        as_of: datetime | None = None,
    ) -> Miss:
        """Return why a search does not find a record, given by its id or by text that it holds, or finds it late."""
        if isinstance(expected, str):
            wanted = Expected(None, arguments.as_text(expected, "expected"))
        else:
            record_id = arguments.as_uuid(expected, "expected")
            wanted = Expected(record_id, str(record_id))
        where = arguments.as_mapping(filter, "filter")
        asked = (arguments.as_text(query, "query"), wanted, kinds, where, arguments.as_instant(as_of, "as_of"))
        return Question(self._principal.label, self._engine, self._searching, *asked).absence()

    # --- the store -------------------------------------------------------------------------------

    def spaces(self) -> list[spaces.SpaceReport]:
        """Return a report of each embedding space, oldest first: how much of the store it covers, and its use.

        Raises: PermissionDenied unless the principal is an admin or the application.
        """
        return spaces.SpaceTable(self._whole("count vectors of"), EMBEDDING_SPACE).report()

    def searched_space(self) -> dict[str, Any] | None:
        """Return the searched space, whether its provider answers, and the space being filled: from memory alone."""
        return spaces.in_short(self._engine)

    def differences(self) -> list[Finding]:
        """Return the differences between memory and store.

        Raises: PermissionDenied unless the principal is an admin or the application.
        """
        return check_memory(self._whole("compare"))

    def ask_embedding(self) -> None:
        """Have the embedding provider embed a text, if there is one. Raises: what the provider raises."""
        embedder = self._engine.part(Embeddings).embedder
        if embedder is not None:
            embedder.query("caliber doctor")

    def ask_summarization(self) -> None:
        """Have the summarization provider compare two statements. Raises: what the provider raises."""
        self._engine.summarizer.verify_contradiction(*_TWO_STATEMENTS)

    def statements(self) -> int:
        """Return how many statements this process sent to the database."""
        return self._engine.store.statement_count()

    def _whole(self, action: str) -> Engine:
        """Return the engine, for a call about the whole store. Raises: PermissionDenied."""
        if not self._principal.serves:
            self._principal.require_admin(action, "the store")
        return self._engine

    def _windows(self) -> ContextService:
        return ContextService(self._engine, self._principal, self._searching)

    def _reads(self, window_id: uuid.UUID) -> bool:
        try:
            return self._principal.is_admin or bool(self._windows().recorded(window_id))
        except NotFound:
            return False


def latest_task(memory: ResidentMemory, readers: Readers, who: Principal) -> uuid.UUID | None:
    """Return the active task with the latest activity that a principal may work on; of a user, an own one."""
    ids, tasks = readers.visibility().ids, memory.snapshot[TRAJECTORY.name]
    active = tasks.column("status") == tasks.enum_code("status", TrajectoryStatus.ACTIVE.value)
    found: list[Trajectory] = [memory.entity(tasks, row) for row in np.flatnonzero(tasks.live_mask & active).tolist()]
    own = [each for each in found if may_be_latest(each, who, ids) and readers.allows_change(TRAJECTORY, each)]
    return max(own, key=lambda each: each.last_activity_at).trajectory_id if own else None


def stats(engine: Engine, principal: Principal) -> dict[str, Any]:
    """Return figures about a tenant, as a principal may know them: a user or agent only its numbers of records."""
    engine.check_open()
    snapshot = engine.memory.snapshot
    records = {name: relation.count() for name, relation in snapshot.relations.items()}
    with engine.store.read() as session:
        for relation in engine.store.catalog.relations:
            if relation.name not in records:
                records[relation.name] = session.run(engine.store.plans[relation.name].count, ())[0][0]
    if not principal.serves:
        return {"records": visible_records(engine, records, principal)}
    behind, jobs = engine.behind, engine.part(JobQueue)
    windows = engine.part(WindowLog)
    resident = engine.memory.stats
    embedder = engine.part(Embeddings).embedder
    summaries = engine.find_part(TurnSummarizer)
    return {
        "store": engine.store.facts(),
        "position": {"epoch": snapshot.position.epoch, "sequence": snapshot.position.sequence},
        "records": records if principal.is_admin else visible_records(engine, records, principal),
        "resident": {
            "column_bytes": engine.memory.mirrors.column_bytes,
            "text_bytes": engine.memory.mirrors.text_bytes,
            "limit_bytes": engine.config.resident.resident_bytes,
            "applied_own": resident.applied_own,
            "applied_foreign": resident.applied_foreign,
            "reloads": resident.reloads,
            "compactions": resident.compactions,
            "failures": resident.failures,
            "over_budget_bytes": resident.over_budget_bytes,
            "evicted_texts_read": resident.evicted_texts_read,
        },
        "behind": {
            "waiting": behind.waiting(),
            "set_aside": behind.set_aside,
            "unrecorded_errors": engine.unrecorded_errors,
            "windows_written": windows.windows,
            "bytes_a_window": windows.bytes // max(windows.windows, 1),
            "jobs_waiting": sum(jobs.waiting().values()),
            "jobs_failed": jobs.failed(),
            "embeddings_waiting": 0 if embedder is None else embedder.waiting(),
            "turn_summaries_waiting": 0 if summaries is None else summaries.count(),
        },
        "embedding_spaces": spaces.in_short(engine),
        "providers": {
            "embedding": None if embedder is None else embedder.provider.model_id,
            "summarization": None if engine.summarization is None else engine.summarization.model_id,
        },
        "kernels": active_path(),
        "estimator": engine.estimator.name,
        "evaluator": engine.evaluator.name,
        "compiled_loops": _compiled(engine.evaluator.code),
        "config_hash": engine.config.hash.hex(),
    }


def _compiled(code: CompiledCode | None) -> dict[str, Any] | None:
    """Return the origin of this process's loops; None when nothing is compiled."""
    if code is None:
        return None
    return {
        "folder": str(code.folder),
        "loaded": code.loaded,
        "compiled": code.compiled,
        "seconds": round(code.seconds, 3),
        "problems": list(code.problems),
    }


def visible_records(engine: Engine, records: dict[str, int], principal: Principal) -> dict[str, int]:
    """Return the number of records of public kinds, and of visible records of the others.

    Dependent rows, such as vectors, links and events, would reveal hidden records, and are left out.
    """
    by_name = engine.store.catalog.by_name
    out = {name: count for name, count in records.items() if _tells_of_no_other(by_name[name])}
    readers = Readers(engine.part(TaskOwners), principal)
    for name, mirror in engine.memory.snapshot.relations.items():
        if mirror.relation.rights.hides:
            rows, mask = mirror.rows(), readers.over(mirror, texts=False)
            out[name] = len(rows) if mask is None else int(mask.mask()[rows].sum())
    return out


def _tells_of_no_other(relation: Relation) -> bool:
    """Return whether records are independent, may be found by all, and depend on no others."""
    erase = relation.erase
    is_public = relation.text is not None and not relation.rights.hides
    is_part = any(key.on_delete == "cascade" for key in relation.foreign_keys)
    return is_public and not is_part and erase is not None and not erase.hangs_on and erase.cache is None


def verify(engine: Engine) -> list[str]:
    """Return every disagreement between memory and store, and every fault the store finds in itself."""
    engine.check_open()
    differences = [f"{item.relation} {item.ordinal}: {item.what}" for item in engine.memory.verify()]
    differences += engine.store.integrity()
    differences += check_full_text(engine.store, engine.config)
    return differences or [
        f"{each.count} of {each.relation or 'the store'}, {', '.join(each.examples)}: {each.what}"
        for each in check_hashes(engine.store)
    ]


_MOST: Final = 100_000


def recent_operations(engine: Engine, window_ms: int) -> list[OperationStats]:
    """Return figures of the operations that ended within the last ``window_ms``, the most frequent first."""
    since_us = engine.clock.now_us() - window_ms * 1_000
    decode = engine.store.plans[EVENT.name].codec.decode
    with engine.store.read() as session:
        rows = session.run(engine.store.statements["event.recent"], (EventFamily.ACTIVITY.value, since_us, _MOST))
    by_name: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in map(decode, rows):
        if event.event_type == EventType.OPERATION:
            by_name[event.payload["kind"], event.payload["operation"]].append(event)
    found = [_figures(kind, name, events, window_ms) for (kind, name), events in by_name.items()]
    return sorted(found, key=lambda each: (-each.per_second, each.kind, each.operation))


def _figures(kind: str, name: str, events: list[Event], window_ms: int) -> OperationStats:
    took = sorted(event.payload["duration_us"] for event in events)
    return OperationStats(
        operation=name,
        kind=kind,
        recorded=len(events),
        per_second=sum(1 / event.payload["share"] for event in events) * 1_000 / window_ms,
        p50_us=_quantile(took, 0.5),
        p95_us=_quantile(took, 0.95),
        max_us=took[-1],
        errors=sum("error" in event.payload for event in events),
    )


def _quantile(ordered: list[int], share: float) -> int:
    """Return the value that a share of sorted values does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
