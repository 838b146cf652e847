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
        """Rewrite what may hold deleted bytes, waiting ``wait_s`` for whoever is in the way.

        Returns what could not be done, each in a sentence; empty when nothing deleted is left in files of the store.
        """
        ...

    def scrub_log(self, wait_s: float) -> list[str]:
        """Rid the log of a server, which is not the store's alone, of what was written so far; after ``scrub``.

        Returns what stands in the way, each in a sentence; when it is empty, ``places`` yields the log as files.
        """
        ...

    def places(self) -> Iterator[Place]:
        """Yield everything of the store that can be read: values of all tables, then files as they are on disk."""
        ...

    def destroy(self, wait_s: float) -> list[str]:
        """Remove the whole store, so that nothing of it is left in files; afterwards it can only be closed.

        Returns what could not be done; nothing was removed then.
        Raises: Unavailable when others use it.
        """
        ...

    def leftovers(self) -> Iterator[Place]:
        """Yield what is left of a store that was destroyed; a place for each kind of thing, empty when it is gone."""
        ...

    def out_of_reach(self) -> list[str]:
        """Return the places that this connection cannot read, and others that keep copies."""
        ...
