"""Wiring of subsystems: the parts that each keeps once a tenant, in the order in which they need each other."""

from __future__ import annotations

from caliber.context.service import open_windows
from caliber.embedding.service import open_embeddings
from caliber.engine.engine import Engine
from caliber.search.opening import SearchEngine
from caliber.trajectory.summarizer import open_summarizer


def add_parts(engine: Engine) -> None:
    """Add every subsystem's part to an engine that was just opened. Raises: as ``caliber.open``."""
    engine.add(SearchEngine(engine))
    open_windows(engine)
    open_embeddings(engine)
    engine.open_summarization()
    open_summarizer(engine)
