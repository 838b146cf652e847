"""Configuration sections of access: readers of notes, and views of roles."""

from typing import Annotated, Literal

from caliber.config.access.views import ViewsConfig
from caliber.config.knobs import AsList, Section, knob
from caliber.model.agents import AgentRole

Roles = Annotated[tuple[AgentRole, ...], AsList]


class VisibilityConfig(Section):
    """The readers of notes by the role of their author, where a note names no readers."""

    orchestrator: Roles = knob(
        "Who sees notes of an orchestrator.", "M-131", source_value=("orchestrator", "optimizer")
    )
    optimizer: Roles = knob("Who sees notes of an optimizer.", "M-131", source_value=("optimizer", "executor"))
    reviewer: Roles = knob("Who sees notes of a reviewer.", "M-131", source_value=("reviewer", "executor"))
    executor: Roles = knob("Who sees notes of an executor.", "M-131", source_value=("executor", "reviewer"))

    def for_role(self, role: AgentRole) -> tuple[AgentRole, ...]:
        """Return the roles that may see records written by ``role``."""
        roles: tuple[AgentRole, ...] = getattr(self, role.value)
        return roles


class AccessConfig(Section):
    """Access to records: readers, writers, and views of roles."""

    default_visibility: VisibilityConfig = knob("Which roles see what, by the author's role.", "M-131")
    ownership: Literal["agent", "role"] = knob("A note may be changed by its author, or by all of its role.", "K-131")
    views: ViewsConfig = knob("What the view of a role shows, and in which order.", "M-118")
