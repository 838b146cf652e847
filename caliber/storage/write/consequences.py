"""Cascading changes of a row write in the same transaction: lower trust, drop stale summaries, keep old content.

A trust label falls to that of the least trusted record it stands for. A summary of a block is deleted with one of the
block's records, a vector with its text. Replaced content is kept for replay. Source: docs/trust.md,
docs/decisions/0156, 0192.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

from caliber.model.errors import ConstraintViolation, NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import KEY_VERSION
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME, CONTENT_VERSION, EDGE, EMBEDDING, GRANT, RELATIONS
from caliber.schema.traits import Block
from caliber.storage.compile.codec import Row, codec_of, dump_json
from caliber.storage.compile.derived import pack_content
from caliber.storage.compile.plan import RelationPlans


class Writing(Protocol):
    """The transaction that a row is written in: ``UnitOfWork``, as far as consequences need it."""

    now_us: int
    keeps_content: bool

    def lock(self, relation: Relation, *key: Any) -> int | None:
        """Keep others from changing a row; return its version where that takes a lock."""
        ...

    def referring(self, relation: Relation, column: str, target: Any) -> list[Row]:
        """Return the rows whose foreign key refers to a row."""
        ...

    def select_entities(self, relation: Relation, statement: str, *parameters: Any) -> list[Any]:
        """Return whole records by an irregular statement."""
        ...

    def insert_row(self, relation: Relation, row: Row) -> None:
        """Insert a row unless it exists."""
        ...

    def change(self, relation: Relation, statement: str, *parameters: Any) -> list[Row]:
        """Update rows by an irregular statement."""
        ...

    def remove(self, relation: Relation, statement: str, *parameters: Any) -> int:
        """Delete rows by an irregular statement."""
        ...

    def delete(self, relation: Relation, entity: Any) -> None:
        """Delete a record that was read before."""
        ...


# --- labels ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeastTrust:
    """The label of records of ``owner`` is the least of those of ``parts`` that refer to them by ``key``."""

    owner: Relation
    parts: Relation
    key: str
    part_trust: int
    part_owner: int
    owner_id: int
    owner_trust: int

    @property
    def lower(self) -> str:
        """The statement that lowers the label of an owner, if it is higher; its parameters are ``trust_floor``."""
        return f"{self.owner.name}.distrust"

    @property
    def lower_loaded(self) -> str:
        """The statement that lowers the labels of all owners of parts with ordinals above a mark."""
        return f"{self.owner.name}.distrust_loaded"

    def trust_floor(self, part: Row) -> tuple[str, bytes]:
        """Return the label of a part, and the id of the owner that is trusted no more."""
        return part[self.part_trust], part[self.part_owner]


def _floor(owner: Relation, least_of: str) -> LeastTrust:
    parts = BY_NAME[least_of]
    key = next(key for key in parts.foreign_keys if key.relation == owner.name)
    assert owner.trust is not None  # asked of relations that have a label
    assert parts.trust is not None
    part, owner_codec = codec_of(parts), codec_of(owner)
    places = (
        part.index(parts.trust.column),
        part.index(key.column),
        owner_codec.index(key.target),
        owner_codec.index(owner.trust.column),
    )
    return LeastTrust(owner, parts, key.column, *places)


_FLOORS: Final = [
    _floor(relation, relation.trust.least_of)
    for relation in RELATIONS
    if relation.trust is not None and relation.trust.least_of is not None
]
LOWERS: Final = {floor.parts.name: floor for floor in _FLOORS}
"""The labels that fall with records of a relation, by its name."""
_RAISES: Final = {floor.owner.name: floor for floor in _FLOORS}


def lower(uow: Writing, relation: Relation, part: Row) -> None:
    """Lower the label of the owner of a part that was written, if it has one that falls with it."""
    floor = LOWERS.get(relation.name)
    if floor is not None:
        uow.change(floor.owner, floor.lower, *floor.trust_floor(part))


def lower_owner_trust(uow: Writing, relation: Relation, old: Row, new: Row) -> None:
    """Lower the label of the owner of a part that is about to change.

    Raises: ConstraintViolation for an owner that would be trusted more than a part of it.
    """
    floor = LOWERS.get(relation.name)
    if floor is not None and floor.trust_floor(new) != floor.trust_floor(old):
        uow.lock(floor.owner, new[floor.part_owner])
        uow.change(floor.owner, floor.lower, *floor.trust_floor(new))
    floor = _RAISES.get(relation.name)
    if floor is None:
        return
    label = TrustLabel(new[floor.owner_trust])
    if label.distrust < TrustLabel(old[floor.owner_trust]).distrust:
        # A transaction that raises an owner's label and one that lowers a part's label would not see each other.
        uow.lock(floor.owner, new[floor.owner_id])
        for part in uow.referring(floor.parts, floor.key, new[floor.owner_id]):
            if TrustLabel(part[floor.part_trust]).distrust > label.distrust:
                name = floor.parts.name
                reason = f"a {name} in it is {part[floor.part_trust]}; if that was checked, label the {name} anew first"
                raise ConstraintViolation(constraint=f"{floor.owner.name}_trust", reason=reason)


# --- summaries of blocks --------------------------------------------------------------------------

_BLOCKS: Final[dict[str, list[tuple[Relation, Block]]]] = {}
for _relation in RELATIONS:
    if _relation.block is not None:
        _BLOCKS.setdefault(_relation.block.relation, []).append((_relation, _relation.block))


def _drop_summaries(uow: Writing, relation: Relation, old: Row, new: Row | None) -> None:
    """Delete the summaries of blocks that a changed or deleted row invalidates, keeping them for replay."""
    for summaries, block in _BLOCKS.get(relation.name, ()):
        label = () if relation.trust is None else (relation.trust.column,)
        if not _differ(relation, (*relation.content_columns, *label, *_owners(relation), block.number), old, new):
            continue
        by, number = (codec_of(relation).index(name) for name in (block.by, block.number))
        for owner, at in dict.fromkeys((row[by], row[number]) for row in (old, new) if row is not None):
            for summary in uow.select_entities(summaries, f"{summaries.name}.overlapping", owner, at, at):
                with contextlib.suppress(NotFound):  # a transaction that deleted another record of the block did it
                    uow.delete(summaries, summary)


def _owners(relation: Relation) -> list[str]:
    return [key.column for key in relation.foreign_keys if key.on_delete == "cascade"]


# --- vectors, and content that is kept ------------------------------------------------------------


def changed(uow: Writing, plans: RelationPlans, old: Row, new: Row | None) -> None:
    """Apply the consequences of a changed row, or of a deleted one: ``new`` None."""
    relation = plans.relation
    if not relation.content_columns and relation.name not in _BLOCKS:
        return
    _replaced(uow, plans, old, new)
    _drop_summaries(uow, relation, old, new)


def _replaced(uow: Writing, plans: RelationPlans, old: Row, new: Row | None) -> None:
    """Keep the old value of changed content, and drop its vectors."""
    relation = plans.relation
    if not relation.content_columns or not _differ(relation, relation.content_columns, old, new):
        return
    place = plans.codec.index
    owner, text = old[place(relation.key[0])], relation.text
    if text is not None and _differ(relation, text.embedded_columns, old, new):
        uow.remove(EMBEDDING, "embedding.drop_owner", owner)
    if uow.keeps_content and relation.history:
        trajectory = old[place("trajectory_id")] if relation.has("trajectory_id") else None
        version, body = old[plans.codec.version_place], pack_content(relation, old)
        owned = () if relation.erase is None else relation.erase.owned
        author = old[place(owned[0])] if owned else None
        uow.insert_row(CONTENT_VERSION, (relation.name, old[0], version, owner, body, uow.now_us, trajectory, author))


def drop_references(uow: Writing, relation: Relation, keys: Sequence[bytes]) -> None:
    """Delete the links and grants of deleted records whose ids may be given again, as they follow from keys."""
    again = [key.hex() for key in keys if key[6] >> 4 == KEY_VERSION] if relation.linked else []
    for of, statement in ((EDGE, "edge.of_records"), (GRANT, "access_grant.of_records")):
        for entity in uow.select_entities(of, statement, dump_json(again)) if again else ():
            uow.delete(of, entity)


def _differ(relation: Relation, columns: Sequence[str], old: Row, new: Row | None) -> bool:
    if new is None:
        return True
    index = codec_of(relation).index
    return any(old[at] != new[at] for at in map(index, columns))
