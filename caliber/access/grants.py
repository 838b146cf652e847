"""Facet ``memory.access``: grants of rights on tasks, sessions and notes, and revoking them.

The owner of a task, session or note grants rights on it, the application for the owners of tasks and sessions, and an
administrator on anything. Each grant and revocation is an audit event in the same transaction.

Source: C-422, M-118 to M-141.
"""

from __future__ import annotations

import dataclasses
import uuid
from datetime import datetime
from typing import Any

from caliber.access.granted import is_active
from caliber.access.identities import AGENTS, OWN_KIND, as_entity, entity_of, keeping
from caliber.access.owners import TaskOwners, may_change, people_in, private_to
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Grant, Principal, Right
from caliber.model.errors import DTypeError, InvalidValue, NotFound, PermissionDenied
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType, GrantId, Id
from caliber.model.time import from_us, to_us
from caliber.schema.relation import Relation
from caliber.schema.relations import GRANT
from caliber.storage.write.unit_of_work import UnitOfWork


class Access:
    """The rights that one principal grants, revokes and sees."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._owners = engine.part(TaskOwners)
        self._readers = Readers(self._owners, principal)

    def grant(
        self, *, to: str | EntityRef | Principal, on: Id, right: Right | str = Right.READ, until: datetime | None = None
    ) -> Grant:
        """Let a user or agent read, or write to, a task, session or note, and return the grant.

        ``to`` is a user by name, a reference to a user or agent, or a principal; a new name is stored. A task brings
        its records and the tasks of its user below it, also later ones, and a session its tasks. ``write`` includes
        ``read``; a note is granted to read only. The grant ends at ``until``, or when it is revoked. Granted again, the
        same right ends at the new ``until``.

        Raises: InputError kinds; NotFound for a record that does not exist or is hidden; PermissionDenied unless the
            principal owns the record or is an admin.
        """
        self._engine.check_open()
        key, wanted = arguments.as_uuid(on, "on"), arguments.as_enum(right, Right, "right")
        ends = arguments.as_instant(until, "until")
        if ends is not None and to_us(ends) <= self._owners.now_us():
            raise InvalidValue(field="until", reason="is past; a grant must end later than now")
        whose = self._kind_and_name(to)
        relation, _ = self._owned(key, "grant")
        if wanted is Right.WRITE and relation.rights.readers is not None:
            raise InvalidValue(field="right", reason=f"must be read: only the author of a {relation.name} writes it")
        kept = keeping(self._engine, entity_of(self._engine, *whose, field="to"))

        def work(uow: UnitOfWork) -> Grant:
            grantee = kept(uow)
            record = self._locked(uow, relation, key)
            if not self._owns(relation, record):
                raise self._denied("grant", relation, key)
            now = from_us(uow.now_us)
            target = EntityRef(EntityType(relation.name), key)
            for known in self._on(uow, key):
                if known.to == grantee and known.right is wanted and is_active(known, self._owners.now_us()):
                    if known.until == ends:
                        return known
                    changed = dataclasses.replace(known, until=ends, updated_at=now)
                    stored: Grant = uow.update(GRANT, changed)
                    return self._audited(uow, EventType.GRANT, stored)
            by = self._principal.label
            grant = Grant(GrantId(uuid7()), grantee, target, wanted, by, ends, None, now, now)
            uow.insert_new(GRANT, grant)
            return self._audited(uow, EventType.GRANT, grant)

        return self._engine.write(work)

    def revoke(
        self, grant_id: Id | None = None, *, to: str | EntityRef | Principal | None = None, on: Id | None = None
    ) -> list[Grant]:
        """End a grant at once, or every grant on a record, to a user or agent if ``to`` is given; return those ended.

        Revoking again changes nothing.

        Raises: InputError kinds; NotFound for a grant or record that does not exist or is hidden; PermissionDenied
            unless the principal owns the record, granted the right, or is an admin.
        """
        self._engine.check_open()
        if (grant_id is None) == (on is None) or (grant_id is not None and to is not None):
            raise InvalidValue(field="grant_id", reason="give grant_id, or on with or without to")
        one = None if grant_id is None else arguments.as_uuid(grant_id, "grant_id")
        key = None if on is None else arguments.as_uuid(on, "on")
        grantee = self._entity(to)
        if key is not None:
            self._owned(key, "revoke grants on")

        def work(uow: UnitOfWork) -> list[Grant]:
            if one is not None:
                found = [self._known(uow, one)]
            else:
                assert key is not None
                found = [each for each in self._on(uow, key) if grantee in (None, each.to)]
            return [self._revoked(uow, each) for each in found if is_active(each, self._owners.now_us())]

        return self._engine.write(work)

    def grants(
        self, *, to: str | EntityRef | Principal | None = None, on: Id | None = None, ended: bool = False
    ) -> list[Grant]:
        """Return the grants to the principal, by it, or on its records, the oldest first; an admin's are all.

        ``to`` and ``on`` select those to a user or agent, and on a record; ``ended`` adds those that ended.

        Raises: InputError kinds.
        """
        self._engine.check_open()
        key = None if on is None else arguments.as_uuid(on, "on")
        grantee = self._entity(to)
        rows = self._engine.snapshot()[GRANT.name]
        now = self._owners.now_us()
        found: list[Grant] = [self._engine.memory.entity(rows, number) for number in rows.rows().tolist()]
        found = [
            each
            for each in found
            if (key is None or each.on.id == key)
            and grantee in (None, each.to)
            and (arguments.as_flag(ended, "ended") or is_active(each, now))
            and self._sees(each)
        ]
        return sorted(found, key=lambda each: (each.created_at, each.grant_id.bytes))

    # --- who -------------------------------------------------------------------------------------

    def _kind_and_name(self, to: Any) -> tuple[str | EntityRef, EntityType]:
        """Return the name or reference of a grantee, and its kind. Raises: DTypeError, InvalidValue."""
        if isinstance(to, Principal):
            kind = OWN_KIND.get(to.kind)
            if kind is None or to.is_admin:
                raise InvalidValue(field="to", reason="must be a user or an agent; others need no grant")
            return to.id, kind
        if isinstance(to, EntityRef):
            kind = AGENTS if to.entity_type == AGENTS else EntityType.USER
            return as_entity(to, kind, "to"), kind
        if not isinstance(to, str):
            raise DTypeError(field="to", expected="a name, an EntityRef or a Principal", got=type(to).__name__)
        return to, EntityType.USER

    def _entity(self, to: Any) -> EntityRef | None:
        if to is None:
            return None
        return entity_of(self._engine, *self._kind_and_name(to), field="to", register=False)

    def _owns(self, relation: Relation, record: Any) -> bool:
        return owns(self._engine, self._principal, self._readers, relation, record)

    def _sees(self, grant: Grant) -> bool:
        """Return whether the principal may know of a grant."""
        if self._principal.is_admin or grant.granted_by == self._principal.label:
            return True
        if grant.to.id.bytes in self._readers.visibility().ids:
            return True
        found = self._found(grant.on.id)
        return found is not None and self._owns(*found)

    def _may_revoke(self, uow: UnitOfWork, grant: Grant) -> bool:
        """Return whether the principal may revoke a grant, by the record as this transaction has it."""
        if self._principal.is_admin or grant.granted_by == self._principal.label:
            return True
        relation = uow.catalog.by_name[str(grant.on.entity_type)]
        record = uow.find(relation, grant.on.id.bytes)
        return record is not None and self._readers.allows_change(relation, record) and self._owns(relation, record)

    # --- on what ---------------------------------------------------------------------------------

    def _found(self, key: uuid.UUID) -> tuple[Relation, Any] | None:
        """Return a record that the principal may see, or whose user it acts for, as memory has it by now."""
        found = self._engine.snapshot().locate(key.bytes)
        if found is None:
            return None
        relation, record = found[0].relation, self._engine.memory.entity(*found)
        return (relation, record) if self._readers.allows_change(relation, record) else None

    def _owned(self, key: uuid.UUID, action: str) -> tuple[Relation, Any]:
        """Return a record that the principal owns. Raises: NotFound, InvalidValue, PermissionDenied."""
        found = self._found(key)
        if found is None:
            raise NotFound(entity_type="record", id=key)
        relation, record = found
        if relation.rights.owner is None and not relation.rights.listed:
            raise InvalidValue(field="on", reason=f"is a {relation.name}; grant a task, a session or a note")
        if not self._owns(relation, record):
            raise self._denied(action, relation, key)
        return relation, record

    def _denied(self, action: str, relation: Relation, key: uuid.UUID) -> PermissionDenied:
        return self._principal.denied(action, f"{relation.name} {key}")

    def _locked(self, uow: UnitOfWork, relation: Relation, key: uuid.UUID) -> Any:
        uow.lock(relation, key.bytes)
        record = uow.find(relation, key.bytes)
        if record is None:
            raise NotFound(entity_type="record", id=key)
        return record

    # --- rows ------------------------------------------------------------------------------------

    @staticmethod
    def _on(uow: UnitOfWork, key: uuid.UUID) -> list[Grant]:
        found: list[Grant] = uow.select_path(GRANT, "list_by_record", key.bytes)
        return found

    def _known(self, uow: UnitOfWork, key: uuid.UUID) -> Grant:
        """Return a grant that the principal may revoke. Raises: NotFound, PermissionDenied."""
        uow.lock(GRANT, key.bytes)
        grant: Grant | None = uow.find(GRANT, key.bytes)
        if grant is not None and self._may_revoke(uow, grant):
            return grant
        if grant is None or grant.to.id.bytes not in self._readers.visibility().ids:
            raise NotFound(entity_type=GRANT.name, id=key)
        raise self._principal.denied("revoke", f"{GRANT.name} {key}")

    def _revoked(self, uow: UnitOfWork, grant: Grant) -> Grant:
        now = from_us(uow.now_us)
        stored: Grant = uow.update(GRANT, dataclasses.replace(grant, revoked_at=now, updated_at=now))
        return self._audited(uow, EventType.REVOKE, stored)

    def _audited(self, uow: UnitOfWork, kind: EventType, grant: Grant) -> Grant:
        """Log a change of a grant in its transaction."""
        return audited(self._engine, uow, kind, grant, self._principal.label)


def owns(engine: Engine, principal: Principal, readers: Readers, relation: Relation, record: Any) -> bool:
    """Return whether a principal owns a record: it started the task or session, or it wrote the note.

    The application acts for the user of a task or session.
    """
    if principal.is_admin or (principal.serves and relation.rights.readers is None):
        return True
    visibility = readers.visibility()
    if relation.rights.readers is not None:
        assert relation.rights.author is not None
        people = people_in(getattr(record, relation.rights.readers))
        ownership = engine.config.access.ownership
        if may_change(getattr(record, relation.rights.author), principal, engine.memory, ownership=ownership):
            return True
        return bool(people) and people <= visibility.names
    if relation.rights.owner is None:  # a record of a task: the user of that
        task = relation.rights.task
        owners = None if task is None else engine.part(TaskOwners).of.get(getattr(record, task).bytes)
        return owners is not None and owners[0] in visibility.ids
    user = getattr(record, "user_id", None)
    return record.initiator.id.bytes in visibility.ids or (user is not None and user.bytes in visibility.ids)


def audited(engine: Engine, uow: UnitOfWork, kind: EventType, grant: Grant, by: str) -> Grant:
    """Write the audit event of a grant or revocation in its transaction; return the grant."""
    engine.audit(
        uow,
        kind,
        principal=by,
        trajectory_id=grant.on.id if grant.on.id.bytes in engine.part(TaskOwners).of else None,
        subject=(grant.on.entity_type, grant.on.id),
        payload={
            "grant_id": str(grant.grant_id),
            "to": private_to(grant.to),
            "right": grant.right.value,
            "until": None if grant.until is None else grant.until.isoformat(),
        },
    )
    return grant
