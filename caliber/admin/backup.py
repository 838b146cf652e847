"""Backup of a store at one boundary, as an archive or a copy of its file, restore from it, and their reports.

Source: P-083; docs/decisions/0139.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Final

from caliber.admin.checking import rebuild_full_text
from caliber.backends import backend, bare_store
from caliber.config import CaliberConfig
from caliber.embedding.reembedding import build_index
from caliber.engine.engine import Engine
from caliber.model.errors import CaliberError, InvalidValue, StorageError
from caliber.model.events import Event, EventFamily
from caliber.model.lazy_dataclass import dataclass
from caliber.model.progress import Progress
from caliber.model.time import SystemClock
from caliber.schema.relations import ERASURE, EVENT
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.paging import pages
from caliber.storage.migrate.migrations import SCHEMA_VERSION
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork

ARCHIVE: Final = ".zip"
COPY: Final = ".db"
_PAGE: Final = 1_000


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
    from caliber.dump.archive import write_archive, written

    with written(target, replace=replace) as unfinished, store.maintenance.snapshot() as snapshot:
        manifest = write_archive(
            unfinished,
            snapshot,
            adapter=store.adapter,
            schema_version=SCHEMA_VERSION,
            taken_at_us=SystemClock().now_us(),
            progress=progress,
        )
    rows = {member.relation: member.rows for member in manifest.relations}
    return BackupReport(target, target.stat().st_size, manifest.epoch, manifest.sequence, rows)


def export_audit(engine: Engine, target: Path, before: datetime | None, pruned_by: str | None) -> int:
    """Write audit events to a file, and let a principal remove them; see ``Admin.export_audit``."""
    from caliber.dump.archive import new_file, written

    plans, taken = engine.store.plans[EVENT.name], list[int]()

    def remove(uow: UnitOfWork) -> None:
        for at in range(0, len(taken), _PAGE):
            uow.execute("event.drop_many", dump_json(taken[at : at + _PAGE]))
        engine.audit(uow, "audit_export", principal=pruned_by, payload={"removed": len(taken)})

    with (
        written(target, replace=False) as unfinished,
        os.fdopen(new_file(unfinished), "w", encoding="utf-8") as file,
        engine.store.read() as session,
    ):
        for row in chain.from_iterable(pages(session, plans, _PAGE)):
            event: Event = plans.codec.decode(row)
            if event.family is EventFamily.AUDIT and (before is None or event.created_at < before):
                taken.append(row[0])
                file.write(json.dumps(asdict(event), default=str, ensure_ascii=False) + "\n")
    if pruned_by is not None and taken:
        engine.write(remove)
    return len(taken)


def _copied(store: Store, target: Path, replace: bool, progress: Progress) -> BackupReport:
    from caliber.dump.archive import written

    if not store.maintenance.copies_files:
        raise InvalidValue(field="path", reason=f"{store.adapter} has no file to copy; name an archive, *{ARCHIVE}")
    with written(target, replace=replace) as unfinished:
        epoch, sequence = store.maintenance.copy_to(unfinished, progress)
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
