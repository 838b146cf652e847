"""Erasure service: runs ``forget`` and ``purge_trajectory`` from transaction through file cleaning to proof.

``purge_store`` removes a whole tenant, with its files or its schema.

The subject's names are never stored. A row records only that an erasure is in progress: when a process dies after its
transaction, the records are gone already, and ``resume`` does the rest without knowing the subject.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from caliber.access.identities import AGENTS, current, entity_of, labels_of_agent, merged_into, names_of
from caliber.backends import bare_store
from caliber.config import CaliberConfig
from caliber.engine.deferred_reads import ERASING
from caliber.engine.engine import Engine
from caliber.erasure.erasing import Outcome, Walk, Wanted
from caliber.erasure.proving import Proof
from caliber.erasure.subject import Subject
from caliber.erasure.unfinished import (
    ERASURE_JOB,
    LOG_TO_SCRUB,
    REWRITTEN,
    drop_from_memory,
    unfinished_erasures,
)
from caliber.jobs.claims import Claim, Superseded, take_back
from caliber.jobs.queue import JobQueue
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.deadline import unbounded
from caliber.model.erasure import Erasure, ErasureKind, ForgetReport, Searched
from caliber.model.errors import InvalidValue, Unavailable
from caliber.model.events import EventType
from caliber.model.process.interpreter import renew_in_child
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.schema.relations import ERASURE, TRAJECTORY
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

_ROUNDS: Final = 3
"""How often data that others wrote meanwhile (a vector, a window in a queue) is searched for and erased too."""
_GOES_ON: Final = "maintenance goes on with it, and so does admin.resume_forgetting"
_WAIT_MS: Final = 10_000
_BEHIND_MS: Final = 1_000
"""The longest wait for another user of the store when a job finishes an erasure; its next time is later."""
_one_at_a_time = threading.Lock()
renew_in_child(globals(), "_one_at_a_time")


class _OnlyCounted(Exception):
    """Ends the transaction of a rehearsal, so that nothing of it stands."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("rehearsal")
        self.outcome = outcome


class Forgetting:
    """Forgetting on behalf of one principal."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def forget(
        self,
        entity: EntityRef | None,
        texts: Sequence[str],
        user: str | EntityRef | None = None,
        *,
        dry_run: bool,
        even_if_shared: bool,
        wait_ms: int | None,
        scrub_log: bool = False,
    ) -> ForgetReport:
        """Erase a subject. Raises: as ``Caliber.forget``."""
        is_user = user is not None or getattr(entity, "entity_type", None) is EntityType.USER
        if self._principal.is_application and is_user and not (even_if_shared or scrub_log):
            self._engine.check_open()  # the application may erase a user
        else:
            self._check_rights("forget")
        if user is not None and entity is not None:
            raise InvalidValue(field="user", reason="is given with entity; one of them says who is forgotten")
        names: set[str] = set()
        if user is not None:
            entity = entity_of(self._engine, user, register=False)
            names = {each.name for each in names_of(self._engine, entity)}
            names |= set() if isinstance(user, EntityRef) else {EntityRef.plain_name(user)}
            names |= {Principal.user(name).label for name in names}
        if entity is not None:
            entity = arguments.as_reference(entity, "entity", self._engine.store.catalog.by_name)
            entity = current(self._engine, entity)
            if entity.entity_type == AGENTS:
                names |= labels_of_agent(self._engine, entity)
        merged = [] if entity is None else merged_into(self._engine, entity)
        wanted = Wanted(Subject.of(entity, texts, merged, names), even_if_shared=even_if_shared)
        return self._run(ErasureKind.SUBJECT, wanted, dry_run, wait_ms, scrub_log)

    def purge_trajectory(
        self, trajectory_id: uuid.UUID, *, dry_run: bool, wait_ms: int | None, scrub_log: bool = False
    ) -> ForgetReport:
        """Erase a task and the tasks it started. Raises: as ``Admin.purge_trajectory``."""
        self._check_rights("purge")
        wanted = Wanted(Subject(self._family(trajectory_id)), even_if_shared=True, of_person=False)
        return self._run(ErasureKind.TRAJECTORY, wanted, dry_run, wait_ms, scrub_log)

    def resume(self, *, wait_ms: int | None = None) -> list[ForgetReport]:
        """Finish erasures that were cut short; return a report of each."""
        self._check_rights("forget")
        return finish_erasures(self._engine, _WAIT_MS if wait_ms is None else wait_ms, log_too=True)

    def _check_rights(self, action: str) -> None:
        self._engine.check_open()
        self._principal.require_admin(action, "the store")

    def _family(self, trajectory_id: uuid.UUID) -> list[uuid.UUID]:
        def family(uow: UnitOfWork) -> list[uuid.UUID]:
            found: list[uuid.UUID] = [uow.get(TRAJECTORY, trajectory_id.bytes).trajectory_id]
            for task in found:
                found += (each.trajectory_id for each in uow.select_path(TRAJECTORY, "list_children", task.bytes))
            return found

        return self._engine.read(family)

    def _run(
        self, kind: ErasureKind, wanted: Wanted, dry_run: bool, wait_ms: int | None, scrub_log: bool
    ) -> ForgetReport:
        engine = self._engine
        wait = _WAIT_MS if wait_ms is None else arguments.as_whole(wait_ms, "wait_ms")
        with _one_at_a_time:
            engine.behind.flush()
            if dry_run:
                outcome = self._rehearse(wanted)
                return ForgetReport(kind, True, outcome.erased, outcome.redacted, outcome.windows_closed)
            erasure_id = uuid7()
            outcome, claim = self._begin(kind, wanted, erasure_id, scrub_log)
            with claim.working():
                try:
                    return self._removed(kind, wanted, outcome, erasure_id, wait_s=wait / 1_000, scrub_log=scrub_log)
                except Unavailable as error:
                    text = f"the records are erased; removing them from files was stopped ({error}): " + _GOES_ON
                    raise Unavailable(text, erasure_id=erasure_id, reason=error.context.get("reason")) from error
                finally:
                    leave(engine, claim)

    def _removed(
        self,
        kind: ErasureKind,
        wanted: Wanted,
        outcome: Outcome,
        erasure_id: uuid.UUID,
        *,
        wait_s: float,
        scrub_log: bool,
    ) -> ForgetReport:
        """Remove from files what a transaction erased, look for it everywhere, and return what is proven."""
        engine = self._engine
        for number in range(_ROUNDS):
            if number:
                engine.behind.flush()
                outcome.add(self._again(wanted, erasure_id))
            drop_from_memory(engine)
            remaining = engine.store.eraser.scrub(wait_s)
            if scrub_log and not remaining:
                remaining = engine.store.eraser.scrub_log(wait_s)
                if remaining:
                    mark_rewritten(engine, erasure_id)
            proof = Proof(wanted.subject, outcome.hashes)
            proof.read(engine.store, engine.memory)
            if not proof.findings or remaining:
                break
        if wanted.subject.mentioned(engine.config.canonical_json()):
            remaining.append("the configuration in use names it: change its file, reopen the store, and forget again")
        if not remaining and not proof.findings:
            _finish(engine, erasure_id)
        if scrub_log and not remaining:
            for earlier in unfinished_erasures(engine):
                if REWRITTEN in earlier.counts:  # it waited for the same log
                    _finish(engine, earlier.erasure_id)
        remaining += [*_left_alone(proof), *_maybe_drawn(outcome)]
        return ForgetReport(
            kind=kind,
            dry_run=False,
            erased=outcome.erased,
            redacted=outcome.redacted,
            windows_closed=outcome.windows_closed,
            erasure_id=erasure_id,
            searched=tuple(proof.places),
            inside_words=proof.inside_words,
            remaining=tuple(remaining),
            out_of_reach=(*engine.store.eraser.out_of_reach(), *_elsewhere(engine)),
        )

    def _walk(self, uow: UnitOfWork, wanted: Wanted) -> Outcome:
        engine = self._engine
        uow.serialize(ERASING)  # before the tables: those who write rows of reads have it then
        if engine.store.eraser.hold is not None:
            uow.run(engine.store.eraser.hold)
        erasures = (codec_of(ERASURE).decode(row) for page in uow.pages(ERASURE) for row in page)
        earlier = frozenset(each.bytes for erasure in erasures for each in erasure.unread or ())
        outcome = Walk(uow, wanted, engine.estimator, earlier).run()
        # Workers have read the subject's records already: their results and errors may hold the subject's words.
        take_back(uow, besides=ERASURE_JOB)
        uow.on_commit.append(lambda: engine.part(JobQueue).on_enqueued(0.0))
        return outcome

    def _rehearse(self, wanted: Wanted) -> Outcome:
        def work(uow: UnitOfWork) -> None:
            raise _OnlyCounted(self._walk(uow, wanted))

        try:
            self._engine.write(work)
        except _OnlyCounted as rehearsal:
            return rehearsal.outcome
        raise AssertionError  # work always raises

    def _begin(
        self, kind: ErasureKind, wanted: Wanted, erasure_id: uuid.UUID, scrub_log: bool
    ) -> tuple[Outcome, Claim]:
        """Erase the subject, and add the job that rids the files of it; the caller does that."""
        jobs = self._engine.part(JobQueue)

        def work(uow: UnitOfWork) -> tuple[Outcome, Claim]:
            outcome = self._walk(uow, wanted)
            asked = {LOG_TO_SCRUB: 1} if scrub_log else {}
            erasure = Erasure(
                erasure_id, kind, outcome.counts | asked, from_us(uow.now_us), unread=_ids(outcome.unclear)
            )
            uow.record_change(ERASURE, erasure, uow.insert(ERASURE, erasure))
            label = self._principal.label
            by = None if wanted.subject.mentioned(label) else label
            told = {"erasure_id": str(erasure_id), "kind": kind.value, "counts": erasure.counts}
            self._engine.audit(uow, EventType.FORGET, principal=by, payload=told)
            return outcome, jobs.enqueue_claimed(uow, ERASURE_JOB, payload={"erasure_id": erasure_id.hex})

        return self._engine.write(work)

    def _again(self, wanted: Wanted, erasure_id: uuid.UUID) -> Outcome:
        """Erase data that others wrote meanwhile."""

        def work(uow: UnitOfWork) -> Outcome:
            outcome = self._walk(uow, wanted)
            found: Erasure = uow.get(ERASURE, erasure_id.bytes)
            if not outcome.is_empty:
                counts = dict(found.counts)
                for name, count in outcome.counts.items():
                    counts[name] = counts.get(name, 0) + count
                unread = tuple({*(found.unread or ()), *_ids(outcome.unclear)})
                changed = dataclasses.replace(found, counts=counts, unread=unread)
                uow.record_change(ERASURE, uow.update(ERASURE, changed), None)
            return outcome

        return self._engine.write(work)


def finish_erasures(engine: Engine, wait_ms: int, *, log_too: bool) -> list[ForgetReport]:
    """Finish the erasures of dead processes, without knowing their subjects.

    The log of a server is overwritten only on request (``log_too``), not by maintenance.
    """
    unfinished = unfinished_erasures(engine)
    if not log_too:
        unfinished = [erasure for erasure in unfinished if REWRITTEN not in erasure.counts]
    if not unfinished:
        return []
    eraser, wait_s = engine.store.eraser, wait_ms / 1_000
    with _one_at_a_time:
        remaining: list[str] = []
        if any(REWRITTEN not in erasure.counts for erasure in unfinished):
            drop_from_memory(engine)
            remaining = eraser.scrub(wait_s)
        of_log = remaining
        if not remaining and any(LOG_TO_SCRUB in erasure.counts for erasure in unfinished):
            of_log = eraser.scrub_log(wait_s) if log_too else ["the server's log: `caliber forget --resume` scrubs it"]
        left = {item.erasure_id: of_log if LOG_TO_SCRUB in item.counts else remaining for item in unfinished}
        for erasure_id, lines in left.items():
            if not lines:
                _finish(engine, erasure_id)
            elif not remaining:
                mark_rewritten(engine, erasure_id)
    unknown = "whom it was about is kept nowhere, so nothing was looked for: forget again to have it proven"
    reached = (unknown, *eraser.out_of_reach(), *_elsewhere(engine))
    return [
        ForgetReport(
            erasure.kind,
            False,
            erasure_id=erasure.erasure_id,
            remaining=tuple(left[erasure.erasure_id]),
            out_of_reach=reached,
        )
        for erasure in unfinished
    ]


def run_left(engine: Engine, claim: Claim) -> int:
    """Rid the files of an erasure that a process left; return 1, or 0 while another user of the store is in the way."""
    finish_erasures(engine, _BEHIND_MS, log_too=False)
    return leave(engine, claim)


def leave(engine: Engine, claim: Claim) -> int:
    """End the job of an erasure whose files are done, or let it wait for its next time; return how many it ended."""
    unfinished = {item.erasure_id.hex for item in unfinished_erasures(engine) if REWRITTEN not in item.counts}
    done = claim.job.payload["erasure_id"] not in unfinished

    def work(uow: UnitOfWork) -> None:
        if done:
            claim.ack(uow)
        else:
            later = uow.now_us + engine.config.jobs.backoff_max_ms * 1_000
            claim.reschedule(uow, later, claim.job.payload)

    with unbounded(), contextlib.suppress(Superseded):
        engine.write(work)
    return int(done)


def mark_rewritten(engine: Engine, erasure_id: uuid.UUID) -> None:
    """Record that the store's own files are rewritten: another process need not repeat it."""

    def work(uow: UnitOfWork) -> None:
        erasure: Erasure = uow.get(ERASURE, erasure_id.bytes)
        if REWRITTEN not in erasure.counts:
            uow.update(ERASURE, dataclasses.replace(erasure, counts={**erasure.counts, REWRITTEN: 1}))

    engine.write(work)


def _finish(engine: Engine, erasure_id: uuid.UUID) -> None:
    def work(uow: UnitOfWork) -> None:
        erasure: Erasure = uow.get(ERASURE, erasure_id.bytes)
        if erasure.finished_at is None:
            uow.update(ERASURE, dataclasses.replace(erasure, finished_at=from_us(uow.now_us)))

    engine.write(work)


def _left_alone(proof: Proof) -> list[str]:
    """Return the lines about records with a name of the subject that may name other people."""
    if not proof.doubtful:
        return []
    found = ", ".join(f"{name} ({count})" for name, count in sorted(proof.doubtful.items()))
    left = f"a name that may name somebody else, as a plain word does, was left in records of {found}"
    return [f"{left}: look for it, and forget again with texts=(name,) if it names the user"]


def _maybe_drawn(outcome: Outcome) -> list[str]:
    """Return the lines about records that may have been drawn from words of the subject."""
    out = []
    if outcome.unclear:
        found = ", ".join(f"{name} ({len(ids)})" for name, ids in sorted(outcome.unclear.items()))
        out.append(
            f"{found} of tasks that the subject wrote in may say in other words what it said: read and delete them"
        )
    known = {each for ids in outcome.unclear.values() for each in ids}
    earlier = {name: len(ids - known) for name, ids in sorted(outcome.earlier.items()) if ids - known}
    if earlier:
        found = ", ".join(f"{name} ({count})" for name, count in earlier.items())
        out.append(
            f"{found} that an earlier erasure left may say in other words what a subject said, perhaps this one: read "
            "and delete them, or empty `unread` in storage.erasures"
        )
    return out


def _ids(found: Mapping[str, set[bytes]]) -> tuple[uuid.UUID, ...]:
    """Return the ids of records by relation as one list."""
    return tuple(uuid.UUID(bytes=each) for ids in found.values() for each in sorted(ids))


def _elsewhere(engine: Engine) -> list[str]:
    behind = engine.config.write_behind.flush_interval_ms
    others = (
        f"what other processes had read and not yet written (windows, events, up to {behind} ms): forget again then"
    )
    return [others, "providers that were asked for vectors or summaries, and whatever was printed, logged or exported"]


def purge_store(config: CaliberConfig, *, dry_run: bool, wait_ms: int | None, scrub_log: bool) -> ForgetReport:
    """Remove a store. Raises: as ``purge`` of ``caliber.api.opening``."""
    wait = _WAIT_MS if wait_ms is None else arguments.as_whole(wait_ms, "wait_ms")
    with bare_store(config) as store:
        with store.read() as session:
            counts = {
                item.name: session.run(store.plans[item.name].count, ())[0][0] for item in store.catalog.relations
            }
        erased = {name: count for name, count in counts.items() if count}
        if dry_run:
            return ForgetReport(ErasureKind.STORE, True, erased)
        remaining = store.eraser.destroy(wait / 1_000)
        if scrub_log and not remaining:
            remaining = store.eraser.scrub_log(wait / 1_000)
        places = []
        for place in store.eraser.leftovers():
            parts = [len(part) for part in place.parts]
            places.append(Searched(place.name, place.kind, sum(parts), len(parts)))
        return ForgetReport(
            ErasureKind.STORE,
            False,
            erased,
            searched=tuple(places),
            remaining=tuple(remaining),
            out_of_reach=tuple(store.eraser.out_of_reach()),
        )
