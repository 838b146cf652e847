"""Writer and verifying reader of a store's backup archive: a ZIP of Parquet files and a manifest of hashes.

An archive of any database restores into any other. Members are stored, not deflated, since Parquet is compressed; at
most one record batch is in memory. The file appears under its name only when it is complete and on disk.

Source: P-083; docs/decisions/0139.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, Final

from caliber.dump.dumped_relations import BATCH_ROWS, RowsDigest, dump_relations
from caliber.model.errors import Conflict, InvalidValue, StorageError, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.files import BESIDE, open_descriptor, open_file, sync
from caliber.model.process.interrupts import let_through, managed, suppress
from caliber.model.progress import Progress
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.relation import Column, Relation
from caliber.schema.relations import MEMORY_TYPE
from caliber.schema.relations.storage import StoredMemory
from caliber.storage.bulk.parquet import parquet_batches, parquet_names, parquet_writer
from caliber.storage.compile.codec import UNREADABLE
from caliber.storage.maintain.maintenance import StoreSnapshot
from caliber.storage.migrate.migrations import SCHEMA_VERSION

FORMAT: Final = "caliber-archive-2"
_MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES_MAX: Final = 1 << 20
_PIECE: Final = 1 << 20
_LOCAL_HEADER: Final = struct.Struct("<26xHH")
_INTEGER_MAX: Final = (1 << 63) - 1
_NO_ARCHIVE: Final = (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, RuntimeError, *UNREADABLE)
"""Errors of reading a file that is something else; RuntimeError is that of a ZIP with a password, too."""


@dataclass(frozen=True, slots=True)
class Member:
    """One relation: ``sha256`` is of its file, ``rows_sha256`` of its rows, independent of the database."""

    relation: str
    file: str
    rows: int
    bytes: int
    sha256: str
    rows_sha256: str
    last_ordinal: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an archive: its store, and the boundary."""

    format: str
    adapter: str
    schema_version: int
    epoch: str
    sequence: int
    taken_at_us: int
    relations: tuple[Member, ...]


# --- writing --------------------------------------------------------------------------------------


class _Sink(io.RawIOBase):
    """Counts and hashes the bytes that pass through."""

    def __init__(self, into: IO[bytes]) -> None:
        self._into = into
        self._at = 0
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raw = memoryview(data).cast("B")
        self._into.write(raw)
        self.hash.update(raw)
        self._at += len(raw)
        return len(raw)

    def tell(self) -> int:
        return self._at


def check_target(path: Path, *, replace: bool) -> None:
    """Raise Conflict for an existing file that may not be replaced, Unavailable where no file can be written.

    That is in a folder that is not there, and in the place of a folder, a device or a pipe.
    """
    if path.exists() and not replace:
        raise Conflict(entity_type="file", id=str(path), reason="it is there already; name another, or pass --force")
    refuse_log_beside(path)
    if path.exists() and not path.is_file():
        raise Unavailable(
            f"{path} cannot be written: it is no file; name another", reason="cannot write", retryable=False
        )
    if not path.parent.is_dir():
        raise Unavailable(
            f"{path} cannot be written: its folder does not exist; create it", reason="cannot write", retryable=False
        )


def refuse_log_beside(path: Path) -> None:
    """Raise Conflict if a SQLite log beside the file exists: SQLite would read it as a part of the new file.

    It exists while a process has the file open as a store, and after such a process was killed.
    """
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        for ending in BESIDE:
            if os.path.lexists(f"{place}{ending}"):
                beside = f"{place.name}{ending}"
                reason = f"{beside} is beside it, of a store that is open, or was not closed; close it, or remove both"
                raise Conflict(entity_type="file", id=str(path), reason=reason)


@managed
def only_one(path: Path) -> Iterator[None]:
    """Prevent concurrent writes of the same file. Raises: Conflict when another process writes it, Unavailable."""
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            handle = open_descriptor(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            let_through(error)
            reason = error.strerror or "the disk said no"
            raise Unavailable(f"{path} cannot be written: {reason}", reason="cannot write", retryable=False) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            let_through(error)
            reason = "another process is writing it; wait until it ends"
            raise Conflict(entity_type="file", id=str(path), reason=reason) from error
        with suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == lock.stat().st_ino:
                break
        os.close(handle)  # its owner has removed it
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


@managed
def written(path: Path, *, replace: bool) -> Iterator[Path]:
    """Yield the temporary name of a file, which has its own, and is on disk, once the block has ended.

    Raises: as ``check_target`` and ``only_one``; Unavailable when the disk is full or refuses; the old file then stays
    """
    check_target(path, replace=replace)
    with only_one(path):
        unfinished = path.with_name(f".{path.name}.part")
        unfinished.unlink(missing_ok=True)  # what an interrupted run left there
        try:
            yield unfinished
            sync(unfinished)
            refuse_log_beside(path)  # another process may have opened it meanwhile
            unfinished.replace(path)
            sync(path.parent)
        except OSError as error:
            let_through(error)
            reason = error.strerror or "the disk said no"
            raise Unavailable(
                f"{path} cannot be written: {reason}; nothing is left of it", reason="cannot write", retryable=False
            ) from error
        finally:
            with suppress(OSError):  # a complete file has been renamed
                unfinished.unlink()


def new_file(path: Path) -> int:
    """Return a descriptor of a new file. Only its owner may read the memories, whatever the folder allows."""
    return open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def write_archive(
    path: Path, store: StoreSnapshot, *, adapter: str, schema_version: int, taken_at_us: int, progress: Progress
) -> Manifest:
    """Write everything of one boundary to a new file. Raises: ExtraNotInstalled."""
    with os.fdopen(new_file(path), "w+b") as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as file:
        relations = dump_relations(store.catalog)
        total = sum(store.count(relation) for relation in relations)
        last = store.ordinals()
        members = []
        done = 0
        for relation in relations:
            told = functools.partial(_told, progress, done, total)
            members.append(_write_member(file, relation, store, last, told))
            done += members[-1].rows
        manifest = Manifest(FORMAT, adapter, schema_version, store.epoch, store.sequence, taken_at_us, tuple(members))
        file.writestr(_MANIFEST, json.dumps(asdict(manifest), indent=1))
    return manifest


def _told(progress: Progress, before: int, total: int, rows: int) -> None:
    progress("backing up rows", before + rows, total)


def _write_member(
    file: zipfile.ZipFile,
    relation: Relation,
    store: StoreSnapshot,
    last: dict[str, int],
    progress: Callable[[int], None],
) -> Member:
    name = f"{relation.name}.parquet"
    digest = RowsDigest(relation)
    with file.open(zipfile.ZipInfo(name), "w", force_zip64=True) as raw:
        sink = _Sink(raw)
        with parquet_writer(sink, relation) as writer:
            for batch in store.read(relation):
                digest.add_batch(batch)
                writer.write_batch(batch)
                progress(digest.rows)
    return Member(
        relation.name,
        name,
        digest.rows,
        sink.tell(),
        sink.hash.hexdigest(),
        digest.hex(),
        last.get(relation.name, 0),
    )


# --- reading --------------------------------------------------------------------------------------


def _check_types(*entries: Manifest | Member) -> None:
    """Raise ValueError unless all values have their declared types: the file may come from an attacker."""
    for each in entries:
        for declared in fields(each):
            value = getattr(each, declared.name)
            if declared.type == "int" and not (type(value) is int and 0 <= value <= _INTEGER_MAX):
                raise ValueError(f"{declared.name} is no number")
            if declared.type == "str" and not isinstance(value, str):
                raise ValueError(f"{declared.name} is no text")


class _Slice(io.RawIOBase):
    """A stretch of a file as a file."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._at))
        got = _pread(self._file, length, self._start + self._at)
        view[: len(got)] = got
        self._at += len(got)
        return len(got)


def _unread(path: Path, error: OSError) -> Unavailable:
    reason = "it is not there" if isinstance(error, FileNotFoundError) else error.strerror or "the disk said no"
    return Unavailable(f"{path} cannot be read: {reason}", reason="cannot open", retryable=False)


def _pread(file: IO[bytes], size: int, start: int) -> bytes:
    try:
        return os.pread(file.fileno(), size, start)
    except OSError as error:
        let_through(error)
        raise _unread(Path(file.name), error) from error


class Archive:
    """An archive to restore from. Raises: InvalidValue for a file that is no archive, Unavailable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
                raise InvalidValue(field=str(path), reason="is not a file, but a folder, a pipe or the like")
            self._file = open_file(path)
        except OSError as error:
            let_through(error)
            raise _unread(path, error) from error
        try:
            with zipfile.ZipFile(self._file) as zipped:
                self._places = {info.filename: info for info in zipped.infolist()}
                self.manifest = self._manifest(zipped)
            self.catalog = self._catalog()
            """The relations of the store that was archived."""
        except _NO_ARCHIVE as error:
            self._file.close()
            raise self._none() from error
        except OSError as error:
            self._file.close()
            let_through(error)
            # A position outside the file comes from the archive's own content, not from the disk.
            raise (self._none() if error.errno == errno.EINVAL else _unread(path, error)) from error
        except BaseException:
            self._file.close()
            raise

    def _none(self) -> InvalidValue:
        return InvalidValue(field=str(self.path), reason="is not an archive of `caliber db backup`, or is damaged")

    def _manifest(self, zipped: zipfile.ZipFile) -> Manifest:
        if self._places[_MANIFEST].file_size > _MANIFEST_BYTES_MAX:
            raise ValueError("a manifest is smaller")
        raw = json.loads(zipped.read(_MANIFEST))
        members = tuple(Member(**member) for member in raw.pop("relations"))
        manifest = Manifest(**raw, relations=members)
        _check_types(manifest, *members)
        if manifest.format != FORMAT:
            raise InvalidValue(
                field=str(self.path), reason="is of another format; restore it with the version of CALIBER that made it"
            )
        if manifest.schema_version > SCHEMA_VERSION:
            raise InvalidValue(field=str(self.path), reason="was made by a newer version; upgrade CALIBER")
        named = [member.relation for member in members]
        if len(named) > len(set(named)):
            raise ValueError("each relation is there once")
        for member in members:
            info = self._places[member.file]
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != member.bytes:
                raise self._damaged(member.relation)
        return manifest

    def _catalog(self) -> Catalog:
        """Return the catalog that the archive declares. Raises: InvalidValue, StorageError."""
        member = self.member(MEMORY_TYPE)
        rows: list[StoredMemory] = []
        if member is not None and member.rows:
            self._check(member)
            for batch in self.batches(MEMORY_TYPE):
                rows += [StoredMemory(**row) for row in batch.to_pylist()]
        catalog = BUILT_IN.with_memories(rows)
        names = {relation.name for relation in dump_relations(catalog)}
        for each in self.manifest.relations:
            if each.relation not in names:
                raise InvalidValue(field=str(self.path), reason=f"holds {each.relation}, which this version lacks")
        return catalog

    def _check(self, member: Member) -> None:
        for _ in self._checked(member):
            pass

    def _checked(self, member: Member) -> Iterator[int]:
        """Yield how many bytes of a member are read. Raises: StorageError unless all are as they were written."""
        source, digest = self._open(member), hashlib.sha256()
        while piece := source.read(_PIECE):
            digest.update(piece)
            yield len(piece)
        if digest.hexdigest() != member.sha256:
            raise self._damaged(member.relation)

    def _damaged(self, relation: str) -> StorageError:
        return StorageError(
            f"{self.path} is damaged ({relation} is not what was written); use another backup", reason="damaged"
        )

    def _open(self, member: Member) -> _Slice:
        start = self._places[member.file].header_offset
        # A damaged directory may have members begin before the file, or far behind it.
        if not 0 <= start <= os.fstat(self._file.fileno()).st_size:
            raise self._damaged(member.relation)
        head = _pread(self._file, _LOCAL_HEADER.size, start)
        if len(head) < _LOCAL_HEADER.size:
            raise self._damaged(member.relation)
        name, extra = _LOCAL_HEADER.unpack(head)
        return _Slice(self._file, start + _LOCAL_HEADER.size + name + extra, member.bytes)

    def check(self, progress: Progress) -> None:
        """Raise StorageError unless every byte is as it was written."""
        total = sum(member.bytes for member in self.manifest.relations)
        done = 0
        for member in self.manifest.relations:
            for read in self._checked(member):
                done += read
                progress("checking the archive", done, total)

    def member(self, relation: Relation) -> Member | None:
        """Return the archive's entry of a relation; None for one that did not exist when it was made."""
        return next((each for each in self.manifest.relations if each.relation == relation.name), None)

    def columns_of(self, relation: Relation) -> tuple[Column, ...]:
        """Return the columns of a relation that the archive has; an older version did not write newer ones."""
        member = self.member(relation)
        if member is None:
            return relation.columns
        names = parquet_names(io.BufferedReader(self._open(member)))
        return tuple(column for column in relation.columns if column.name in names)

    def batches(self, relation: Relation) -> Iterator[Any]:
        """Yield the rows of a relation of ``caliber.dump.dumped_relations`` as record batches."""
        member = self.member(relation)
        if member is not None:
            yield from parquet_batches(io.BufferedReader(self._open(member), _PIECE), relation, BATCH_ROWS)

    def verify(self, restored: StoreSnapshot, progress: Progress) -> None:
        """Raise StorageError unless the rows read back equal those that were written."""
        done = 0
        for relation in dump_relations(self.catalog):
            digest = RowsDigest(relation, self.columns_of(relation))
            for batch in restored.read(relation):
                digest.add_batch(batch)
                progress("verifying rows", done + digest.rows, self.rows)
            done += digest.rows
            member = self.member(relation)
            rows, right = (0, None) if member is None else (member.rows, member.rows_sha256)
            if digest.rows != rows or (right is not None and digest.hex() != right):
                raise StorageError(
                    f"{relation.name} did not come back as it was backed up; nothing was changed", reason="not verified"
                )

    @property
    def rows(self) -> int:
        """The number of rows of all relations."""
        return sum(member.rows for member in self.manifest.relations)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
