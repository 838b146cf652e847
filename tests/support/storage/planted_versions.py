"""Schema versions that CALIBER does not have: a relation, then columns and a path, then a member of its enum.

``become`` makes this process one of a planted version. It must run before anything but the declarations is imported.
"""

from __future__ import annotations

import uuid
from dataclasses import field, make_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from caliber.schema import relations
from caliber.schema.erase import Erase
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Residence,
    Unique,
    enum,
    instant,
    integer,
    text,
    text_array,
    uuid_,
    version,
)
from caliber.schema.relations.storage import LAST_CODE
from caliber.schema.traits import Exported, Resident

CODE = LAST_CODE + 1
"""No byte holds it."""
GRUMPY, GLAD, CALM = "grumpy", "glad", "calm"


def mood(planted: int) -> Relation:
    """Return the relation as planted version 1, 2 or 3 declares it."""
    members = [(GRUMPY.upper(), GRUMPY), (GLAD.upper(), GLAD), *([(CALM.upper(), CALM)] if planted > 2 else [])]
    make: Any = StrEnum
    feeling = make("Feeling", members, module=__name__, qualname="Feeling")
    fields: list[Any] = [("mood_id", uuid.UUID), ("feeling", feeling), ("said", str), ("felt_at", datetime)]
    columns = [
        uuid_("mood_id"),
        enum("feeling", feeling, residence=Residence.COLUMN),
        text("said", residence=Residence.TEXT),
        instant("felt_at"),
    ]
    defaults: list[Any] = [("version", int, field(default=1))]
    if planted > 1:
        columns += [
            integer("strength", check=(0, 9), default=5, residence=Residence.COLUMN),
            text_array("words", default=()),
            uuid_("trajectory_id", nullable=True),
            text("nickname", nullable=True),
        ]
        defaults += [
            ("strength", int, field(default=7)),
            ("words", tuple, field(default=("new",))),
            ("trajectory_id", Any, field(default=None)),
            ("nickname", Any, field(default=None)),
        ]
    return Relation(
        name="mood",
        plural="moods",
        entity=make_dataclass("Mood", fields + defaults, frozen=True, slots=True),
        code=CODE,
        comment="Planted.",
        ordinal=True,
        versioned=True,
        resident=Resident(),
        key=("mood_id",),
        columns=(*columns, version()),
        foreign_keys=(ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),) if planted > 1 else (),
        uniques=(Unique(("nickname",), where=(("nickname", False),)),) if planted > 1 else (),
        derived=None,
        erase=Erase(hangs_on=("trajectory_id",)) if planted > 1 else Erase(),
        links=None,
        trust=None,
        exported=Exported.RECORDS,
        paths=(
            AccessPath("list_by_feeling", ("feeling",), ("felt_at", "ordinal")),
            *((AccessPath("list_newest", (), ("felt_at", "ordinal")),) if planted > 1 else ()),
        ),
    )


def become(planted: int) -> Relation | None:
    """Make this process one of the planted version; 0 is CALIBER's own. Return the relation as it knows it."""
    known = None
    if planted:
        known = mood(planted)
        relations.check_codes((*relations.RELATIONS, known))
        relations.RELATIONS = (*relations.RELATIONS, known)
        relations.MIRRORED = (*relations.MIRRORED, known)
        relations.BY_NAME[known.name] = relations.BY_CODE[known.code] = known

    from caliber.storage.migrate import migrations
    from caliber.storage.migrate.schema_changes import AddColumn, AddEnumMember, AddPath, AddRelation

    own = migrations.SCHEMA_VERSION
    names = ("strength", "words", "trajectory_id", "nickname")
    if planted > 0:
        migrations.MIGRATIONS[own + 1] = migrations.MigrationStep("moods", own, own, (AddRelation("mood"),))
    if planted > 1:
        changes = (*(AddColumn("mood", name) for name in names), AddPath("mood", "list_newest"))
        migrations.MIGRATIONS[own + 2] = migrations.MigrationStep("more of moods", own, own, changes)
    if planted > 2:
        calm: Any = known.column("feeling").enum
        step = migrations.MigrationStep("calm moods", own + 3, own + 3, (AddEnumMember(calm(CALM)),))
        migrations.MIGRATIONS[own + 3] = step
    migrations.SCHEMA_VERSION = own + planted
    return known
