"""Selection of the files to import from a folder: human-written text; skips built, hidden, huge and binary files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from caliber.importing.documents import as_text
from caliber.importing.errors import SourceError
from caliber.model.process.files import is_in_use, read_bytes

MAX_BYTES: Final = 1_000_000
IN_USE: Final = "of a store that this process has open"
_SKIPPED_FOLDERS: Final = frozenset(
    ("__pycache__", "build", "dist", "env", "node_modules", "site-packages", "target", "vendor", "venv", "virtualenv",
     "bower_components", "coverage", "htmlcov", "CVS", "_build", "out")
)  # fmt: skip
_SKIPPED_NAMES: Final = frozenset(
    (
        "package-lock.json",
        "yarn.lock",
        "pnpm-lock.yaml",
        "poetry.lock",
        "uv.lock",
        "Cargo.lock",
        "go.sum",
        "composer.lock",
    )
)
_SKIPPED_SUFFIXES: Final = (".egg-info", ".dist-info", ".min.js", ".min.css", ".map", ".jsonl", ".csv", ".svg", ".lock")
_DOCUMENTS: Final = frozenset((".md", ".markdown", ".rst", ".txt", ".adoc"))


@dataclass(slots=True)
class Listing:
    """The files found under a folder, and how many were left out for which reason."""

    root: Path
    files: list[str]
    uses_git: bool
    skipped: Counter[str] = field(default_factory=Counter)
    unnamed: list[str] = field(default_factory=list)
    """The files that were left out for their names, as they can be shown."""


def list_files(path: Path) -> Listing:
    """Return the files under ``path``, relative to it; git's ignore rules are followed where git knows the folder.

    Raises: SourceError.
    """
    if not path.exists():
        raise SourceError(f"{path}: there is no such file or folder", "check the path")
    root = path.resolve()
    if not is_text(str(root)):
        raise SourceError(f"{shown(str(root))}: the path is not UTF-8, and cannot be remembered", "rename it")
    if not root.is_file() and not root.is_dir():
        raise SourceError(f"{path}: neither a file nor a folder", "check the path")
    if root.is_file():
        return Listing(root.parent, [root.name], uses_git=False)
    listing = Listing(root, [], uses_git=False)
    tracked = _from_git(root)
    if tracked is None:
        candidates: Iterator[str] | list[str] = _walk(root, listing)
    else:
        listing.uses_git = True
        candidates = tracked
    for name in candidates:
        reason = _reason(name)
        if reason is None and not is_text(name):
            reason = "named in what is not UTF-8"
            listing.unnamed.append(shown(name))
        if reason is None:
            listing.files.append(name)
        else:
            listing.skipped[reason] += 1
    listing.files.sort()
    return listing


def is_text(name: str) -> bool:
    """Return whether a name of the file system can be written as text."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str) -> str:
    """Return a name of the file system as it can be shown: bytes that are no UTF-8 as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _from_git(root: Path) -> list[str] | None:
    from caliber.importing.git import Repository

    try:
        return Repository(root).listed(root)
    except SourceError:
        return None


def _walk(root: Path, listing: Listing) -> Iterator[str]:
    for folder, inner, names in os.walk(root, onerror=lambda _: listing.skipped.update(("unreadable",))):
        here = Path(folder)
        for name in sorted(inner):
            if _is_skipped_folder(name) or (here / name / "pyvenv.cfg").exists():
                listing.skipped["hidden, built or installed"] += 1
        inner[:] = sorted(
            name for name in inner if not _is_skipped_folder(name) and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            yield (here / name).relative_to(root).as_posix()


def _is_skipped_folder(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED_FOLDERS or name.endswith(_SKIPPED_SUFFIXES)


def _reason(name: str) -> str | None:
    *folders, last = name.split("/")
    if last.startswith(".") or any(_is_skipped_folder(folder) for folder in folders):
        return "hidden, built or installed"
    if last in _SKIPPED_NAMES or last.lower().endswith(_SKIPPED_SUFFIXES):
        return "generated or data"
    return None


def read_text(listing: Listing, name: str, max_bytes: int) -> str | None:
    """Return the text of a listed file; None, counted with its reason, for a skipped one."""
    file = listing.root / name
    try:
        about = file.lstat()
        if is_in_use(file):
            reason = IN_USE
        elif not os.path.isfile(file) or file.is_symlink():  # noqa: PTH113  (quicker, and stat was made already)
            reason = "links and special files"
        elif about.st_size > max_bytes:
            reason = f"larger than {max_bytes:,} bytes"
        elif not about.st_size:
            reason = "empty"
        else:
            text = as_text(read_bytes(file))
            if text is not None and text.strip():
                return text
            reason = "binary" if text is None else "empty"
    except OSError:
        reason = "unreadable"
    listing.skipped[reason] += 1
    return None


def is_prose(name: str) -> bool:
    """Return whether a file is a document, to be kept by section, rather than code."""
    lower = name.lower()
    return any(lower.endswith(suffix) for suffix in _DOCUMENTS) or lower.rsplit("/", 1)[-1] in (
        "readme",
        "license",
        "notice",
    )
