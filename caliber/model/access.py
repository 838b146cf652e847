"""Class ``Principal``: the user, agent, system or admin on whose behalf a call is made."""

from __future__ import annotations

from enum import StrEnum

from caliber.model.agents import AgentRole
from caliber.model.errors import PermissionDenied
from caliber.model.lazy_dataclass import dataclass


class PrincipalKind(StrEnum):
    HUMAN = "human"
    AGENT = "agent"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Principal:
    """A human, an agent or the system itself. ``id`` is its stable handle. Source: M-118, M-136, M-140."""

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
    def admin(cls, name: str = "owner") -> Principal:
        """Return a person who may see and do everything."""
        return cls(PrincipalKind.HUMAN, name, is_admin=True)

    @property
    def label(self) -> str:
        """The name of this principal in audit records, such as ``agent:planner``."""
        return f"{self.kind.value}:{self.id}"

    def require_admin(self, action: str, resource: str) -> None:
        """Raise PermissionDenied unless this is an admin."""
        if not self.is_admin:
            raise PermissionDenied(agent_id=self.label, action=action, resource=resource)
