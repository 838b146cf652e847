"""People that one user's messages name: private to this user, until the application merges them with others.

"My sister Anna" of one user is nobody's Anna but that user's: the entity of a person is named within a namespace of the
user who told of them. Source: C-422, K-194; docs/learning.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from caliber.access.identities import current_in
from caliber.learning.candidates import Held, Person, StatedCandidate
from caliber.learning.owner import Owner
from caliber.model.references import EntityRef, EntityType
from caliber.schema.relations import NOTE, PERSON_FACT
from caliber.storage.compile.codec import Row, codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

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
    return Held(
        person,
        fact.attribute,
        fact.slot,
        fact.value,
        fact.stated_at if note.valid_from is None else max(fact.stated_at, note.valid_from),
        note.content,
        (fact, note),
    )
