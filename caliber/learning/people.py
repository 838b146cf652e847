"""People that one user's messages name: private to this user, until the application merges them with others.

"My sister Anna" of one user is nobody's Anna but that user's: the entity of a person is named within a namespace of the
user who told of them. Source: C-422, K-194; docs/learning.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from caliber.access.identities import current
from caliber.engine.engine import Engine
from caliber.learning.candidates import Held, Person, StatedCandidate
from caliber.learning.owner import Owner
from caliber.model.knowledge import Note
from caliber.model.learning import PersonFact
from caliber.model.references import EntityRef, EntityType

_NAMESPACE: Final = ":people of {}"
"""The namespace of the people of a user; no application's namespace begins with a colon."""

FactsOf = Callable[[EntityRef], Iterable[tuple[PersonFact, Note]]]
"""Reads the facts that the user taught about an entity."""


class People:
    """The user who talks, and the people that the messages of this user name."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        self._known: dict[EntityRef, tuple[EntityRef, ...]] = {}

    def user(self) -> tuple[EntityRef, str]:
        """Return the entity and the name of the user."""
        return self._owner.entity, self._owner.name

    def named(self, person: Person | None) -> tuple[EntityRef, str]:
        """Return the entity of a person, and the name in notes; the user for None."""
        if person is None:
            return self.user()
        if person.name:
            return self._entity(person.name), person.name
        return self._entity(f"my {person.role}"), f"{self._owner.name}'s {person.role}"

    def unnamed(self, person: Person | None) -> EntityRef | None:
        """Return the entity of a named relative as far as the talk had no name for that person."""
        if person is None or not (person.role and person.name):
            return None
        return self._entity(f"my {person.role}")

    def _entity(self, name: str) -> EntityRef:
        """Return the entity of a name, and remember those of the users that were merged into this one."""
        private = [EntityRef.named(EntityType.USER, name, _NAMESPACE.format(key)) for key in self._owner.ids]
        entities = [current(self._engine, each) for each in private]
        self._known[entities[0]] = tuple(dict.fromkeys(entities))
        return entities[0]

    def held(self, statements: Sequence[StatedCandidate], facts_of: FactsOf) -> list[Held]:
        """Return the facts that hold about the people of statements."""
        people = {person for each in statements for person in (each.person, each.unnamed) if person is not None}
        return [
            _held(person, fact, note)
            for person in sorted(people, key=str)
            for entity in self._known.get(person, (person,))
            for fact, note in facts_of(entity)
        ]


def _held(person: EntityRef, fact: PersonFact, note: Note) -> Held:
    return Held(
        person,
        fact.attribute,
        fact.slot,
        fact.value,
        fact.stated_at if note.valid_from is None else max(fact.stated_at, note.valid_from),
        note.content,
        (fact, note),
    )
