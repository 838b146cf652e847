"""Unfinished erasures of an open store: list and report; also removal of erased texts from memory and caches."""

from __future__ import annotations

from typing import Final

from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model.erasure import Erasure
from caliber.model.errors import StorageError
from caliber.schema.relations import ERASURE
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store

ERASURE_JOB: Final = "erasure.finish"
"""The kind of the jobs that remove erased bytes from the files."""
LOG_TO_SCRUB: Final = "log to scrub"
"""Count of an erasure whose request included the log of the server."""
REWRITTEN: Final = "files rewritten"
"""Among them as well: the files of the store are done, and only the log is left."""


def unfinished_erasures(engine: Engine) -> list[Erasure]:
    """Return the erasures whose files may still hold deleted bytes."""
    with engine.store.read() as session:
        return _unfinished(engine.store, session)


def _unfinished(store: Store, session: StatementSession) -> list[Erasure]:
    plans = store.plans[ERASURE.name]
    return [codec_of(ERASURE).decode(row) for row in session.run(plans.lists["list_unfinished"], ())]


class LeftErasures:
    """The unfinished erasures that the first session of an engine finds."""

    def __init__(self) -> None:
        self._found: list[Erasure] = []

    def read(self, store: Store, session: StatementSession, erasures: int) -> None:
        """Look for them among a number of erasures."""
        self._found = _unfinished(store, session) if erasures else []

    def report(self, engine: Engine) -> None:
        """Record in the event log that erasures were cut short; their jobs finish them."""
        unfinished = self._found
        if not unfinished:
            return
        engine.record_error(
            "forgetting",
            StorageError(
                f"{len(unfinished)} erasures are not finished: files may hold deleted bytes; `caliber forget --resume`"
            ),
        )


def drop_from_memory(engine: Engine) -> None:
    """Reload memory and clear caches of texts: deleted rows would otherwise stay for older readers."""
    engine.memory.reload()
    forget_words(engine)


def forget_words(engine: Engine) -> None:
    """Clear this process's caches of texts: words and stems, filters, vectors of queries and contents."""
    engine.part(SearchEngine).forget_words()
    embedder = engine.part(Embeddings).embedder
    if embedder is not None:
        embedder.forget_texts()
