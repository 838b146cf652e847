"""Reader of commits and files from a git repository, by running ``git`` without a shell, hooks or user settings.

It reads the commit that HEAD names, not the work tree: bare repositories work, and uncommitted edits are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from caliber.importing.errors import SourceError
from caliber.model.lazy_dataclass import dataclass

_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
# A repository's own configuration may name programs to run; none of these commands may start one.
_SETTINGS: Final = (
    "-c", "core.fsmonitor=false",
    "-c", f"core.hooksPath={os.devnull}",
    "-c", "core.quotePath=true",
    "-c", "i18n.logOutputEncoding=UTF-8",
    "-c", "diff.renames=false",
    "-c", "log.showSignature=false",
)  # fmt: skip
_CHUNK: Final = 1 << 16
_FIELDS: Final = 6
_FORMAT: Final = "%x00%H%x00%P%x00%an%x00%at%x00%B%x00"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit. ``files`` are (added, deleted, path), with None where git counts no lines (binary files)."""

    hash: str
    parents: tuple[str, ...]
    author: str
    authored_at: datetime | None
    message: bytes
    files: tuple[tuple[int | None, int | None, str], ...]


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A regular file in a commit."""

    path: str
    object: str
    size: int


_ELSEWHERE: Final = re.compile(r"(?!file://)[a-z+]+://|[^/]+:", re.IGNORECASE)
"""The address of a repository on another machine: a URL, or ``host:path``."""


class Repository:
    """A git repository on this machine."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise SourceError(f"{path}: there is no such folder", "check the path")
        self._folder = (path if path.is_dir() else path.parent).resolve()
        inside = self._try("rev-parse", "--git-dir")
        if inside.returncode:
            raise _not_a_repository(path, inside.stderr)
        top = self._try("rev-parse", "--show-toplevel")
        self.root = (
            Path(os.fsdecode(top.stdout.rstrip(b"\n"))) if not top.returncode and top.stdout.strip() else self._folder
        )
        self.shallow = self._text("rev-parse", "--is-shallow-repository") == "true"
        self.head = self._maybe("rev-parse", "--verify", "--quiet", "HEAD^{commit}")

    @property
    def name(self) -> str:
        """The name people use: the last part of its address, or of its folder for a local repository."""
        origin = self.origin
        address = origin if origin and _ELSEWHERE.match(origin) else str(self.root)
        return address.rstrip("/").replace(":", "/").rsplit("/", 1)[-1].removesuffix(".git") or "repository"

    @property
    def origin(self) -> str | None:
        """The address it was cloned from, without credentials in it."""
        address = self._maybe("config", "--get", "remote.origin.url")
        if address and "://" in address:
            scheme, _, rest = address.partition("://")
            address = f"{scheme}://{rest.rsplit('@', 1)[-1]}"
        return address

    def identities(self) -> list[str]:
        """Return the identities of this history, best first: its first commit, then its address, then its folder.

        The first commit of a shallow clone depends on the depth, so it does not identify the history.
        """
        out = []
        if self.head and not self.shallow:
            roots = self._text("rev-list", "--max-parents=0", "HEAD").split()
            if roots:
                out.append(f"git:{min(roots)}")
        if self.origin:
            out.append(f"git:{self.origin}")
        out.append(f"git:{self.root}")
        return out

    def hashes(self, limit: int | None = None) -> list[str]:
        """Return the commits of HEAD's history, oldest first; with ``limit`` only the newest."""
        if self.head is None:
            return []
        few = [] if limit is None else [f"--max-count={limit}"]
        return self._text("rev-list", "--date-order", *few, "HEAD").split()[::-1]

    def commits(self, hashes: Sequence[str]) -> Iterator[Commit]:
        """Yield these commits in this order, as git prints them: memory stays flat however many there are."""
        if not hashes:
            return
        options = ("--no-walk=unsorted", "--stdin", "--numstat", f"--format={_FORMAT}", *_QUIET)
        with tempfile.TemporaryFile() as request:
            request.write("\n".join(hashes).encode() + b"\n")
            request.seek(0)
            with self._start("log", *options, stdin=request) as process:
                assert process.stdout is not None
                try:
                    yield from _parse(process.stdout)
                except BaseException:
                    process.kill()
                    raise
                if process.wait():
                    raise SourceError(
                        f"git log ended with code {process.returncode}",
                        "run `git fsck` in the repository",
                        in_data=True,
                    )

    def files(self) -> list[TreeFile]:
        """Return the regular files of HEAD: no symbolic links, no submodules."""
        if self.head is None:
            return []
        out = []
        for entry in self._run("ls-tree", "-r", "-l", "-z", "--full-tree", "HEAD").split(b"\0")[:-1]:
            about, _, path = entry.partition(b"\t")
            mode, _kind, name, size = about.split()
            if mode.startswith(b"100") and size.isdigit():
                out.append(TreeFile(os.fsdecode(path), name.decode(), int(size)))
        return out

    def contents(self, files: Sequence[TreeFile]) -> Iterator[tuple[TreeFile, bytes]]:
        """Yield each file with its bytes."""
        if not files:
            return
        with tempfile.TemporaryFile() as request:
            request.write("".join(f"{item.object}\n" for item in files).encode())
            request.seek(0)
            with self._start("cat-file", "--batch", stdin=request) as process:
                assert process.stdout is not None
                for item in files:
                    header = process.stdout.readline().split()
                    if len(header) != 3:  # missing: a partial clone
                        continue
                    content = process.stdout.read(int(header[2]))
                    process.stdout.read(1)
                    yield item, content

    def listed(self, folder: Path) -> list[str]:
        """Return the files under a folder of the work tree that are tracked, or not ignored; relative to it."""
        command = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ".")
        raw = self._run(*command, folder=folder)
        return sorted({os.fsdecode(name) for name in raw.split(b"\0") if name})

    # --- running git -----------------------------------------------------------------------------

    def _command(self, arguments: Sequence[str], folder: Path | None) -> list[str]:
        return ["git", "--no-pager", "-C", str(folder or self._folder), *_SETTINGS, *arguments]

    def _try(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(  # noqa: S603
                self._command(arguments, folder),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=_environment(),
                check=False,
            )
        except FileNotFoundError:
            raise SourceError(
                "the program git was not found", "install git, or use `caliber ingest files` instead"
            ) from None

    def _run(self, *arguments: str, folder: Path | None = None) -> bytes:
        done = self._try(*arguments, folder=folder)
        if done.returncode:
            raise SourceError(
                f"git {arguments[0]}: {_last_line(done.stderr)}", "run `git fsck` in the repository", in_data=True
            )
        return done.stdout

    def _text(self, *arguments: str) -> str:
        return self._run(*arguments).decode("utf-8", "replace").strip()

    def _maybe(self, *arguments: str) -> str | None:
        done = self._try(*arguments)
        return None if done.returncode else done.stdout.decode("utf-8", "replace").strip() or None

    def _start(self, *arguments: str, stdin: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603
            self._command(arguments, None),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )


_QUIET: Final = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-notes", "--no-mailmap", "--no-decorate")


def _environment() -> dict[str, str]:
    # GIT_DIR and similar variables are set inside hooks, and would select another repository than the requested one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, **_ENVIRONMENT}


def _last_line(raw: bytes) -> str:
    lines = raw.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("fatal: ") if lines else "it failed without a message"


def _not_a_repository(path: Path, stderr: bytes) -> SourceError:
    if b"dubious ownership" in stderr:
        return SourceError(
            f"{path}: git refuses a repository that belongs to another user",
            f"if you trust it: git config --global --add safe.directory {path.resolve()}",
        )
    if b"not a git repository" in stderr:
        return SourceError(f"{path} is not a git repository", f"`caliber ingest files {path}` remembers plain files")
    return SourceError(f"{path}: {_last_line(stderr)}", "check the path")


def _parse(stream: IO[bytes]) -> Iterator[Commit]:
    """Yield commits from ``git log --format=_FORMAT --numstat``: five fields and a tail, parted by zero bytes.

    A zero byte cannot occur in a message, a name or a quoted path, so nothing in them can break the framing.
    """
    fields: list[bytes] = []
    rest = b""
    while chunk := stream.read(_CHUNK):
        pieces = (rest + chunk).split(b"\0")
        rest = pieces.pop()
        fields.extend(pieces)
        # The tail of a commit ends where the next one begins.
        while len(fields) > _FIELDS:
            yield _commit(fields[1:_FIELDS], fields[_FIELDS])
            del fields[:_FIELDS]
    if len(fields) == _FIELDS:
        yield _commit(fields[1:], rest)


def _commit(fields: Sequence[bytes], tail: bytes) -> Commit:
    name, parents, author, seconds, message = fields
    return Commit(
        hash=name.decode(),
        parents=tuple(parents.decode().split()),
        author=author.decode("utf-8", "replace"),
        authored_at=_instant(seconds),
        message=message.strip(b"\n"),
        files=tuple(_numstat(tail)),
    )


def _numstat(tail: bytes) -> Iterator[tuple[int | None, int | None, str]]:
    for line in tail.decode("utf-8", "replace").splitlines():
        added, tab, rest = line.partition("\t")
        deleted, tab, path = rest.partition("\t")
        if tab:
            yield _count(added), _count(deleted), path


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _instant(raw: bytes) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(raw), UTC)
    except (ValueError, OverflowError, OSError):
        # Histories hold dates that no calendar does.
        return None
