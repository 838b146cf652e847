"""Registry of schema versions: their changes, the rows that record them, checks that refuse unsupported stores.

Migrations expand first and contract later, so that old and new processes can run side by side. ``create`` makes the
newest schema at once; ``migrate`` brings an older one up to it; ``open`` does neither and names the command to run.

To add a version: change the declarations, raise ``SCHEMA_VERSION``, and name the changes in ``MIGRATIONS``. The lowest
versions that may read and write never fall. Source: docs/decisions/0110, 0201.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from caliber.model.access import PrincipalKind
from caliber.model.errors import SchemaMismatch
from caliber.model.knowledge import NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.pcp import ConflictWinner
from caliber.model.time import from_us
from caliber.schema.relation import Relation, Unique
from caliber.schema.relations import RELATIONS, SCHEMA_MIGRATION
from caliber.schema.relations.storage import Migration
from caliber.storage.compile.plan import Dialect, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.migrate.dropped_relations import PENDING_TRIGGER, POLICY_RUN, USAGE
from caliber.storage.migrate.schema_changes import (
    AddColumn,
    AddEnumMember,
    AddPath,
    AddRelation,
    DropRelation,
    LoosenUniques,
    OpenEnum,
    Relations,
    ReorderPath,
    SchemaChange,
    changed,
    statements_between,
)

SCHEMA_VERSION = 10
"""The schema that this version of CALIBER writes."""

BASELINE_VERSION = 2
"""The oldest schema that this version of CALIBER can migrate. Schema 1 was never released."""

DIRECTORY_VERSION = 2
"""The schema of a directory of tenants, whose relations are its own. It has no migrations."""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One schema version: its changes; then the statements of ``convert`` in the words of a database."""

    name: str
    min_reader_version: int
    min_writer_version: int
    changes: tuple[SchemaChange, ...] = ()
    convert: Callable[[Dialect], tuple[str, ...]] = lambda _: ()
    owns: bool = False
    """Whether records of users are those users' own from this version on; all others stay shared."""


class OwnerCount(NamedTuple):
    """The records of a relation that become their users' own, and those that stay shared with everybody."""

    relation: str
    private: int
    shared: int


def _convert_jobs(dialect: Dialect) -> tuple[str, ...]:
    from caliber.storage.migrate.job_conversion import convert_jobs  # only stores of schema 3 have such rows

    return convert_jobs(dialect)


_ROLE_TYPES = "decision architecture coordination pattern skill bug test implementation untyped"
"""Types of notes that the views of roles show. Source: M-119, M-128."""

_CONFLICT_COLUMNS = "agent_a_id agent_b_id resource escalated_to merged_type merged_id"
"""Columns of conflicts between agents. Source: C-401, C-417."""

MIGRATIONS: dict[int, MigrationStep] = {
    2: MigrationStep("baseline", min_reader_version=2, min_writer_version=2),
    # A process of schema 2 takes a change record with a code above 255 for a damaged one.
    3: MigrationStep(
        "codes of 14 bits, and idempotency keys of an author",
        min_reader_version=3,
        min_writer_version=3,
        changes=(
            LoosenUniques(
                "note",
                before=(
                    Unique(
                        ("fingerprint",),
                        where=(("archived_at", True), ("superseded_by", True), ("idempotency_key", True)),
                    ),
                    Unique(("idempotency_key",), where=(("idempotency_key", False),)),
                ),
            ),
        ),
    ),
    # A process of schema 3 would look for triggers and schedules where they no longer are.
    4: MigrationStep(
        "one queue of jobs",
        min_reader_version=4,
        min_writer_version=4,
        changes=(AddRelation("job"), DropRelation(PENDING_TRIGGER), DropRelation(POLICY_RUN)),
        convert=_convert_jobs,
    ),
    # A process of schema 4 cannot read an edge to a record of a kind that it has no name for.
    5: MigrationStep(
        "edges between records of every kind, and identities",
        min_reader_version=5,
        min_writer_version=5,
        changes=(OpenEnum("edge", ("source_type", "target_type")), AddRelation("identity")),
    ),
    # A process of schema 5 would show a user's tasks to everybody.
    6: MigrationStep(
        "tasks of users are their own, and facts about people",
        min_reader_version=6,
        min_writer_version=6,
        changes=(
            AddColumn("trajectory", "user_id"),
            AddColumn("trajectory", "agent_id"),
            AddRelation("person_fact"),
            AddEnumMember(PrincipalKind.APPLICATION),
            AddRelation("access_grant"),
        ),
        owns=True,
    ),
    # A process of schema 6 would show turns that a recovery took back, and cannot read the notes of these types.
    7: MigrationStep(
        "turns and summaries that were rolled back, types of notes for roles, and conflicts",
        min_reader_version=7,
        min_writer_version=7,
        changes=(
            AddColumn("turn", "rolled_back_at"),
            AddColumn("turn", "author_id"),
            AddColumn("artifact", "author_id"),
            AddColumn("content_version", "author_id"),
            AddColumn("erasure", "unread"),
            AddColumn("scope", "rolled_back_at"),
            *(AddEnumMember(NoteType(each)) for each in _ROLE_TYPES.split()),
            AddPath("event", "list_audit_by_subject"),
            AddRelation("conflict"),
            AddColumn("checkpoint", "recovered_to"),
            ReorderPath("checkpoint", "list_by_trajectory", ("created_at", "ordinal")),
        ),
    ),
    # A process of schema 7 would erase an agent, and leave what others know of it.
    8: MigrationStep(
        "agents that work together",
        min_reader_version=8,
        min_writer_version=8,
        changes=(
            AddRelation("agent"),
            AddRelation("agent_group"),
            AddRelation("group_member"),
            AddRelation("lock_waiter"),
            AddRelation("delegation"),
            AddRelation("handoff"),
            AddRelation("workspace_value"),
            AddRelation("task"),
            AddRelation("task_dependency"),
            AddRelation("calendar_event"),
            AddRelation("agent_message"),
            *(AddColumn("conflict", name) for name in _CONFLICT_COLUMNS.split()),
            AddEnumMember(ConflictWinner.MERGED),
        ),
    ),
    # A process of schema 8 would count the uses of all readers as one.
    9: MigrationStep(
        "uses counted for each reader",
        min_reader_version=9,
        min_writer_version=9,
        changes=(DropRelation(USAGE), AddRelation("usage")),
    ),
    # A process of schema 9 would send results of tools that failed as if they had not.
    10: MigrationStep(
        "thoughts of models, results that are errors, days of turns",
        min_reader_version=10,
        min_writer_version=10,
        changes=(AddColumn("turn", "thinking"), AddColumn("turn", "is_error"), AddColumn("turn", "utc_offset_s")),
    ),
}


def relations_at(version: int) -> Relations:
    """Return the relations that a store of a schema version has."""
    relations = RELATIONS
    for later in sorted((number for number in MIGRATIONS if number > version), reverse=True):
        for change in reversed(MIGRATIONS[later].changes):
            relations = change.undo(relations)
    return relations


def changed_by(version: int) -> list[tuple[Relation | None, Relation]]:
    """Return the relations that a schema version changes, before (None for a new one) and after."""
    after = relations_at(version)
    before = after
    for change in reversed(MIGRATIONS[version].changes):
        before = change.undo(before)
    return list(changed(before, after))


def statements_of(version: int, dialect: Dialect) -> tuple[str, ...]:
    """Return the statements that bring a store to a schema version from the one before."""
    derived = [line for before, after in changed_by(version) for line in statements_between(before, after, dialect)]
    return (*derived, *MIGRATIONS[version].convert(dialect))


def owner_counts(
    command: Callable[[str], Sequence[Sequence[int]]], versions: Sequence[int], dialect: Dialect
) -> tuple[OwnerCount, ...]:
    """Return the records that versions make their users' own, by relation; ``command`` runs a statement."""
    counts = []
    owning = any(MIGRATIONS[version].owns for version in versions)
    there = {each.name for each in relations_at(min(versions) - 1)} if owning else ()
    for relation in RELATIONS:
        if relation.owner is None or relation.name not in there:
            continue
        by = relation.owner.by
        kind = next(dict(each.parts)["entity_type"] for each in relation.composites if each.field == by)
        table = dialect.table(relation.name)
        ((every, private),) = command(f"SELECT count(*), count(CASE WHEN {kind} = 'user' THEN 1 END) FROM {table}")
        counts.append(OwnerCount(relation.name, int(private), int(every) - int(private)))
    return tuple(counts)


def missing_versions(applied: Iterable[Migration]) -> tuple[int, ...]:
    """Return the schema versions that a store lacks, in their order."""
    done = {migration.schema_version for migration in applied}
    return tuple(version for version in sorted(MIGRATIONS) if version > min(done) and version not in done)


def shuts_out(applied: Sequence[Migration], versions: Iterable[int]) -> bool:
    """Return whether missing versions refuse a process that may use the store now."""
    may_read = max(migration.min_reader_version for migration in applied)
    may_write = max(migration.min_writer_version for migration in applied)
    steps = [MIGRATIONS[version] for version in versions]
    return any(step.min_reader_version > may_read or step.min_writer_version > may_write for step in steps)


def checksum_of(statements: Sequence[str]) -> bytes:
    """Return the checksum of a schema version's statements."""
    return hashlib.sha256("\n".join(statements).encode()).digest()


def migration_of(version: int, checksum: bytes, at_us: int, epoch: str) -> Migration:
    """Return the row that records a schema version in a store."""
    step = MIGRATIONS[version]
    readers, writers = step.min_reader_version, step.min_writer_version
    return Migration(version, step.name, checksum, readers, writers, epoch, from_us(at_us))


def baseline_of(checksum: bytes, at_us: int, epoch: str | None = None, *, version: int | None = None) -> Migration:
    """Return the row of a store made with the newest schema at once; its epoch is a new one unless one is given."""
    row = migration_of(version or SCHEMA_VERSION, checksum, at_us, epoch or str(uuid.uuid4()))
    return replace(row, name="baseline")


def epoch_of(session: StatementSession, plans: Mapping[str, RelationPlans]) -> str:
    """Return the epoch of a store: another one since it was restored."""
    plan = plans[SCHEMA_MIGRATION.name]
    return str(plan.codec.decode(session.run(plan.lists["list_all"], ())[0]).epoch)


def check_needed(store: str, needed: int) -> None:
    """Refuse to continue with a store that was migrated while it was open, beyond this version's range.

    Raises: SchemaMismatch.
    """
    if needed > SCHEMA_VERSION:
        raise SchemaMismatch(
            store=store,
            reason="it was migrated and needs a newer CALIBER; upgrade the package caliber-memory, and open it again",
        )


def check_migratable(store: str, applied: Sequence[Migration]) -> None:
    """Refuse a store that no migration can bring up to date.

    Raises: SchemaMismatch for a schema that was never finished, or is older than the baseline.
    """
    if not applied:
        raise SchemaMismatch(
            store=store, reason="its schema was never finished; remove the file and run `caliber create`"
        )
    newest = max(migration.schema_version for migration in applied)
    if newest < BASELINE_VERSION:
        raise SchemaMismatch(store=store, reason=before_baseline(newest))


def before_baseline(version: int) -> str:
    """Return why a store or backup with a schema older than the baseline is refused, and the remedy."""
    return (
        f"schema version {version} is older than {BASELINE_VERSION}, the oldest that this version of CALIBER can"
        " migrate; create another store, or open it with the version of CALIBER that made it"
    )


def check_versions(store: str, applied: Sequence[Migration], *, writing: bool, version: int | None = None) -> None:
    """Refuse a store that this version of CALIBER, whose schema is ``version``, may not use.

    Raises: SchemaMismatch, saying whether to migrate the store or to upgrade CALIBER.
    """
    check_migratable(store, applied)
    ours = version or SCHEMA_VERSION
    newest = max(applied, key=lambda migration: migration.schema_version)
    needed = newest.min_writer_version if writing else newest.min_reader_version
    if needed > ours:
        raise SchemaMismatch(
            store=store,
            reason=f"schema version {newest.schema_version} needs a newer CALIBER; upgrade the package caliber-memory",
        )
    if newest.schema_version < ours:
        raise SchemaMismatch(
            store=store,
            reason=f"schema version {newest.schema_version} is older than {ours}; run `caliber db migrate`",
        )
