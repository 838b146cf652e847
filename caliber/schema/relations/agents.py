"""Relation of locks between agents. Source: C-395, K-036, K-037."""

from __future__ import annotations

from caliber.model.agents import Lock, LockMode
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import (
    AccessPath,
    Relation,
    enum,
    instant,
    integer,
    text,
    uuid_,
    version,
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
    erase=Erase(),
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
