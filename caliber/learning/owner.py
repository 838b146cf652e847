"""Owner of learnt facts, the user whose messages teach them: the one place that sets who may read and correct them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from caliber.access.identities import MERGED, identities_in
from caliber.access.owners import private_to
from caliber.engine.engine import Engine
from caliber.model.access import Principal, PrincipalKind
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute
from caliber.model.references import EntityRef, EntityType
from caliber.storage.compile.damage import UNREADABLE, damaged
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
    if (
        not all(isinstance(text, str) for text in (body["person"], body["reason"], body.get("value", "")))
        or start > end
    ):
        raise ValueError("parts of other types")
