"""Configuration sections of access: readers of notes, rights of agents by kind, views of roles, agents."""

from typing import Annotated, Literal

from caliber.config.access.views import ByRole, ViewsConfig
from caliber.config.knobs import AsList, Duration, FrozenMap, Int, Section, knob
from caliber.model.access import AgentRole

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
    payload_max_bytes: Int = knob(
        "Longest payload of a message, as JSON; and longest words of a delegation or handoff together.",
        "ours",
        unit="bytes",
        ge=1,
        le=16_777_216,
    )
    poll_ms: Duration = knob(
        "Interval at which a process whose receivers wait looks for messages of other processes, where the database"
        " does not notify it: SQLite, and PostgreSQL without storage.feed_dsn; 0 never looks. For SQLite on Linux the"
        " system reports each write, and the interval is the scale of the looks that follow it.",
        "ours",
        unit="ms",
        ge=0,
    )


class ConflictsConfig(Section):
    """Conflicts between agents that are recorded as they come up."""

    concurrent_writes: bool = knob(
        "Record a write of an agent that was refused because another agent changed the value since it was read.",
        "C-432",
    )
    decisions: bool = knob(
        "Compare a note of type decision that an agent writes with those of other agents about the same subject, and"
        " record a contradiction.",
        "C-432",
    )
    contention_ms: Duration | None = knob(
        "Time that an agent waits for a lock of another before the contention is recorded; a refusal is recorded at"
        " once. Without it no contention is.",
        "C-434",
        unit="ms",
        ge=0,
        optional=True,
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
    lock_place_ms: Duration = knob(
        "Time after which a request that waits for a lock loses its place, as its process died. A process that runs"
        " renews it.",
        "C-365",
        unit="ms",
        ge=100,
    )
    lock_poll_ms: Duration = knob(
        "Interval at which a process that waits for a lock looks for other processes' commits, where the database"
        " does not notify of them: on SQLite, and without storage.feed_dsn. For SQLite on Linux the system reports each"
        " write, and the interval is the scale of the looks that follow it.",
        "ours",
        unit="ms",
        gt=0,
    )
    messages: MessagesConfig = knob("Messages between agents.", "ours")
    conflicts: ConflictsConfig = knob("Conflicts between agents that are recorded as they come up.", "C-432")

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
