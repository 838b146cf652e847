"""Facet ``memory.windows``: persisted windows as pages."""

from __future__ import annotations

from caliber.context.service import Reader
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.deadline import bounded
from caliber.model.ids import Id
from caliber.model.references import EntityRef


class Windows:
    """Persisted windows, as one principal sees them."""

    def __init__(self, engine: Engine, reader: Reader) -> None:
        self._engine = engine
        self._reader = reader

    def html(self, window_id: Id, *, user: str | EntityRef | None = None, deadline_ms: int | None = None) -> str:
        """Return a window as one HTML page that needs no network, with the result of its replay; docs/explain.md.

        ``user`` is whom the call is for, as in ``explain``.

        Raises: as ``explain``.
        """
        from caliber.explain.service import Explaining  # most processes explain no window

        with bounded(deadline_ms):
            reader = self._reader.seen_by(user)
            return Explaining(self._engine, reader).html(arguments.as_uuid(window_id, "window_id"))
