"""Relations of context windows: context_window, content_version, pending_injection.

Source: C-394, K-065, design section 5.
"""

from __future__ import annotations

from caliber.model.context import ContentVersion, PendingInjection, StoredWindow
from caliber.model.references import EntityType
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Residence,
    blob,
    enum,
    instant,
    integer,
    real,
    stamped,
    text,
    uuid_,
    version,
)
from caliber.schema.traits import Exported, Resident, Rights

CONTEXT_WINDOW = Relation(
    name="context_window",
    plural="context_windows",
    entity=StoredWindow,
    code=30,
    comment="A persisted window: recorded inputs and decisions, enough to explain and replay it.",
    ordinal=True,
    derived=None,  # text_hash is that of the assembled text, which is not kept
    erase=Erase(),
    links=None,  # none is made to a window
    rights=Rights(task="trajectory_id", private=True),
    trust=None,  # of its records
    exported=None,  # it refers to rows by ordinals, which an import assigns anew
    key=("window_id",),
    columns=(
        uuid_("window_id"),
        uuid_("trajectory_id"),
        instant("assembled_at"),
        integer("max_tokens", check=(0, None)),
        integer("used_tokens", check=(0, None)),
        blob("config_hash", length=32, redact=Redaction.NOTHING),
        blob("text_hash", length=32, redact=Redaction.NOTHING),
        blob("record", redact=Packed(Layout.WINDOW, digest="text_hash")),
        instant("expires_at", nullable=True),
    ),
    foreign_keys=(ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),),
    paths=(
        AccessPath(
            "list_by_trajectory", ("trajectory_id",), ("assembled_at", "ordinal"), descending=True, limited=True
        ),
        AccessPath("list_expiring", (), ("expires_at",), where=(("expires_at", False),), limited=True),
        AccessPath("list_oldest", (), ("assembled_at",), limited=True),
    ),
)

CONTENT_VERSION = Relation(
    name="content_version",
    plural="content_versions",
    entity=ContentVersion,
    code=31,
    comment="What a record said before a write changed or removed it; kept while windows may refer to it.",
    derived=None,  # a copy of another record
    erase=Erase(
        owned=("author_id",), hangs_on=("owner_id", "trajectory_id"), version_of=("owner_type", "owner_ordinal")
    ),
    links=None,  # it hangs on its owner
    rights=Rights(task="trajectory_id"),
    trust=None,  # that of its owner
    exported=None,  # as windows
    key=("owner_type", "owner_ordinal", "owner_version"),
    columns=(
        enum("owner_type", EntityType, open=True),
        integer("owner_ordinal"),
        integer("owner_version"),
        uuid_("owner_id"),
        text("body", redact=Packed(Layout.VERSION, row=True)),
        instant("replaced_at"),
        uuid_("trajectory_id", nullable=True, comment="of what belongs to a task, to be purged with it"),
        uuid_("author_id", nullable=True, comment="the user or agent that wrote it, if not one of the task's own"),
    ),
    paths=(
        AccessPath("list_by_owner", ("owner_id",), ("owner_version",)),
        AccessPath("list_oldest", (), ("replaced_at",), limited=True),
    ),
)

PENDING_INJECTION = Relation(
    name="pending_injection",
    plural="pending_injections",
    entity=PendingInjection,
    code=32,
    comment="What a trigger asked to be in the next window of a trajectory; the window that takes it removes it.",
    ordinal=True,
    versioned=True,
    resident=Resident(groups=("trajectory_id",), framed=True),
    derived=None,  # each column is stated by its trigger
    erase=None,  # words of declarations and of the configuration; goes with its trajectory
    links=None,  # gone with the next window
    rights=Rights(task="trajectory_id"),
    trust=None,  # words of declarations
    exported=Exported.ON_REQUEST,  # it waits for one window of this store
    key=("injection_id",),
    columns=(
        uuid_("injection_id"),
        uuid_("trajectory_id", residence=Residence.INTERNED),
        text("origin"),
        text("memory"),
        text("kind"),
        stamped("created_at"),
        integer("count", nullable=True, check=(1, None)),
        real("min_relevance", nullable=True, check=(0, 1)),
        version(),
    ),
    foreign_keys=(ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),),
    paths=(AccessPath("list_by_trajectory", ("trajectory_id",), ("ordinal",)),),
)
