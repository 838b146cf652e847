"""Relation of erasure requests and their progress."""

from __future__ import annotations

from caliber.model.erasure import Erasure, ErasureKind
from caliber.schema.relation import (
    AccessPath,
    Relation,
    enum,
    instant,
    json_,
    uuid_,
    uuid_array,
    version,
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
        json_("counts"),
        instant("begun_at"),
        instant("finished_at", nullable=True),
        uuid_array("unread", nullable=True, comment="records that it left, and people should read"),
        version(),
    ),
    paths=(AccessPath("list_unfinished", (), ("begun_at",), where=(("finished_at", True),)),),
)
