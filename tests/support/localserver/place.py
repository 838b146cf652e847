"""Directories, locks and user account of private PostgreSQL servers; access checks; cleanup after dead servers."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import pwd
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from caliber.model.errors import InvalidValue, Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import let_through, managed, suppress
from support.localserver import guard

FEATURE: Final = "a private PostgreSQL server"
NEEDED_BYTES: Final = 100 * 1024 * 1024
"""A new cluster takes 40 MB; with less than this a server could not do anything useful."""

LONGEST_SOCKET_PATH: Final = 103
"""The length of ``sun_path`` on the systems with the smallest one, without its last byte."""

LOCK_POLL_S: Final = 0.02

GET_FLAGS, SET_FLAGS, TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000
"""Linux's ``FS_IOC_GETFLAGS``, ``FS_IOC_SETFLAGS`` and ``FS_TOPDIR_FL``."""


# --- the account it runs under -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system's user that a server runs as."""

    name: str
    uid: int
    gid: int

    @property
    def other(self) -> bool:
        """True for another user than that of this process, which then is root."""
        return self.uid != os.geteuid()

    def identity(self) -> dict[str, Any]:
        """Return the arguments that make ``subprocess`` run a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other else {}

    def own(self, path: Path) -> None:
        """Give a file or folder to this user."""
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def own_name() -> str:
    """Return the name of this process's user. Raises: InvalidValue if the system has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        reason = f"the user id {os.geteuid()} has no name, and PostgreSQL needs one; add it to /etc/passwd"
        raise InvalidValue(field="user", reason=reason) from None


def account(user: str | None) -> Account:
    """Return the user that the server runs as: this process's, or an unprivileged one where that is root.

    Raises: InvalidValue for a user that does not exist or that this process may not become.
    """
    own_user = own_name()
    if os.geteuid() != 0:
        if user not in (None, own_user):
            raise InvalidValue(field="user", reason=f"only root can start a server as another user than {own_user}")
        return Account(own_user, os.geteuid(), os.getegid())
    try:
        entry = pwd.getpwnam(user or "nobody")
    except KeyError:
        reason = f"there is no user {user or 'nobody'}; root has to name one, because PostgreSQL refuses to run as root"
        raise InvalidValue(field="user", reason=reason) from None
    if entry.pw_uid == 0:
        raise InvalidValue(field="user", reason="PostgreSQL refuses to run as root; name an unprivileged user")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def closed_to(path: Path, who: Account) -> Path | None:
    """Return the first folder on the way to ``path`` that the user may not enter, or None; by mode bits alone."""
    for folder in (*reversed(path.parents), path):
        try:
            status = folder.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            let_through(error)
            return folder
        bit = stat.S_IXOTH
        if status.st_uid == who.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == who.gid:
            bit = stat.S_IXGRP
        if not status.st_mode & bit:
            return folder
    return None


def check_open(path: Path, who: Account, field: str) -> None:
    """Raise InvalidValue if the user may not enter a folder on the way to ``path``, or that itself."""
    closed = closed_to(path, who)
    if closed is not None:
        reason = f"the user {who.name} cannot enter {closed}; choose a folder that it can, or another user"
        raise InvalidValue(field=field, reason=reason)


# --- room, locks, folders ----------------------------------------------------------------------------------


def no_room(folder: Path, free: int) -> Unavailable:
    """Return the error for a disk that is full."""
    return Unavailable(
        f"{FEATURE} needs {NEEDED_BYTES >> 20} MB in {folder}, and {free >> 20} MB are free; "
        "free some, or choose a place on another disk",
        reason="disk full",
        free_bytes=free,
        needed_bytes=NEEDED_BYTES,
    )


def check_room(folder: Path) -> None:
    """Raise Unavailable if a new cluster would not fit."""
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise no_room(folder, free)


def cannot_write(folder: Path, error: OSError) -> Unavailable:
    """Return the error for a file or folder that could not be made."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_room(folder, shutil.disk_usage(folder).free)
    return Unavailable(
        f"{folder} cannot be used ({error.strerror}); choose another place (directory, cache_directory, TMPDIR)",
        reason="cannot write",
        retryable=False,
    )


@managed
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file against every other process and thread."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock_file(path: Path) -> int:
    lock = _lock_file_now(path)
    if lock is None:
        raise Unavailable(f"{path} is locked by another process", reason="in use")
    return lock


def _lock_file_now(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        let_through(error)
        os.close(descriptor)
        raise
    return descriptor


def own_folder(path: Path, mode: int) -> Path:
    """Make a folder that only its owner may write to, or check an existing one. Raises: Unavailable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise Unavailable(
                f"{path} belongs to another user; remove it, or choose another place (cache_directory, TMPDIR)",
                reason="not ours",
                retryable=False,
            )
        if stat.S_IMODE(status.st_mode) != mode:
            path.chmod(mode)
    except OSError as error:
        let_through(error)
        raise cannot_write(path, error) from error
    return path


def spread(folder: Path) -> None:
    """Ask the file system to place the subfolders far from each other, if it can.

    ext4 without a journal does not reuse recently freed inodes for a while, and examines each of them for every new
    file. A cluster is a thousand files: after another one was removed, creating one took seconds instead of a quarter.
    """
    if sys.platform != "linux":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = array.array("i", [0])  # an int, whatever the number of the call suggests
        fcntl.ioctl(descriptor, GET_FLAGS, flags)
        if not flags[0] & TOP_FOLDER:
            flags[0] |= TOP_FOLDER
            fcntl.ioctl(descriptor, SET_FLAGS, flags)
    except OSError as error:
        let_through(error)  # otherwise not ext4: nothing to ask for
    finally:
        os.close(descriptor)


# --- one server's folders ----------------------------------------------------------------------------------


class Place:
    """The folders of one server, claimed: while its lock is held, no other process touches them."""

    def __init__(self, runtime: Path, directory: Path | None) -> None:
        self.runtime = runtime
        self.keep = directory is not None
        home = directory or runtime
        self.data = home / "data"
        self.log = home / "log"
        self.password = home / "password"
        self.sockets = runtime / "run"
        self.locks: list[int] = []

    @classmethod
    def claim(cls, directory: Path | None, who: Account, timeout_ms: int) -> Place:
        """Make the folders of a new server, after sweeping those of dead ones."""
        # The server's user, if another, may pass through it; nobody may list it.
        mode = 0o711 if who.other else 0o700
        root = own_folder(Path(tempfile.gettempdir()).resolve() / f"caliber-pg-{os.geteuid()}", mode)
        place = cls(root / secrets.token_hex(4), directory)
        length = len(os.fsencode(place.sockets / f".s.PGSQL.{65535}"))
        if length > LONGEST_SOCKET_PATH:
            reason = (
                f"{root} makes a socket path of {length} bytes, and a system takes {LONGEST_SOCKET_PATH}; shorten it"
            )
            raise InvalidValue(field="TMPDIR", reason=reason)
        check_open(root, who, "TMPDIR")
        spread(root)
        sweep(root)
        try:
            with locked(root / "lock"):
                place.runtime.mkdir(mode=0o700)
                place.runtime.chmod(mode)
                place.locks.append(_lock_file(place.runtime / "lock"))
            (place.runtime / "data_directory").write_text(f"{place.data}\n{'kept' if place.keep else 'temporary'}")
            place.sockets.mkdir(mode=0o700)
            who.own(place.sockets)
            if directory is not None:
                place.claim_directory(directory, who, timeout_ms)
            place.log.touch(mode=0o600)
        except BaseException as error:
            place.release()
            shutil.rmtree(place.runtime, ignore_errors=True)
            if isinstance(error, OSError):
                raise cannot_write(directory or root, error) from error
            raise
        return place

    def claim_directory(self, directory: Path, who: Account, timeout_ms: int) -> None:
        """Lock the folder that keeps the cluster, which is made if need be. Raises: InvalidValue, Unavailable."""
        if (directory / "PG_VERSION").exists():
            reason = f"{directory} is a cluster itself; give the folder that holds it under the name data"
            raise InvalidValue(field="directory", reason=reason)
        if not directory.exists():
            directory.mkdir(parents=True)
            directory.chmod(0o711)
        check_open(directory, who, "directory")
        deadline = time.monotonic() + timeout_ms / 1000
        # Its owner may just be ending: a guard takes a moment to stop its server.
        while (lock := _lock_file_now(directory / "lock")) is None:
            if time.monotonic() > deadline:
                raise Unavailable(f"{directory} is in use by another server of this kind", reason="in use")
            time.sleep(LOCK_POLL_S)
        self.locks.append(lock)
        guard.end_orphan(self.data, keep=True)

    def release(self) -> None:
        """Let go of the locks in this process."""
        while self.locks:
            os.close(self.locks.pop())


def sweep(root: Path) -> None:
    """End servers and remove folders whose owners and guards are both dead."""
    dead: list[tuple[Path, int]] = []
    try:
        with locked(root / "lock"):
            for folder in root.iterdir():
                # One whose server just ends may go at any moment.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if (lock := _lock_file_now(folder / "lock")) is not None:
                        dead.append((folder, lock))
        for folder, _ in dead:
            with suppress(OSError, ValueError):
                data, kind = (folder / "data_directory").read_text().splitlines()
                _end_server_of(Path(data), keep=kind == "kept")
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        let_through(error)
        raise cannot_write(root, error) from error
    finally:
        for _, lock in dead:
            os.close(lock)


def _end_server_of(data: Path, *, keep: bool) -> None:
    # A kept directory may be in use again by now, and the server that runs there then belongs to another process.
    lock = _lock_file_now(data.parent / "lock") if keep else None
    if keep and lock is None:
        return
    try:
        guard.end_orphan(data, keep=keep)
    finally:
        if lock is not None:
            os.close(lock)
