"""Statistics of a tenant: record counts, bytes, memory use, recent operations, differences to the database."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.admin import spaces
from caliber.admin.checking import check_full_text, check_hashes
from caliber.context.record.log import WindowLog
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.jobs.queue import JobQueue
from caliber.kernels import active_path
from caliber.kernels.jit.code import CompiledCode
from caliber.model.access import Principal
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.storage import OperationStats
from caliber.schema.relation import Relation
from caliber.schema.relations import EVENT
from caliber.trajectory.summarizer import TurnSummarizer


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
