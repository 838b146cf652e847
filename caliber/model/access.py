"""Principals (users, agents, applications, systems, admins) on whose behalf calls are made; their names and grants."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from caliber.model.errors import DTypeError, PermissionDenied
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, GrantId, IdentityId


class AgentRole(StrEnum):
    """Roles that own and see notes. Source: M-118, M-120."""

    ORCHESTRATOR = "orchestrator"
    OPTIMIZER = "optimizer"
    REVIEWER = "reviewer"
    EXECUTOR = "executor"


class PrincipalKind(StrEnum):
    HUMAN = "human"
    AGENT = "agent"
    SYSTEM = "system"
    APPLICATION = "application"


ADMIN: Final = "admin"
"""The beginning of the label of every administrator."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A human, an agent, the application or the system. ``id`` is its stable handle. Source: M-118, M-136, M-140."""

    kind: PrincipalKind
    id: str
    role: AgentRole | None = None
    is_admin: bool = False

    @classmethod
    def user(cls, name: str) -> Principal:
        """Return a person, by the name that the application has for them."""
        return cls(PrincipalKind.HUMAN, name)

    @classmethod
    def agent(cls, name: str, role: AgentRole | None = None) -> Principal:
        """Return an agent, by its name, with its role."""
        return cls(PrincipalKind.AGENT, name, role)

    @classmethod
    def application(cls, name: str = "app") -> Principal:
        """Return the application itself: it acts for the user of a task or call, and else sees what is shared."""
        return cls(PrincipalKind.APPLICATION, name)

    @classmethod
    def admin(cls, name: str = "owner") -> Principal:
        """Return a person who may see and do everything."""
        return cls(PrincipalKind.HUMAN, name, is_admin=True)

    @property
    def label(self) -> str:
        """The name of this principal in audit records, such as ``agent:planner`` or ``admin:owner``.

        No administrator has the label of a user or an agent of the same name.
        """
        kind = self.kind.value
        if self.is_admin:
            kind = ADMIN if self.kind is PrincipalKind.HUMAN else f"{ADMIN}:{kind}"
        return f"{kind}:{self.id}"

    @property
    def is_user(self) -> bool:
        """True for a person without the rights of an administrator: that person's calls are for no other user."""
        return self.kind is PrincipalKind.HUMAN and not self.is_admin

    @property
    def is_application(self) -> bool:
        """True for the application, which acts for any user, and administers nothing."""
        return self.kind is PrincipalKind.APPLICATION and not self.is_admin

    @property
    def serves(self) -> bool:
        """True for an admin and the application: they act for users, and see what is hidden from no person."""
        return self.is_admin or self.kind is PrincipalKind.APPLICATION

    def denied(self, action: str, resource: str) -> PermissionDenied:
        """Return the refusal of an action. Raises: DTypeError."""
        for field, value in (("action", action), ("resource", resource)):
            if not isinstance(value, str):
                raise DTypeError(field=field, expected="str", got=type(value).__name__)
        return PermissionDenied(agent_id=self.label, action=action, resource=resource)

    def require_service(self, action: str, resource: str) -> None:
        """Raise PermissionDenied unless this is an admin or the application."""
        if not self.serves:
            raise self.denied(action, resource)

    def require_admin(self, action: str, resource: str) -> None:
        """Raise PermissionDenied unless this is an admin; for the application it names the way to become one."""
        if self.is_admin:
            return
        message = f"{self.label} may not {action} {resource}"
        if self.is_application:
            message += ": open the store with principal=caliber.Principal.admin(), or use memory.acting_as(...) with it"
        raise PermissionDenied(message, agent_id=self.label, action=action, resource=resource)


class Right(StrEnum):
    """The rights that a grant gives. ``write`` includes ``read``."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Grant:
    """A right of the user or agent ``to`` on the task, session or note ``on``; ``granted_by`` names a principal.

    It ends at ``until``, where that is given, and once it is revoked. Source: C-422.
    """

    grant_id: GrantId
    to: EntityRef
    on: EntityRef
    right: Right
    granted_by: str
    until: datetime | None
    revoked_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """One name of a user or an agent, in a namespace of the application; several names may have one entity."""

    identity_id: IdentityId
    entity: EntityRef
    namespace: str
    name: str
    created_at: datetime
    updated_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class MergedIdentities:
    """Report of merging one entity into another: changed ``records`` by relation, and how many still name it."""

    old: EntityRef
    entity: EntityRef
    names: tuple[str, ...]
    records: dict[str, int]
    remaining: int
