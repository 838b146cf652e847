"""Relation of the durable job queue. Source: C-229, C-238, M ingest; design section 2."""

from __future__ import annotations

from caliber.model.access import AgentRole, PrincipalKind
from caliber.model.jobs import Job, JobOutcome
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Unique,
    as_object,
    boolean,
    enum,
    instant,
    integer,
    json_,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import Rights

JOB = Relation(
    name="job",
    plural="jobs",
    entity=Job,
    code=51,
    comment="Work behind calls: waiting, leased to a process, or ended and kept as history.",
    versioned=True,
    derived=None,  # given by the code that enqueued it
    erase=Erase(),
    links=None,  # gone when its time is over
    rights=Rights(task="trajectory_id"),
    trust=None,  # work, not content
    exported=None,  # work of one store
    key=("job_id",),
    columns=(
        uuid_("job_id"),
        text("kind", redact=Redaction.NOTHING),
        text("key", nullable=True, redact=Redaction.ROW),
        json_("payload", decode=as_object, redact=Redaction.WORDS),
        enum("principal_kind", PrincipalKind),
        text("principal_id"),
        enum("principal_role", AgentRole, nullable=True),
        boolean("principal_admin"),
        instant("created_at"),
        instant("due_at"),
        instant("available_at"),
        instant("scheduled_at"),
        uuid_("trajectory_id", nullable=True),
        uuid_("scope_id", nullable=True),
        instant("begun_at", nullable=True),
        text("claimed_by", nullable=True, redact=Redaction.NOTHING),
        integer("attempts", check=(0, None)),
        text("error", nullable=True, redact=Redaction.QUOTES),
        integer("done", check=(0, None)),
        integer("total", nullable=True, check=(0, None)),
        instant("ended_at", nullable=True),
        enum("outcome", JobOutcome, nullable=True),
        version(),
    ),
    # A second request is the same work until it starts: after that it may have read older data.
    uniques=(Unique(("kind", "key"), where=(("begun_at", True), ("ended_at", True), ("key", False))),),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade"),
    ),
    paths=(
        AccessPath("list_available", ("kind",), ("available_at",), where=(("ended_at", True),), limited=True),
        # For detecting a clock that was put back.
        AccessPath("list_newest", (), ("scheduled_at",), where=(("ended_at", True),), descending=True, limited=True),
        AccessPath(
            "list_ended", ("outcome",), ("ended_at",), where=(("ended_at", False),), descending=True, limited=True
        ),
        AccessPath(
            "list_by_trajectory", ("trajectory_id",), ("job_id",), where=(("trajectory_id", False), ("ended_at", True))
        ),
        AccessPath("list_by_scope", ("scope_id",), ("job_id",), where=(("scope_id", False), ("ended_at", True))),
    ),
)
