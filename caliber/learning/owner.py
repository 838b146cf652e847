"""Owner of learnt facts, the user whose messages teach them and who may read them, and the people that they name."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from caliber.access.identities import MERGED, current_in, identities_in
from caliber.access.owners import private_to
from caliber.engine.engine import Engine
from caliber.learning.deciding import Held, Person, StatedCandidate
from caliber.model.access import Principal, PrincipalKind
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute
from caliber.model.references import EntityRef, EntityType
from caliber.schema.relations import NOTE, PERSON_FACT
from caliber.storage.compile.codec import UNREADABLE, Row, codec_of, damaged
from caliber.storage.write.unit_of_work import UnitOfWork


@dataclass(frozen=True, slots=True)
class Owner:
    """A user whose messages teach facts: the entity, the name in notes, and the principals that are this user."""

    entity: EntityRef
    name: str
    principals: tuple[str, ...]
    ids: tuple[uuid.UUID, ...]
    """The id of the entity, and those of the users that were merged into it."""

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers of learnt notes: the user, under any name."""
        return (private_to(self.entity),)

    @property
    def author(self) -> Principal:
        """The principal that learnt notes are written as: the user's own, so that the user may correct them."""
        return Principal.user(self.name)

    @property
    def learner(self) -> Principal:
        """The principal that facts are corrected as, also those that were learnt under another name of the user."""
        return Principal(PrincipalKind.HUMAN, self.name, is_admin=True)


def owner_of(engine: Engine, entity: EntityRef) -> Owner:
    """Return the owner of what a user's messages teach; a user without a name is called by the id."""
    return engine.read(lambda uow: owner_in(uow, entity))


def owner_in(uow: UnitOfWork, entity: EntityRef) -> Owner:
    """Return the owner of what a user's messages teach, as a transaction has it; see ``owner_of``."""
    identities = identities_in(uow, entity)
    # A name within a namespace may be that of another person outside of it.
    names = [each.name for each in identities if not each.namespace] or [str(entity.id)]
    merged = (uuid.UUID(each.name) for each in identities if each.namespace == MERGED)
    return Owner(entity, names[0], tuple(Principal.user(name).label for name in names), (entity.id, *merged))


def taught_by(payload: Mapping[str, Any]) -> EntityRef | None:
    """Return the user whose messages taught a batch; None for one who was forgotten.

    Raises: StorageError for the payload of no batch, or of a damaged one.
    """
    try:
        kind, key = payload["owner"]
        try:
            user = EntityRef(EntityType(kind), uuid.UUID(key))
        except ValueError:
            return None
        for turn in payload["turns"]:
            uuid.UUID(turn)
        for each in payload.get("decisions", ()):
            _check_decision(each)
    except UNREADABLE as error:
        raise damaged("a stored batch of learnt facts is damaged") from error
    return user


def _check_decision(body: Mapping[str, Any]) -> None:
    """Raise an error of UNREADABLE for a decision that lacks a part, or has another value in its place."""
    PersonAttribute(body["attribute"])
    for name in ("turn_id", "note_id", "replaces"):
        if name in body or name == "turn_id":
            uuid.UUID(body[name])
    if LearningAction(body["action"]) is not LearningAction.NOTHING:
        uuid.UUID(body["note_id"])
    if "was" in body:
        PersonAttribute(body["was"][0])
    start, end = body["span"]
    if start > end or not all(
        isinstance(text, str) for text in (body["person"], body["reason"], body.get("value", ""))
    ):
        raise ValueError("parts of other types")


_NAMESPACE: Final = ":people of {}"
"""The namespace of the people of a user; no application's namespace begins with a colon."""
_NOTE_ID: Final = codec_of(PERSON_FACT).index("note_id")

Facts = dict[EntityRef, list[tuple[Row, Row]]]
"""The facts that the user taught about entities, with their notes, as the database has them."""


class People:
    """The user who talks, and the people that the messages of this user name."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._refs: dict[str, tuple[EntityRef, ...]] = {}
        self._known: dict[EntityRef, tuple[EntityRef, ...]] = {}

    def named(self, uow: UnitOfWork, person: Person | None) -> tuple[EntityRef, str]:
        """Return the entity of a person, and the name in notes; the user for None."""
        if person is None:
            return self._owner.entity, self._owner.name
        if person.name:
            return self._entity(uow, person.name), person.name
        return self._entity(uow, f"my {person.role}"), f"{self._owner.name}'s {person.role}"

    def unnamed(self, uow: UnitOfWork, person: Person | None) -> EntityRef | None:
        """Return the entity of a named relative as far as the talk had no name for that person."""
        if person is None or not (person.role and person.name):
            return None
        return self._entity(uow, f"my {person.role}")

    def _entity(self, uow: UnitOfWork, name: str) -> EntityRef:
        """Return the entity of a name, and remember those of the users that were merged into this one."""
        entities = self._refs.get(name)
        if entities is None:
            private = [EntityRef.named(EntityType.USER, name, _NAMESPACE.format(key)) for key in self._owner.ids]
            entities = self._refs[name] = tuple(dict.fromkeys(current_in(uow, each) for each in private))
        self._known[entities[0]] = entities
        return entities[0]

    def _entities(self, statements: Sequence[StatedCandidate]) -> list[tuple[EntityRef, EntityRef]]:
        """Return the people of statements, each with the entities under which facts about that person are stored."""
        people = {person for each in statements for person in (each.person, each.unnamed) if person is not None}
        return [(person, each) for person in sorted(people, key=str) for each in self._known.get(person, (person,))]

    def facts(self, uow: UnitOfWork, statements: Sequence[StatedCandidate]) -> Facts:
        """Return the stored facts about the people of statements."""
        owner = self._owner.entity.id.bytes
        found = {
            entity: uow.path_rows(PERSON_FACT, "list_by_owner", owner, entity.id.bytes)
            for _, entity in self._entities(statements)
        }
        notes = uow.find_rows(NOTE, [fact[_NOTE_ID] for facts in found.values() for fact in facts])
        return {
            entity: [(fact, notes[fact[_NOTE_ID]]) for fact in facts if fact[_NOTE_ID] in notes]
            for entity, facts in found.items()
        }

    def held(self, statements: Sequence[StatedCandidate], facts: Facts, now: datetime) -> list[Held]:
        """Return the facts that hold about the people of statements."""
        return [
            each
            for person, entity in self._entities(statements)
            for stored in facts[entity]
            if (each := _held(person, stored, now)) is not None
        ]


def _held(person: EntityRef, stored: tuple[Row, Row], now: datetime) -> Held | None:
    fact, note = codec_of(PERSON_FACT).decode(stored[0]), codec_of(NOTE).decode(stored[1])
    if not note.active or (note.valid_until is not None and note.valid_until <= now):
        return None
    since = fact.stated_at if note.valid_from is None else max(fact.stated_at, note.valid_from)
    return Held(person, fact.attribute, fact.slot, fact.value, since, note.content, (fact, note))
