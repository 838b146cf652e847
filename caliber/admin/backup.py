"""Backup of a store at one boundary, as an archive or a copy of its file, restore from it, and their reports.

Source: P-083; docs/decisions/0139.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from caliber.admin.checking import rebuild_full_text
from caliber.backends import backend, bare_store
from caliber.config import CaliberConfig
from caliber.embedding.reembedding import build_index
from caliber.model.errors import CaliberError, InvalidValue, StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import suppress
from caliber.model.progress import Progress
from caliber.model.time import SystemClock
from caliber.schema.relations import ERASURE
from caliber.storage.migrate.migrations import SCHEMA_VERSION
from caliber.storage.protocol import Store

ARCHIVE: Final = ".zip"
COPY: Final = ".db"


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The contents of a backup; ``rows`` is None for a copy of the file. Units: bytes on disk."""

    path: Path
    bytes: int
    epoch: str
    sequence: int
    rows: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The origin of a restored store; its epoch is new.

    ``erasures_undone`` counts erasures in the replaced store that came after the backup: their data may be back.
    ``not_indexed`` is the reason why the database's own index of vectors could not be built: searches then compare all
    vectors.
    """

    path: Path
    store: str
    epoch: str
    rows: dict[str, int]
    erasures_undone: int
    not_indexed: str | None = None


def backup(store: Store, path: str | os.PathLike[str], *, replace: bool, progress: Progress) -> BackupReport:
    """Write everything of one boundary to a file; see ``Admin.backup``."""
    target = Path(path)
    if target.suffix == COPY:
        return _copied(store, target, replace, progress)
    if target.suffix != ARCHIVE:
        reason = "must end in .zip, an archive for every database, or in .db, a copy of a SQLite file"
        raise InvalidValue(field="path", reason=reason)
    from caliber.dump.archive import check_target, only_one, write_archive

    check_target(target, replace=replace)
    with only_one(target), store.maintenance.snapshot() as snapshot:
        manifest = write_archive(
            target,
            snapshot,
            adapter=store.adapter,
            schema_version=SCHEMA_VERSION,
            taken_at_us=SystemClock().now_us(),
            progress=progress,
        )
    rows = {member.relation: member.rows for member in manifest.relations}
    return BackupReport(target, target.stat().st_size, manifest.epoch, manifest.sequence, rows)


def _copied(store: Store, target: Path, replace: bool, progress: Progress) -> BackupReport:
    from caliber.dump.archive import check_target, finish, only_one, unfinished_of

    if not store.maintenance.copies_files:
        raise InvalidValue(field="path", reason=f"{store.adapter} has no file to copy; name an archive, *{ARCHIVE}")
    check_target(target, replace=replace)
    with only_one(target):
        unfinished = unfinished_of(target)
        try:
            epoch, sequence = store.maintenance.copy_to(unfinished, progress)
            finish(unfinished, target)
        finally:
            with suppress(OSError):  # a complete file has been renamed
                unfinished.unlink()
    return BackupReport(target, target.stat().st_size, epoch, sequence, None)


def restore(config: CaliberConfig, path: str | os.PathLike[str], *, replace: bool, progress: Progress) -> RestoreReport:
    """Replace the configured store with a backup; see ``caliber.restore``."""
    source = Path(path)
    # The backup determines the memories of the store; a migration adds those that the configuration declares.
    config = config.model_copy(update={"memories": ()})
    before = _Before.of(config)
    searched = config.search.mode == "backend" or before.has_full_text
    module = backend(config.storage.adapter)
    clock_us = SystemClock().now_us
    if source.suffix == COPY:
        epoch = module.restore(config, source, replace=replace, clock_us=clock_us, progress=progress)
    elif source.suffix == ARCHIVE:
        from caliber.dump.archive import Archive

        archive = Archive(source)
        try:
            archive.check(progress)
            epoch = module.restore(config, archive, replace=replace, clock_us=clock_us, progress=progress)
        finally:
            archive.close()
    else:
        raise InvalidValue(field="path", reason=f"must be a backup: *{ARCHIVE}, or *{COPY} of SQLite")
    with bare_store(config) as store:
        rows = {name: store_rows for name, store_rows in _rows(store) if store_rows}
        searched = searched or (store.full_text is not None and store.full_text.state() is not None)
        shown = store.facts()["path"]
        undone = len(before.erasures - _erasures(store))
    if searched:
        rebuild_full_text(config, progress)
    not_indexed = None
    try:
        with bare_store(config) as store:
            build_index(store, config, progress)
    except CaliberError as error:
        not_indexed = error.message
    return RestoreReport(source, shown, epoch, rows, undone, not_indexed)


@dataclass(frozen=True, slots=True)
class _Before:
    """The store that is about to be replaced."""

    has_full_text: bool
    erasures: frozenset[bytes]

    @classmethod
    def of(cls, config: CaliberConfig) -> _Before:
        try:
            with bare_store(config) as store:
                has = store.full_text is not None and store.full_text.state() is not None
                return cls(has, _erasures(store))
        except StorageError:
            return cls(False, frozenset())  # missing, or so damaged that a backup is needed


def _erasures(store: Store) -> frozenset[bytes]:
    plans = store.plans[ERASURE.name]
    with store.read() as session:
        return frozenset(plans.codec.key_of(row)[0] for row in session.run(plans.page, (-1, 1 << 31)))


def _rows(store: Store) -> Iterator[tuple[str, int]]:
    with store.read() as session:
        for name, plans in store.plans.items():
            yield name, session.run(plans.count, ())[0][0]
