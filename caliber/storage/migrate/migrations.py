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

from caliber.model.errors import SchemaMismatch
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import RELATIONS, SCHEMA_MIGRATION
from caliber.schema.relations.storage import Migration
from caliber.storage.compile.plan import Dialect, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.migrate.schema_changes import Relations, SchemaChange, changed, statements_between

SCHEMA_VERSION = 1
"""The schema that this version of CALIBER writes."""

DIRECTORY_VERSION = 1
"""The schema of a directory of tenants, whose relations are its own. It has no migrations."""

BASELINE = "first release"
"""The name of the version that a store was made with. Stores of development versions hold another name: their version
numbers count other schemas.
"""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One schema version: its changes; then the statements of ``convert`` in the words of a database."""

    name: str
    min_reader_version: int
    min_writer_version: int
    changes: tuple[SchemaChange, ...] = ()
    convert: Callable[[Dialect], tuple[str, ...]] = lambda _: ()


MIGRATIONS: dict[int, MigrationStep] = {
    1: MigrationStep(BASELINE, min_reader_version=1, min_writer_version=1),
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
    return replace(row, name=BASELINE)


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

    Raises: SchemaMismatch for a schema that was never finished, or is that of a development version.
    """
    if not applied:
        raise SchemaMismatch(
            store=store, reason="its schema was never finished; remove the file and run `caliber create`"
        )
    first = min(applied, key=lambda migration: migration.schema_version)
    if first.name != BASELINE:
        raise SchemaMismatch(
            store=store,
            reason="it was made by a development version of CALIBER, before 0.1.0, and cannot be migrated;"
            " create another store, or open it with the version that made it",
        )


def check_versions(store: str, applied: Sequence[Migration], version: int | None = None) -> None:
    """Refuse a store that this version of CALIBER, whose schema is ``version``, may not use.

    Raises: SchemaMismatch, saying whether to migrate the store or to upgrade CALIBER.
    """
    check_migratable(store, applied)
    ours = version or SCHEMA_VERSION
    newest = max(applied, key=lambda migration: migration.schema_version)
    if newest.min_writer_version > ours:
        raise SchemaMismatch(
            store=store,
            reason=f"schema version {newest.schema_version} needs a newer CALIBER; upgrade the package caliber-memory",
        )
    if newest.schema_version < ours:
        raise SchemaMismatch(
            store=store,
            reason=f"schema version {newest.schema_version} is older than {ours}; run `caliber db migrate`",
        )
