"""Relation of the event log. Source: C-398."""

from __future__ import annotations

from caliber.model.erasure import Erasure, ErasureKind
from caliber.model.events import Event, EventFamily
from caliber.model.references import EntityType
from caliber.schema.erase import Erase, Redaction, Stub
from caliber.schema.relation import (
    AccessPath,
    Relation,
    as_object,
    enum,
    instant,
    integer,
    json_,
    text,
    uuid_,
    uuid_array,
    version,
)
from caliber.schema.traits import Rights

EVENT = Relation(
    name="event",
    plural="events",
    entity=Event,
    code=41,
    comment="The append-only log of what happened, by family.",
    ordinal=True,
    derived=None,  # an event is as it was reported
    erase=Erase(
        hangs_on=("event_id", "subject_id", "trajectory_id", "scope_id"),
        # The audit keeps that something happened; it does not keep its details or the person.
        stub=Stub(
            "family",
            EventFamily.AUDIT,
            (
                ("payload", {"erased": True}),
                ("principal", None),
                ("subject_id", None),
                ("trajectory_id", None),
                ("scope_id", None),
            ),
        ),
    ),
    links=None,  # a report
    rights=Rights(task="trajectory_id"),
    trust=None,  # a report of the program
    exported=None,  # a log is of one store
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
        text("principal", nullable=True, redact=Redaction.PRINCIPALS),
        json_("payload", decode=as_object, redact=Redaction.ENTRIES),
        integer("duration_ms", nullable=True, check=(0, None)),
    ),
    # What reads leave behind is written later than it happened: in the order of time, not of the log.
    paths=(
        AccessPath(
            "list_by_trajectory",
            ("trajectory_id",),
            ("created_at", "ordinal"),
            where=(("trajectory_id", False),),
            descending=True,
            limited=True,
        ),
        AccessPath(
            "list_by_trajectory_and_type",
            ("trajectory_id", "event_type"),
            ("created_at", "ordinal"),
            where=(("trajectory_id", False),),
            descending=True,
            limited=True,
        ),
        AccessPath("list_by_subject", ("subject_id",), ("ordinal",), where=(("subject_id", False),)),
        # What undoing a correction reads: a record that is often used has many events of other families.
        AccessPath(
            "list_audit_by_subject",
            ("subject_id",),
            ("ordinal",),
            where=(("subject_id", False), ("family", EventFamily.AUDIT)),
        ),
        AccessPath("list_by_type", ("event_type",), ("created_at", "ordinal"), descending=True, limited=True),
        AccessPath("list_by_principal", ("principal",), ("created_at", "ordinal"), descending=True, limited=True),
        AccessPath("list_oldest", ("family",), ("created_at",), limited=True),
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
    derived=None,  # counts of erased records
    erase=None,  # counts, instants and ids of records that stay
    links=None,  # a report
    trust=None,  # counts
    exported=None,  # an act in one store
    purges=True,
    key=("erasure_id",),
    columns=(
        uuid_("erasure_id"),
        enum("kind", ErasureKind),
        json_("counts", decode=as_object),
        instant("begun_at"),
        instant("finished_at", nullable=True),
        uuid_array("unread", nullable=True, comment="records that it left, and people should read"),
        version(),
    ),
    paths=(AccessPath("list_unfinished", (), ("begun_at",), where=(("finished_at", True),)),),
)
