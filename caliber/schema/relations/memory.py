"""Relation memory_type (declared memories of a store), and the codes and table prefix of declared memories.

Source: C-130, C-132, docs/decisions/0160.
"""

from __future__ import annotations

from datetime import datetime

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.erase import Erase
from caliber.schema.relation import AccessPath, Relation, Unique, instant, integer, text, version
from caliber.schema.traits import Place

KEY = "record_id"
"""The key of every declared memory's records."""
TABLE_PREFIX = "memory_"
"""Prefix of the tables of declared memories."""
FIRST_CODE = 64
LAST_CODE = 8_191
"""The codes of declared memories."""
CODE_MAX = 16_383
"""Change records name relations by 14 bits. Built-in relations have the codes below and above declared memories."""

NAMESAKE_BITS = 40
"""Distance between the ordinals of successive memories of one name: no table has as many rows."""


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """A memory that a store has, or had: its definition, and the code that change records name its records by."""

    code: int
    name: str
    definition: str
    created_at: datetime
    updated_at: datetime
    retired_at: datetime | None = None
    version: int = 1


MEMORY_TYPE = Relation(
    name="memory_type",
    plural="memory_types",
    entity=StoredMemory,
    code=47,
    comment="The memories declared for this store; one that was removed keeps its code for ever.",
    versioned=True,
    derived=None,  # a declaration is as it was made
    erase=Erase(
        refused="the declaration of the memory {key} names it; give texts that it does not hold, or remove the memory"
        " or the field (caliber db migrate --drop) and declare it in other words"
    ),
    links=None,  # a declaration
    trust=None,  # the operator's
    exported=None,  # the configuration declares it
    place=Place.DECLARATIONS,
    key=("code",),
    columns=(
        integer("code", check=(FIRST_CODE, None)),
        text("name"),
        text("definition"),
        instant("created_at"),
        instant("updated_at"),
        instant("retired_at", nullable=True),
        version(),
    ),
    uniques=(Unique(("name",), where=(("retired_at", True),)),),
    paths=(AccessPath("list_all", (), ("code",)),),
)


def is_declared(relation: Relation) -> bool:
    """Return whether a relation holds the records of a declared memory, by its code."""
    return FIRST_CODE <= relation.code <= LAST_CODE
