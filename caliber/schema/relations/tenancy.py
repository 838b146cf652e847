"""Relation of tenants, the only relation of the tenant directory. Source: O-1, P-006."""

from __future__ import annotations

from caliber.model.tenants import Tenant, TenantState
from caliber.schema.relation import AccessPath, Relation, Unique, enum, instant, text, uuid_, version

TENANT = Relation(
    name="tenant",
    plural="tenants",
    entity=Tenant,
    code=50,
    comment="Which data source holds a tenant, and what is being done with it.",
    versioned=True,
    derived=None,  # names of places
    erase=None,  # names of places, in a separate store
    links=None,  # a place
    trust=None,  # the operator's
    exported=None,  # of one directory
    key=("name",),
    columns=(
        uuid_("tenant_id"),
        text("name"),
        enum("state", TenantState),
        text("source", comment="A data source of the configuration (tenancy.sources)."),
        text("location", comment="The file or schema in it."),
        instant("created_at"),
        instant("updated_at"),
        text("target_source", nullable=True, comment="Where it is moving."),
        text("target_location", nullable=True),
        uuid_("move_id", nullable=True, comment="Becomes the epoch of the place it is moving to."),
        text("old_source", nullable=True, comment="Where it was, until that is dropped."),
        text("old_location", nullable=True),
        version(),
    ),
    uniques=(Unique(("source", "location")),),
    paths=(AccessPath("list_all", (), ("name",)),),
)
