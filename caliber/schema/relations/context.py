"""context_window, content_version. Source: C-394, design section 5."""

from __future__ import annotations

from caliber.model.entities import ContentVersion, StoredWindow
from caliber.model.enums import EntityType
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    blob,
    enum,
    instant,
    integer,
    text,
    uuid_,
)

CONTEXT_WINDOW = Relation(
    name="context_window",
    plural="context_windows",
    entity=StoredWindow,
    code=30,
    comment="A persisted window: recorded inputs and decisions, enough to explain and replay it.",
    ordinal=True,
    key=("window_id",),
    columns=(
        uuid_("window_id"),
        uuid_("trajectory_id"),
        instant("assembled_at"),
        integer("max_tokens", check=(0, None)),
        integer("used_tokens", check=(0, None)),
        blob("config_hash", length=32),
        blob("text_hash", length=32),
        blob("record"),
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
    key=("owner_type", "owner_ordinal", "owner_version"),
    columns=(
        enum("owner_type", EntityType, open=True),
        integer("owner_ordinal"),
        integer("owner_version"),
        uuid_("owner_id"),
        text("body"),
        instant("replaced_at"),
    ),
    paths=(
        AccessPath("list_by_owner", ("owner_id",), ("owner_version",)),
        AccessPath("list_oldest", (), ("replaced_at",), limited=True),
    ),
)
