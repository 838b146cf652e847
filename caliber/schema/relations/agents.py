"""Relations of agents: the registry, groups, locks, messages, delegations, handoffs.

Source: C-395, C-397, C-400, C-402, C-411, C-413, C-414, P-010 to P-014, K-036 to K-038.
"""

from __future__ import annotations

from caliber.model.access import AgentRole
from caliber.model.agents import AgentMessage, Lock, LockMode, LockWaiter, MessageOutcome, MessageType
from caliber.model.agents.delegation import (
    OPEN_DELEGATIONS,
    Delegation,
    DelegationResult,
    DelegationStatus,
    Handoff,
    HandoffStatus,
)
from caliber.model.agents.registry import (
    Agent,
    AgentGroup,
    AgentLifecycle,
    AgentStatus,
    GroupMember,
    GroupPattern,
    MemoryAccess,
)
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Unique,
    blob,
    boolean,
    enum,
    instant,
    integer,
    json_,
    outcome_json,
    stamped,
    text,
    text_array,
    uuid_,
    uuid_array,
    version,
)
from caliber.schema.traits import Exported, Finished, Resident, Rights

AGENT = Relation(
    name="agent",
    plural="agents",
    entity=Agent,
    code=52,
    comment="Agents that share the store: what they can, may and do.",
    ordinal=True,
    versioned=True,
    resident=Resident(framed=True),
    derived=None,  # stated by who registers it
    erase=Erase(),
    links=None,  # none is made to an agent
    trust=None,  # an agent is its application's
    exported=Exported.RECORDS,
    key=("agent_id",),
    columns=(
        uuid_("agent_id"),
        text("name", redact=Redaction.PRINCIPALS),
        text("agent_type"),
        text_array("capabilities"),
        enum("role", AgentRole, nullable=True),
        json_(
            "memory_access",
            lambda access: {"read": dict(access.read), "write": dict(access.write)},
            lambda body: MemoryAccess(body["read"], body["write"]),
            nullable=True,
            redact=Redaction.NOTHING,
        ),
        enum("status", AgentStatus),
        enum("lifecycle", AgentLifecycle),
        text_array("can_delegate_to"),
        uuid_("reports_to", nullable=True),
        stamped("created_at"),
        stamped("updated_at"),
        stamped("last_heartbeat"),
        text("description", nullable=True),
        version(),
    ),
    foreign_keys=(ForeignKey("reports_to", "agent", "agent_id", "set null"),),
    paths=(
        AccessPath("list_by_type", ("agent_type",), ("created_at", "ordinal")),
        AccessPath("list_by_status", ("status",), ("created_at", "ordinal")),
    ),
)

AGENT_GROUP = Relation(
    name="agent_group",
    plural="agent_groups",
    entity=AgentGroup,
    code=53,
    comment="Groups of agents, and the turn that their members are at.",
    ordinal=True,
    versioned=True,
    derived=None,  # stated by who makes it
    erase=Erase(),
    links=None,  # none is made to a group
    trust=None,  # a group is its application's
    exported=Exported.RECORDS,
    key=("group_id",),
    columns=(
        uuid_("group_id"),
        text("name"),
        enum("pattern", GroupPattern),
        integer("spoken", check=(0, None)),
        stamped("created_at"),
        stamped("updated_at"),
        uuid_("last_speaker_id", nullable=True),
        text("description", nullable=True),
        version(),
    ),
    uniques=(Unique(("name",)),),
    foreign_keys=(ForeignKey("last_speaker_id", "agent", "agent_id", "set null"),),
)

GROUP_MEMBER = Relation(
    name="group_member",
    plural="group_members",
    entity=GroupMember,
    code=54,
    comment="Agents in groups, in the order in which they joined.",
    versioned=True,
    derived=None,  # ids
    erase=Erase(),
    links=None,  # none is made to a membership
    trust=None,  # a membership is its application's
    exported=Exported.RECORDS,
    key=("member_id",),
    columns=(
        uuid_("member_id"),
        uuid_("group_id"),
        uuid_("agent_id"),
        integer("position", check=(0, None)),
        stamped("joined_at"),
        text("role", nullable=True),
        version(),
    ),
    uniques=(Unique(("group_id", "agent_id")),),
    foreign_keys=(
        ForeignKey("group_id", "agent_group", "group_id", "cascade"),
        ForeignKey("agent_id", "agent", "agent_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_group", ("group_id",), ("position", "member_id")),
        AccessPath("list_by_agent", ("agent_id",), ("joined_at", "member_id")),
    ),
)

LOCK = Relation(
    name="lock",
    plural="locks",
    entity=Lock,
    code=40,
    comment="Leases with fencing tokens; an expired one no longer counts.",
    ordinal=True,
    versioned=True,
    derived=None,  # a lease is as its holder asked
    erase=Erase(names=("holder",)),
    links=None,  # a lease
    trust=None,  # a lease
    exported=None,  # a lease holds in one store
    key=("lock_id",),
    columns=(
        uuid_("lock_id"),
        text("resource", redact=Redaction.ROW),
        text("holder", redact=Redaction.PRINCIPALS),
        enum("mode", LockMode),
        integer("token", check=(1, None)),
        instant("acquired_at"),
        instant("expires_at"),
        version(),
    ),
    paths=(
        AccessPath("list_by_resource", ("resource",), ("token",)),
        AccessPath("list_expiring", (), ("expires_at",), limited=True),
    ),
)


LOCK_WAITER = Relation(
    name="lock_waiter",
    plural="lock_waiters",
    entity=LockWaiter,
    code=62,
    comment="Requests that wait for a lock, in order; an expired one no longer counts.",
    ordinal=True,
    versioned=True,
    derived=None,  # a request is as its holder made it
    erase=Erase(names=("holder",)),
    links=None,  # a request
    trust=None,  # a request
    exported=None,  # requests of one store
    key=("waiter_id",),
    columns=(
        uuid_("waiter_id"),
        text("resource", redact=Redaction.ROW),
        text("holder", redact=Redaction.PRINCIPALS),
        enum("mode", LockMode),
        integer("ticket", check=(1, None)),
        instant("queued_at"),
        instant("renewed_at"),
        instant("expires_at"),
        version(),
    ),
    paths=(
        AccessPath("list_by_resource", ("resource",), ("ticket",)),
        # What a holder waits for: withdrawn when the holder is gone.
        AccessPath("list_by_holder", ("holder",), ("waiter_id",)),
    ),
)

_OPEN = (("ended_at", True),)

AGENT_MESSAGE = Relation(
    name="agent_message",
    plural="agent_messages",
    entity=AgentMessage,
    code=55,
    comment="Messages between agents: pending, delivered under a lease, or ended and kept for a while.",
    ordinal=True,
    in_order=True,  # of one sender and topic the earlier message is delivered first, whatever the clocks do
    versioned=True,
    rights=Rights(private=True),
    derived=None,  # as its sender wrote it
    erase=Erase(owned=("to_agent_id",), hangs_on=("trajectory_id", "scope_id")),
    links=None,  # gone when its time is over
    trust=None,  # read by agents, never by windows
    exported=None,  # mail of one store
    key=("message_id",),
    columns=(
        uuid_("message_id"),
        uuid_("mailbox"),
        uuid_("from_agent_id"),
        uuid_("to_agent_id", nullable=True),
        text("to_agent_type", nullable=True, redact=Redaction.ROW),
        enum("message_type", MessageType, open=True, redact=Redaction.WORDS),
        text("topic", nullable=True),
        integer("rank", check=(0, 3), comment="priority: 0 is critical, 3 is low"),
        json_("payload", redact=Redaction.WORDS),
        instant("created_at"),
        instant("available_at", comment="the end of the lease, or of a delay"),
        instant("expires_at", nullable=True),
        uuid_("trajectory_id", nullable=True),
        uuid_("scope_id", nullable=True),
        uuid_array("artifact_ids"),
        uuid_("reply_to", nullable=True),
        boolean("awaits_reply"),
        uuid_("broadcast_id", nullable=True, redact=Redaction.NOTHING),
        text("idempotency_key", nullable=True, redact=Redaction.NEW_KEY),
        uuid_("claim_id", nullable=True, redact=Redaction.NOTHING),
        uuid_("claimed_by", nullable=True),
        instant("claimed_at", nullable=True),
        integer("attempts", check=(0, None)),
        instant("delivered_at", nullable=True),
        instant("ended_at", nullable=True),
        enum("outcome", MessageOutcome, nullable=True),
        version(),
    ),
    uniques=(Unique(("from_agent_id", "idempotency_key"), where=(("idempotency_key", False),)),),
    foreign_keys=(
        ForeignKey("from_agent_id", "agent", "agent_id", "cascade"),
        ForeignKey("to_agent_id", "agent", "agent_id", "cascade"),
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "set null"),
        ForeignKey("scope_id", "scope", "scope_id", "set null"),
    ),
    paths=(
        AccessPath("list_open", ("mailbox",), ("rank", "ordinal"), where=_OPEN, limited=True),
        # For the order of one sender and topic.
        AccessPath(
            "list_stream", ("mailbox", "from_agent_id", "topic"), ("ordinal",), where=(*_OPEN, ("topic", False))
        ),
        AccessPath("list_sent", ("from_agent_id",), ("ordinal",), descending=True, limited=True),
        AccessPath("list_received", ("to_agent_id",), ("ordinal",), where=(("to_agent_id", False),), descending=True),
        AccessPath("list_broadcast", ("broadcast_id",), ("ordinal",), where=(("broadcast_id", False),)),
        AccessPath("list_replies", ("reply_to",), ("ordinal",), where=(("reply_to", False),)),
        AccessPath("list_expiring", (), ("expires_at",), where=(*_OPEN, ("expires_at", False))),
        AccessPath("list_ended", (), ("ended_at",), where=(("ended_at", False),)),
        AccessPath("list_by_trajectory", ("trajectory_id",), ("ordinal",), where=(("trajectory_id", False),)),
        AccessPath("list_by_scope", ("scope_id",), ("ordinal",), where=(("scope_id", False),)),
    ),
)


DELEGATION = Relation(
    name="delegation",
    plural="delegations",
    entity=Delegation,
    code=56,
    comment="Tasks that agents give to other agents, by name or by type, and their results.",
    ordinal=True,
    versioned=True,
    derived=None,  # stated by its agents
    erase=Erase(),
    links=None,  # none is made to a delegation
    rights=Rights(task="parent_trajectory_id", kind="trajectory"),
    trust=None,  # its words enter windows as turns, with a label of their own
    finished=Finished("status", tuple(sorted(OPEN_DELEGATIONS)), "completed_at"),
    exported=Exported.RECORDS,
    key=("delegation_id",),
    columns=(
        uuid_("delegation_id"),
        uuid_("delegator_agent_id", identity=True),
        text("task_description"),
        uuid_("parent_trajectory_id"),
        enum("status", DelegationStatus),
        stamped("created_at"),
        stamped("updated_at"),
        uuid_("delegatee_agent_id", nullable=True, identity=True),
        text("delegatee_agent_type", nullable=True),
        uuid_("child_trajectory_id", nullable=True),
        uuid_array("shared_artifacts"),
        uuid_array("shared_notes"),
        text("additional_context", nullable=True),
        text_array("constraints"),
        instant("deadline", nullable=True),
        outcome_json("result", DelegationResult, "produced_artifacts", "produced_notes"),
        instant("accepted_at", nullable=True),
        instant("completed_at", nullable=True),
        version(),
    ),
    foreign_keys=(
        ForeignKey("delegator_agent_id", "agent", "agent_id", "cascade"),
        ForeignKey("delegatee_agent_id", "agent", "agent_id", "set null"),
        ForeignKey("parent_trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("child_trajectory_id", "trajectory", "trajectory_id", "set null"),
    ),
    paths=(
        AccessPath("list_by_status", ("status",), ("created_at", "ordinal")),
        AccessPath(
            "list_pending_of_type",
            ("delegatee_agent_type",),
            ("created_at", "ordinal"),
            where=(("delegatee_agent_id", True), ("status", DelegationStatus.PENDING)),
        ),
        AccessPath("list_by_delegatee", ("delegatee_agent_id",), ("created_at", "ordinal")),
        AccessPath("list_by_delegator", ("delegator_agent_id",), ("created_at", "ordinal")),
        AccessPath("list_by_parent", ("parent_trajectory_id",), ("created_at", "ordinal")),
        AccessPath("list_by_child", ("child_trajectory_id",), ("created_at", "ordinal")),
        AccessPath("list_ended", (), ("completed_at",), where=(("completed_at", False),), limited=True),
    ),
)

HANDOFF = Relation(
    name="handoff",
    plural="handoffs",
    entity=Handoff,
    code=57,
    comment="Tasks that agents pass on to other agents, with what those need to continue.",
    ordinal=True,
    versioned=True,
    derived=None,  # stated by its agents
    erase=Erase(),
    links=None,  # none is made to a handoff
    rights=Rights(task="trajectory_id", kind="trajectory"),
    trust=None,  # its words enter windows as a turn, with a label of its own
    finished=Finished("status", (HandoffStatus.INITIATED, HandoffStatus.ACCEPTED), "completed_at"),
    exported=Exported.RECORDS,
    key=("handoff_id",),
    columns=(
        uuid_("handoff_id"),
        uuid_("from_agent_id", identity=True),
        uuid_("trajectory_id"),
        uuid_("scope_id"),
        uuid_("context_snapshot_id"),  # no foreign key: the snapshot is in the next column, and stays as long
        blob("snapshot", redact=Packed(Layout.CHECKPOINT)),
        text("handoff_notes"),
        text("reason"),
        enum("status", HandoffStatus),
        stamped("initiated_at"),
        stamped("updated_at"),
        uuid_("to_agent_id", nullable=True, identity=True),
        text("to_agent_type", nullable=True),
        text_array("next_steps"),
        text_array("blockers"),
        text_array("open_questions"),
        instant("accepted_at", nullable=True),
        instant("completed_at", nullable=True),
        text("rejection_reason", nullable=True),
        version(),
    ),
    uniques=(Unique(("trajectory_id",), where=(("accepted_at", True), ("completed_at", True))),),
    foreign_keys=(
        ForeignKey("from_agent_id", "agent", "agent_id", "cascade"),
        ForeignKey("to_agent_id", "agent", "agent_id", "set null"),
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_status", ("status",), ("initiated_at", "ordinal")),
        AccessPath(
            "list_pending_of_type",
            ("to_agent_type",),
            ("initiated_at", "ordinal"),
            where=(("to_agent_id", True), ("status", HandoffStatus.INITIATED)),
        ),
        AccessPath("list_by_receiver", ("to_agent_id",), ("initiated_at", "ordinal")),
        AccessPath("list_by_sender", ("from_agent_id",), ("initiated_at", "ordinal")),
        AccessPath("list_by_trajectory", ("trajectory_id",), ("initiated_at", "ordinal")),
        AccessPath("list_ended", (), ("completed_at",), where=(("completed_at", False),), limited=True),
    ),
)
