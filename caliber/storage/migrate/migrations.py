"""Schema versions: what each adds, and which versions of CALIBER may read and write a store that has it.

Migrations expand first and contract later, so that old and new processes can run side by side. ``create`` makes
the newest schema at once; ``migrate`` brings an older one up to it; ``open`` does neither and says what to run.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caliber.model.errors import SchemaMismatch
from caliber.model.time import from_us
from caliber.schema.relations import SCHEMA_MIGRATION
from caliber.schema.relations.storage import Migration
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession

SCHEMA_VERSION = 2
"""The schema that this version of CALIBER writes."""

BASELINE_VERSION = 2
"""The oldest schema that this version of CALIBER can migrate. Schema 1 was never released."""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One schema version. ``texts`` holds each backend's statements by its name."""

    name: str
    min_reader_version: int
    min_writer_version: int
    texts: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def statements(self, dialect: str) -> tuple[str, ...]:
        """Return the statements of this step for one database."""
        return dict(self.texts)[dialect]


MIGRATIONS: dict[int, MigrationStep] = {
    BASELINE_VERSION: MigrationStep(
        "baseline", min_reader_version=BASELINE_VERSION, min_writer_version=BASELINE_VERSION
    ),
}


def checksum_of(statements: Sequence[str]) -> bytes:
    """Return what a schema version's statements are known by."""
    return hashlib.sha256("\n".join(statements).encode()).digest()


def baseline_of(checksum: bytes, at_us: int, epoch: str | None = None) -> Migration:
    """Return the row of a store made with the newest schema at once; its epoch is a new one unless one is given."""
    step = MIGRATIONS[SCHEMA_VERSION]
    return Migration(
        schema_version=SCHEMA_VERSION,
        name="baseline",
        checksum=checksum,
        min_reader_version=step.min_reader_version,
        min_writer_version=step.min_writer_version,
        epoch=str(uuid.uuid4()) if epoch is None else epoch,
        applied_at=from_us(at_us),
    )


def epoch_of(session: StatementSession, plans: Mapping[str, RelationPlans]) -> str:
    """Return the epoch of a store: another one since it was restored."""
    plan = plans[SCHEMA_MIGRATION.name]
    rows = session.run(plan.lists["list_all"], ())
    return str(plan.codec.decode(rows[0]).epoch)


def check_needed(store: str, needed: int) -> None:
    """Refuse to go on with a store that was migrated while it was open, beyond what this version may use.

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
    """Return why a store or a backup of a schema older than the baseline is refused, and what to do."""
    return (
        f"schema version {version} is older than {BASELINE_VERSION}, the oldest that this version of CALIBER can"
        " migrate; create another store, or open it with the version of CALIBER that made it"
    )


def check_versions(store: str, applied: Sequence[Migration], *, writing: bool) -> None:
    """Refuse a store that this version of CALIBER may not use.

    Raises: SchemaMismatch, saying whether to migrate the store or to upgrade CALIBER.
    """
    check_migratable(store, applied)
    newest = max(applied, key=lambda migration: migration.schema_version)
    needed = newest.min_writer_version if writing else newest.min_reader_version
    if needed > SCHEMA_VERSION:
        raise SchemaMismatch(
            store=store,
            reason=f"schema version {newest.schema_version} needs a newer CALIBER; upgrade the package caliber-memory",
        )
    if newest.schema_version < SCHEMA_VERSION:
        raise SchemaMismatch(
            store=store,
            reason=f"schema version {newest.schema_version} is older than {SCHEMA_VERSION}; run `caliber db migrate`",
        )
