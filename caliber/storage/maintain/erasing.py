"""Protocol of a backend's eraser: removes deleted bytes from database files, and searches the files for them.

A DELETE leaves bytes behind: in free pages, in the log, in indexes, in statistics. Each backend knows its own places.

Source: design section 10; docs/forgetting.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from caliber.storage.compile.plan import Plan


class Place(NamedTuple):
    """Something that is read byte by byte: ``kind`` is as in ``model.erasure.Searched``.

    ``parts`` are pieces that follow each other, or single values (``apart``), which nothing reaches across.
    """

    name: str
    kind: str
    parts: Iterator[bytes]
    apart: bool = False


class Eraser(Protocol):
    """The removal of bytes from one open store."""

    hold: Plan | None
    """Keeps every other writer out until the transaction ends; None where a transaction is alone anyway."""

    def scrub(self, wait_s: float) -> list[str]:
        """Rewrite everything that may hold deleted bytes, waiting ``wait_s`` for other users.

        Returns what could not be done, each in a sentence; empty when no deleted bytes remain in files of the store.
        """
        ...

    def scrub_log(self, wait_s: float) -> list[str]:
        """Remove earlier writes from the log of a server, which the store shares with others; call it after ``scrub``.

        Returns the obstacles, each in a sentence; when it is empty, ``places`` yields the log as files.
        """
        ...

    def places(self) -> Iterator[Place]:
        """Yield everything of the store that can be read: values of all tables, then files as they are on disk."""
        ...

    def destroy(self, wait_s: float) -> list[str]:
        """Remove the whole store, so that no file holds any of it; afterwards it can only be closed.

        Returns what could not be done; nothing was removed then.

        Raises: Unavailable when others use it.
        """
        ...

    def leftovers(self) -> Iterator[Place]:
        """Yield the remains of a destroyed store: one place per kind of object, empty when it is removed."""
        ...

    def out_of_reach(self) -> list[str]:
        """Return the places that this connection cannot read, and others that keep copies."""
        ...
