"""Configuration sections of access: readers of notes, rights of agents by kind, views of roles, agents."""

from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from caliber.config.knobs import AsList, Duration, Flag, FrozenMap, Int, Section, knob
from caliber.model.access import AgentRole
from caliber.model.knowledge import NoteType

NoteTypes = Annotated[tuple[NoteType, ...], AsList]
V = TypeVar("V")
_ROLES: Final = ", ".join(AgentRole)


def _every_role(value: FrozenMap[V]) -> FrozenMap[V]:
    if value.keys() != {role.value for role in AgentRole}:
        raise PydanticCustomError("roles", "must name each role, and nothing else: {roles}", {"roles": _ROLES})
    return value


ByRole = Annotated[FrozenMap[V], AfterValidator(_every_role)]
"""A table with an entry for each role."""


class RoleScoringConfig(Section):
    """Scores of notes by role: they order what the search of a view found."""

    enabled: Flag = knob("Order the hits of a view's search by the role's score.", "M-148")


class ViewsConfig(Section):
    """Views of roles over notes."""

    interests: ByRole[NoteTypes] = knob(
        "Types of notes that the view of each role shows, besides notes without a type.",
        "M-120",
        source_value={
            "executor": ["implementation", "pattern", "bug"],
            "optimizer": ["decision", "pattern", "skill"],
            "orchestrator": ["decision", "architecture", "coordination"],
            "reviewer": ["bug", "test", "decision"],
        },
    )
    scoring: RoleScoringConfig = knob("Order of the hits of a view.", "M-148")


Roles = Annotated[tuple[AgentRole, ...], AsList]
Scope = Literal["all", "own"]


class RightsConfig(Section):
    """The kinds of records that an agent may read and write; a kind that is not named, it may not."""

    read: FrozenMap[Scope] = knob(
        'Kinds that the agent reads, such as note or turn, each with "all" (every record that it could see'
        ' without this rule) or "own".',
        "C-422",
    )
    write: FrozenMap[Scope] = knob('Kinds that it writes, each with "all" or "own" (changes only).', "C-422")


class MessagesConfig(Section):
    """Messages between agents."""

    lease_ms: Duration = knob(
        "Time that a receiver has to acknowledge a message; after it another claim gets the message.",
        "C-371",
        unit="ms",
        gt=0,
    )
    attempts_max: Int = knob("Deliveries of a message before it is kept as a dead letter.", "ours", ge=1)
    pending_max: Int = knob(
        "Most messages that wait for one agent, or for one type of agents; a send beyond them is refused.",
        "ours",
        unit="messages",
        ge=1,
    )


class AgentsConfig(Section):
    """Agents that share the store."""

    registration: Literal["open", "required"] = knob(
        "Agents that act without being registered: open registers them at their first act, required refuses them.",
        "C-420",
        source_value="required",
    )
    heartbeat_timeout_ms: Duration = knob(
        "Silence of an agent after which a job sets it to failed and releases its locks. Acts renew a heartbeat that"
        " is older than a quarter of it.",
        "C-421",
        unit="ms",
        gt=0,
    )
    contention_ms: Duration | None = knob(
        "Time that an agent waits for a lock of another before a conflict about it is recorded; a refusal is recorded"
        " at once. Without it no such conflict is.",
        "C-434",
        unit="ms",
        ge=0,
        optional=True,
    )
    messages: MessagesConfig = knob("Messages between agents.", "ours")

    @property
    def sign_every_ms(self) -> int:
        """The age at which an agent that acts renews its heartbeat, and the least time between two looks."""
        return self.heartbeat_timeout_ms // 4


class AccessConfig(Section):
    """Access to records: readers, writers, rights of agents by kind, and views of roles."""

    default_visibility: ByRole[Roles] = knob(
        "Readers of notes that name none, by the role of their author.",
        "M-131",
        source_value={
            "executor": ["executor", "reviewer"],
            "optimizer": ["optimizer", "executor"],
            "orchestrator": ["orchestrator", "optimizer"],
            "reviewer": ["reviewer", "executor"],
        },
    )
    ownership: Literal["agent", "role"] = knob("A note's author may change it, or all agents of its role.", "K-131")
    rights: FrozenMap[RightsConfig] = knob(
        "Kinds of records that an agent, such as agent:planner, or the agents of a role, such as executor, may read and"
        " write. The rule of an agent goes before that of its role; an agent without either has every kind.",
        "C-422",
        optional=True,
        default=FrozenMap(),
    )
    views: ViewsConfig = knob("Contents and order of the views of roles.", "M-118")
