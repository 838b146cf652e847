"""lock, event, change, policy_run, pending_trigger and others of the runtime.

Source: C-229, C-238, C-395, C-398, K-036, K-037, K-205.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from caliber.model.entities import ConfigDocument, Erasure, Event, Lock, PendingTrigger, PolicyRun
from caliber.model.enums import AgentRole, EntityType, ErasureKind, EventFamily, LockMode, PrincipalKind, Trigger
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    blob,
    boolean,
    enum,
    instant,
    integer,
    json_,
    text,
    uuid_,
    version,
)


@dataclass(frozen=True, slots=True)
class Change:
    """What one transaction wrote, as packed ordinals and versions, never values (design, section 5)."""

    sequence: int
    writer: bytes
    entries: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Migration:
    """One applied schema version, and which versions of CALIBER may read and write it."""

    schema_version: int
    name: str
    checksum: bytes
    min_reader_version: int
    min_writer_version: int
    epoch: str
    applied_at: datetime


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


LOCK = Relation(
    name="lock",
    plural="locks",
    entity=Lock,
    code=40,
    comment="Leases with fencing tokens; an expired one no longer counts.",
    ordinal=True,
    versioned=True,
    key=("lock_id",),
    columns=(
        uuid_("lock_id"),
        text("resource"),
        text("holder"),
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

EVENT = Relation(
    name="event",
    plural="events",
    entity=Event,
    code=41,
    comment="The append-only log of what happened, by family.",
    ordinal=True,
    key=("event_id",),
    columns=(
        uuid_("event_id"),
        enum("family", EventFamily),
        text("event_type"),
        instant("created_at"),
        uuid_("trajectory_id", nullable=True),
        uuid_("scope_id", nullable=True),
        enum("subject_type", EntityType, nullable=True, open=True),
        uuid_("subject_id", nullable=True),
        text("principal", nullable=True),
        json_("payload", _same, _same),
        integer("duration_ms", nullable=True, check=(0, None)),
    ),
    paths=(
        AccessPath(
            "list_by_trajectory",
            ("trajectory_id",),
            ("ordinal",),
            where=(("trajectory_id", False),),
            descending=True,
            limited=True,
        ),
        AccessPath(
            "list_by_trajectory_and_type",
            ("trajectory_id", "event_type"),
            ("ordinal",),
            where=(("trajectory_id", False),),
            descending=True,
            limited=True,
        ),
        AccessPath("list_by_subject", ("subject_id",), ("ordinal",), where=(("subject_id", False),)),
        AccessPath("list_oldest", ("family",), ("created_at",), limited=True),
    ),
)

CHANGE = Relation(
    name="change",
    plural="changes",
    entity=Change,
    code=42,
    comment="The feed that mirrors of other processes follow; one row per transaction.",
    key=("sequence",),
    auto_key=True,
    columns=(
        integer("sequence"),
        blob("writer", length=16),
        blob("entries"),
        instant("created_at"),
    ),
)

ERASURE = Relation(
    name="erasure",
    plural="erasures",
    entity=Erasure,
    code=45,
    comment="What was forgotten, and whether the files are rid of it; nothing of the subject itself.",
    ordinal=True,
    versioned=True,
    key=("erasure_id",),
    columns=(
        uuid_("erasure_id"),
        enum("kind", ErasureKind),
        json_("counts", _same, _same),
        instant("begun_at"),
        instant("finished_at", nullable=True),
        version(),
    ),
    paths=(AccessPath("list_unfinished", (), ("begun_at",), where=(("finished_at", True),)),),
)

POLICY_RUN = Relation(
    name="policy_run",
    plural="policy_runs",
    entity=PolicyRun,
    code=46,
    comment="How far each rule on a schedule is; what came due up to covered_at is done.",
    ordinal=True,
    versioned=True,
    key=("rule_id",),
    columns=(
        uuid_("rule_id"),
        instant("covered_at"),
        instant("due_at", nullable=True),
        integer("actions_done", check=(0, None)),
        integer("attempts", check=(0, None)),
        version(),
    ),
    paths=(AccessPath("list_all", (), ("ordinal",)),),
)

PENDING_TRIGGER = Relation(
    name="pending_trigger",
    plural="pending_triggers",
    entity=PendingTrigger,
    code=48,
    comment="What the start of a task or a turn set off; the transaction of its actions removes it.",
    versioned=True,
    key=("trigger_id",),
    columns=(
        uuid_("trigger_id"),
        uuid_("trajectory_id"),
        uuid_("scope_id", nullable=True),
        enum("trigger", Trigger),
        enum("principal_kind", PrincipalKind),
        text("principal_id"),
        enum("principal_role", AgentRole, nullable=True),
        boolean("principal_admin"),
        instant("created_at"),
        instant("begun_at"),
        integer("attempts", check=(0, None)),
        version(),
    ),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(
        AccessPath("list_by_trajectory", ("trajectory_id",), ("trigger_id",)),
        AccessPath("list_by_scope", ("scope_id",), ("trigger_id",), where=(("scope_id", False),)),
    ),
)

CONFIG_DOCUMENT = Relation(
    name="config_document",
    plural="config_documents",
    entity=ConfigDocument,
    code=43,
    comment="Every configuration this store was opened with, by hash; secrets are references.",
    key=("config_hash",),
    columns=(
        blob("config_hash", length=32),
        text("kind"),
        text("body"),
        instant("created_at"),
    ),
)

SCHEMA_MIGRATION = Relation(
    name="schema_migration",
    plural="schema_migrations",
    entity=Migration,
    code=44,
    comment="Applied schema versions, and which versions of CALIBER may read and write them.",
    key=("schema_version",),
    columns=(
        integer("schema_version"),
        text("name"),
        blob("checksum", length=32),
        integer("min_reader_version"),
        integer("min_writer_version"),
        text("epoch"),
        instant("applied_at"),
    ),
    paths=(AccessPath("list_all", (), ("schema_version",)),),
)
