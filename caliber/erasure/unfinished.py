"""Interrupted erasures in an open store: reports them, and drops erased records from resident memory."""

from __future__ import annotations

from typing import Final

from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model.erasure import Erasure
from caliber.model.errors import StorageError
from caliber.schema.relations import ERASURE
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import codec_of

ERASURE_JOB: Final = "erasure.finish"
"""The kind of the jobs that rid files of what was erased."""
LOG_TO_SCRUB: Final = "log to scrub"
"""Among the counts of an erasure: it was asked for the log of the server too."""
REWRITTEN: Final = "files rewritten"
"""Among them as well: the files of the store are done, and only the log is left."""


def unfinished_erasures(engine: Engine) -> list[Erasure]:
    """Return the erasures whose files may still hold deleted bytes."""
    plans = engine.store.plans[ERASURE.name]
    with engine.store.read() as session:
        return [codec_of(ERASURE).decode(row) for row in session.run(plans.lists["list_unfinished"], ())]


def report_unfinished(engine: Engine) -> None:
    """Record in the event log that erasures were cut short; their jobs finish them."""
    unfinished = unfinished_erasures(engine)
    if unfinished:
        engine.record_error(
            "forgetting",
            StorageError(
                f"{len(unfinished)} erasures are not finished: files may hold deleted bytes; `caliber forget --resume`"
            ),
        )


def drop_from_memory(engine: Engine) -> None:
    """Read memory anew and empty what was made of texts: rows that are gone stay in it otherwise, for older readers."""
    engine.memory.reload()
    forget_words(engine)


def forget_words(engine: Engine) -> None:
    """Empty what this process made of texts: words and their stems, filters, vectors of questions and contents."""
    engine.part(SearchEngine).forget_words()
    embedder = engine.part(Embeddings).embedder
    for target in () if embedder is None else embedder.targets:
        target.clear()
