"""Job handler that learns facts about people from the turns that a call of ``remember`` appended.

The turns are committed already, with the job. Reading them, asking a provider and deciding need no transaction; one
transaction then writes the notes, the links to their people, the decisions with their reasons, and the end of the job.

Source: M §3.1, §3.2, C-422; docs/learning.md.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any, Final, cast

from caliber.access.correcting import Correction
from caliber.access.corrections import Corrections
from caliber.access.identities import current_in, identities_in
from caliber.access.owners import TaskOwners, author_of, user_of
from caliber.access.visibility import Readers
from caliber.embedding.embedding_target import Vectors, attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs, check_erasures, check_turns
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.knowledge.notes import NewNote, NoteCorrections, add_note
from caliber.learning.asking import Asking
from caliber.learning.deciding import NOT_READ, Candidate, Decider, Held, Refused, StatedCandidate, Step, comparable
from caliber.learning.owner import Facts, Owner, People, owner_in, taught_by
from caliber.llm.protocols import LearningProvider
from caliber.llm.retry import is_outage
from caliber.model.access import Principal
from caliber.model.deadline import check
from caliber.model.errors import Conflict, InvalidValue
from caliber.model.events import EventType
from caliber.model.knowledge import Note
from caliber.model.learning import LearningAction, PersonFact
from caliber.model.references import EntityRef, EntityType
from caliber.model.storage import ReadConsistency
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Trajectory, Turn, TurnRole
from caliber.model.trust import TrustLabel
from caliber.schema.relations import ERASURE, NOTE, PERSON_FACT, TRAJECTORY, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.derived import derived_value
from caliber.storage.waiting import DeadlineLock, apart
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.text.dates import Moment

if TYPE_CHECKING:
    from caliber.learning.reading import MessageReader

KIND: Final = "learning"
"""The kind of the jobs that learn."""
PERSON: Final = "person"
"""The ``entity_type`` of notes about people."""
_CONTEXT: Final = 64
"""The turns before those of a batch that say whether a part is being played."""
_CONTEXT_BYTES: Final = 16_000
"""The bytes of the user's earlier turns that are looked through with each batch."""
_LOCKS: Final = 64
"""Locks that users share: threads that learn about one user do so one after the other."""
_HEARD: Final = 16_384  # turns of which it is known whether a part is played behind them
_TURN_ID, _CONTENT, _ROLE, _TRUST = (codec_of(TURN).index(name) for name in ("turn_id", "content", "role", "trust"))
_TRUSTED: Final = {label.value for label in TrustLabel if label.distrust <= TrustLabel.USER.distrust}
MAX_FACTS: Final = 100
"""Most facts learnt from one call, and most known facts of one person that a language model gets to see."""
TOO_MANY: Final = "more facts than one call may teach"


def _message_reader() -> type[MessageReader]:
    # Its patterns take over 100 ms to compile, which a process that learns nothing does without.
    from caliber.learning.reading import MessageReader

    return MessageReader


class Learner:
    """Learns from turns; one an open tenant."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs = engine.part(JobQueue)
        self._embeddings = engine.part(Embeddings)
        self._config = engine.config.learning
        self._locks: dict[int, DeadlineLock] = {}
        self._reader = functools.cache(functools.partial(apart, _message_reader))
        self._heard: dict[tuple[bytes, int, bool], bool] = {}
        """Whether a part is played behind a turn, by its id, the hash of its content, and whether one was before."""
        self._jobs.register(Handler(KIND, self.run, outlasts=is_outage))

    # --- enqueueing ------------------------------------------------------------------------------

    def enqueue(
        self, uow: UnitOfWork, turns: Sequence[Turn], owner: EntityRef, principal: Principal, *, now: bool
    ) -> tuple[uuid.UUID, Claim | None] | None:
        """Add the job of appended turns to their transaction; with ``now`` the caller runs it after the commit.

        None where no turn is one that teaches.
        """
        teaching = [str(turn.turn_id) for turn in _said_by(uow, owner, turns) if self._teaches(turn)]
        if not teaching:
            return None
        payload = {"turns": teaching, "owner": [str(owner.entity_type), str(owner.id)]}
        task = turns[0].trajectory_id
        if now:
            claim = self._jobs.enqueue_claimed(uow, KIND, payload=payload, principal=principal, trajectory_id=task)
            return claim.job.job_id, claim
        job = self._jobs.enqueue(uow, KIND, payload=payload, principal=principal, trajectory_id=task)
        return None if job is None else (job.job_id, None)

    @staticmethod
    def _teaches(turn: Turn) -> bool:
        """Return whether a turn may teach: words of the user, not of a tool, a page or a model."""
        return turn.role is TurnRole.USER and turn.trust in _TRUSTED

    def learn_now(self, claim: Claim) -> int | None:
        """Do the job in the caller's thread, and return its decisions; after a failure, None, it waits as every job.

        Raises: Unavailable when the deadline passes.
        """
        with claim.working():
            if (decisions := self._jobs.attempt(claim)) is None:
                check("the messages were learnt from")
            return decisions

    def finish(self, job_id: uuid.UUID) -> None:
        """Do a job that still waits, or that a process left behind; one that has ended stays as it is.

        Raises: as ``run``.
        """
        with self._jobs.holding(job_id) as claim:
            if claim is not None:
                self.run(claim)

    # --- the job ---------------------------------------------------------------------------------

    def run(self, claim: Claim) -> int:
        """Learn from the turns of a job, in the transaction that ends it; return the number of decisions.

        Raises: Superseded; LlmError kinds; Conflict where other processes correct the same facts all the time.
        """
        user = taught_by(claim.job.payload)
        if user is None:
            self._engine.write(claim.ack)
            return 0
        with self._locks.setdefault(user.id.int % _LOCKS, DeadlineLock("other messages of the user were learnt from")):
            for _ in range(self._engine.config.storage.serialization_retries):
                try:
                    return self._run(claim, user)
                except Conflict:
                    continue
            return self._run(claim, user)

    def _run(self, claim: Claim, user: EntityRef) -> int:
        self._engine.check_open()
        payload = claim.job.payload
        keys = [uuid.UUID(each).bytes for each in payload["turns"]]
        asking = self._asking()
        erased, owner, turns, talk = self._engine.read(lambda uow: self._sources(uow, user, keys))
        if turns and not self._may_teach(owner, turns[0].trajectory_id):  # those of a job are of one task
            turns = []
        found = list(self._by_rule(turns, talk)) if asking is None else asking.read(owner.name, turns)
        statements, refusals, people, stored, held = (
            self._engine.read(lambda uow: self._known(uow, owner, found)) if found else ([], [], People(owner), {}, [])
        )
        steps = Decider(held).decide(statements) if asking is None else asking.decide(statements, held)
        ends = [each.stored[1].valid_until for each in held if each.stored and each.stored[1].valid_until is not None]
        writer = _Writer(self._engine, owner, steps)

        def work(uow: UnitOfWork) -> int:
            check_erasures(uow, erased, claim.ack(uow))
            check_turns(uow, turns)
            uow.serialize(f"learning {owner.entity.id}")
            if people.facts(uow, statements) != stored or any(end <= from_us(uow.now_us) for end in ends):
                raise StaleInputs(entity_type=NOTE.name, reason="a fact was corrected while it was learnt from")
            decisions = writer.write(uow)
            decisions += [_refusal(*each, owner) for each in refusals]
            self._engine.audit(
                uow,
                EventType.LEARN,
                principal=claim.job.principal.label,
                trajectory_id=claim.job.trajectory_id,
                subject=(EntityType.JOB, claim.job.job_id),
                payload={"turns": payload["turns"], "owner": payload["owner"], "decisions": decisions},
            )
            return len(decisions)

        return self._engine.write(work)

    def _asking(self) -> Asking | None:
        """Return the language model that learns, or None where rules do."""
        provider = self._engine.summarization
        if self._config.method == "rules" or not isinstance(provider, LearningProvider):
            return None
        return Asking(provider, MAX_FACTS)

    def _sources(
        self, uow: UnitOfWork, user: EntityRef, keys: Sequence[bytes]
    ) -> tuple[int, Owner, list[Turn], list[tuple[bytes, bytes]]]:
        """Return the number of erasures, the owner of facts, and the turns that still stand and teach; and their talk.

        The talk are the ids and contents of these turns and the user's of the same scope before them, in their order.
        Of those only the last ``_CONTEXT_BYTES``, so that a long message does not slow later calls.
        """
        owner = owner_in(uow, current_in(uow, user))
        rows = uow.find_rows(TURN, keys)
        turns: list[Turn] = [codec_of(TURN).decode(rows[key]) for key in keys if key in rows]
        turns = [turn for turn in turns if turn.rolled_back_at is None and self._teaches(turn)]
        talk: list[tuple[bytes, bytes]] = []
        if turns:
            first, last = turns[0], turns[-1]
            block = (first.trajectory_id.bytes, first.scope_id.bytes, first.turn_number - _CONTEXT, last.turn_number)
            taught, left = {turn.turn_id.bytes for turn in turns}, _CONTEXT_BYTES
            for row in reversed(uow.select("turn.block", *block)):
                if row[_TURN_ID] not in taught:
                    left -= len(row[_CONTENT])
                    if left < 0 or row[_ROLE] != TurnRole.USER or row[_TRUST] not in _TRUSTED:
                        continue
                talk.append((row[_TURN_ID], row[_CONTENT]))
        return uow.count(ERASURE), owner, turns, talk[::-1]

    def _by_rule(
        self, turns: Sequence[Turn], talk: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[tuple[Turn, Candidate | Refused]]:
        """Yield the statements of turns by rule, and those that teach nothing; the turns are part of the ``talk``."""
        reader, taught = self._reader()(), {turn.turn_id.bytes: turn for turn in turns}
        for key, content in talk if turns else ():
            before = (key, hash(content), reader.plays)
            if (turn := taught.get(key)) is not None:
                at = turn.occurred_at or turn.created_at
                yield from ((turn, each) for each in reader.read(turn.text, Moment(to_us(at), at.tzinfo or UTC)))
            elif before in self._heard:
                reader.plays = self._heard[before]
                continue
            else:
                reader.hear(content.decode("utf-8", "replace"))
            if len(self._heard) >= _HEARD:
                self._heard.clear()
            self._heard[before] = reader.plays

    def _may_teach(self, owner: Owner, task: uuid.UUID) -> bool:
        """Return whether a user may still write to the task of the turns: not once a grant of it has ended."""
        rows = self._engine.snapshot(ReadConsistency.LATEST)[TRAJECTORY.name]
        number = rows.find(task.bytes)
        found: Trajectory | None = None if number < 0 else self._engine.memory.entity(rows, number)
        if found is None or user_of(found) is None:
            return False
        readers = Readers(self._engine.part(TaskOwners), Principal.application(), owner.entity)
        return readers.sees_task(task.bytes) and readers.writes_task(task.bytes)

    @staticmethod
    def _known(
        uow: UnitOfWork, owner: Owner, found: Sequence[tuple[Turn, Candidate | Refused]]
    ) -> tuple[list[StatedCandidate], list[tuple[Refused, Turn]], People, Facts, list[Held]]:
        """Return the statements, the refusals, at most as many as one call may teach, and the known facts."""
        statements: list[StatedCandidate] = []
        refusals: list[tuple[Refused, Turn]] = []
        people, now = People(owner), from_us(uow.now_us)
        for turn, each in found:
            if isinstance(each, Refused):
                refusals.append((each, turn))
            elif len(statements) < MAX_FACTS:
                stated_at = min(turn.occurred_at or turn.created_at, now)
                if each.day is not None:  # "I moved to Berlin in 2019"
                    stated_at = min(stated_at, datetime.combine(each.day, time(), stated_at.tzinfo))
                named, unnamed = people.named(uow, each.person), people.unnamed(uow, each.person)
                statements.append(StatedCandidate(each, turn, *named, stated_at, unnamed))
            else:
                refusals.append((Refused(TOO_MANY, each.start, each.end, each.attribute), turn))
        refusals.sort(key=lambda each: each[0].reason != NOT_READ)  # of these none may be left out
        stored = people.facts(uow, statements)
        return statements, refusals[:MAX_FACTS], people, stored, people.held(statements, stored, now)


def _refusal(refused: Refused, turn: Turn, owner: Owner) -> dict[str, Any]:
    return {
        "action": LearningAction.NOTHING.value,
        "person": owner.name,
        "attribute": refused.attribute.value,
        "reason": refused.reason,
        "turn_id": str(turn.turn_id),
        "span": [refused.start, refused.end],
    }


class _Writer:
    """The writes of a batch: prepared outside the transaction, carried out in it."""

    def __init__(self, engine: Engine, owner: Owner, steps: Sequence[Step]) -> None:
        self._engine = engine
        self._owner = owner
        self._steps = steps
        self._notes = NoteCorrections(engine, owner.author, rights=owner.learner)
        self._corrections = Corrections(engine, owner.author, rights=owner.learner)
        embeddings = engine.part(Embeddings)
        self._vectors: dict[int, Vectors | None] = {}
        self._prepared: dict[int, Correction[Note]] = {}
        for at, step in enumerate(steps):
            if step.action is LearningAction.ADD:
                self._vectors[at] = embeddings.vector(NOTE.name, _text_of(step.statement))
            elif step.action is not LearningAction.NOTHING and step.target is not None and step.target.stored:
                note = step.target.stored[1]
                self._prepared[at] = self._correction(step, note.note_id, note.version)

    def _correction(self, step: Step, key: uuid.UUID, version: int | None) -> Correction[Note]:
        statement = step.statement
        if step.action is LearningAction.END:
            return self._notes.end(key, statement.stated_at, version, None)
        candidate = statement.candidate
        fields = {
            "content": candidate.content,
            "note_type": candidate.note_type,
            "confidence": candidate.confidence,
            "trust": statement.turn.trust,
            "tags": (candidate.attribute.value,),
        }
        if step.in_place:
            return self._notes.update(key, fields, version, None)
        source = (statement.turn.trajectory_id,)
        return self._notes.supersede(key, fields, statement.stated_at, None, version, None, source)

    def write(self, uow: UnitOfWork) -> list[dict[str, Any]]:
        """Carry out the steps; return each decision as the log keeps it."""
        made: dict[int, tuple[PersonFact, Note]] = {}
        return [self._write(uow, at, step, made) for at, step in enumerate(self._steps)]

    def _write(self, uow: UnitOfWork, at: int, step: Step, made: dict[int, tuple[PersonFact, Note]]) -> dict[str, Any]:
        statement, candidate = step.statement, step.statement.candidate
        decision: dict[str, Any] = {
            "action": step.action.value,
            "person": statement.name,
            "attribute": candidate.attribute.value,
            "value": candidate.value,
            "reason": step.reason,
            "turn_id": str(statement.turn.turn_id),
            "span": [candidate.start, candidate.end],
        }
        old = None if step.target is None else step.target.stored or made[id(step.target)]
        if step.action is LearningAction.NOTHING:
            return decision | ({} if old is None else {"note_id": str(old[1].note_id)})
        if old is None:
            note = self._add(uow, at, statement)
        else:
            # A fact that this batch itself added has no prepared correction, and no version that others know.
            correct = self._prepared.get(at) or self._correction(step, old[1].note_id, None)
            note = correct(uow)
            last = self._corrections.last(uow, NOTE, old[1])
            decision["correction"] = None if last is None else str(last.event_id)
            if note.note_id != old[1].note_id:
                decision["replaces"] = str(old[1].note_id)
            elif step.action is LearningAction.UPDATE:
                decision["was"] = [old[0].attribute.value, old[0].slot, old[0].value]
        if step.made is not None:
            made[id(step.made)] = (self._link(uow, statement, note), note)
        return decision | {"note_id": str(note.note_id)}

    def _add(self, uow: UnitOfWork, at: int, statement: StatedCandidate) -> Note:
        candidate = statement.candidate
        new = NewNote(
            entity=statement.name,
            entity_type=PERSON,
            note_type=candidate.note_type,
            content=candidate.content,
            confidence=candidate.confidence,
            token_count=derived_value(NOTE, "token_count", self._engine.estimator, content=candidate.content),
            valid_from=statement.stated_at if candidate.changes else None,
            tags=(candidate.attribute.value,),
            visible_to=self._owner.readers,
            created_by=author_of(self._owner.author),
            source_trajectory_ids=(statement.turn.trajectory_id,),
            trust=statement.turn.trust,
        )
        note, created = add_note(uow, new)
        if created:
            attach(uow, NOTE.name, note.note_id, _text_of(statement), self._vectors.get(at))
        kind = EventType.NOTE_CREATE if created else EventType.NOTE_UPDATE
        of: dict[str, Any] = {"subject": (EntityType.NOTE, note.note_id), "payload": {"id": str(note.note_id)}}
        task = statement.turn.trajectory_id
        self._engine.emit(uow, kind, principal=self._owner.author.label, trajectory_id=task, **of)
        return note

    def _link(self, uow: UnitOfWork, statement: StatedCandidate, note: Note) -> PersonFact:
        fact = PersonFact(
            note_id=note.note_id,
            person=statement.person,
            owner=self._owner.entity,
            attribute=statement.candidate.attribute,
            slot=statement.candidate.slot,
            value=comparable(statement.candidate.value),
            stated_at=statement.stated_at,
            created_at=from_us(uow.now_us),
        )
        known: PersonFact | None = uow.find(PERSON_FACT, note.note_id.bytes)
        if known is None:
            uow.insert(PERSON_FACT, fact)
            return fact
        fact = dataclasses.replace(fact, created_at=known.created_at, version=known.version)
        return cast(PersonFact, uow.update(PERSON_FACT, fact))


def _text_of(statement: StatedCandidate) -> str:
    return embedded_text(statement.name, statement.candidate.content)


def _said_by(uow: UnitOfWork, owner: EntityRef, turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns without those that carry a name which is none of the user's."""
    if all(turn.name is None for turn in turns):
        return list(turns)
    own = {each.name.casefold() for each in identities_in(uow, owner)}
    return [turn for turn in turns if turn.name is None or _compared(turn.name) in own]


def _compared(name: str) -> str | None:
    """Return the name of a turn as names are compared, None for one that no user can have."""
    try:
        return EntityRef.plain_name(name).casefold()
    except InvalidValue:
        return None
