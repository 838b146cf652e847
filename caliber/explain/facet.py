"""Facet ``memory.windows``: persisted windows as pages, and compared."""

from __future__ import annotations

from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.ids import Id
from caliber.model.references import EntityRef
from caliber.model.window_diff import WindowDiff


class Windows:
    """Persisted windows, as one principal sees them."""

    def __init__(self, engine: Engine, reader: ContextService) -> None:
        self._engine = engine
        self._reader = reader

    def html(self, window_id: Id, *, user: str | EntityRef | None = None) -> str:
        """Return a window as one HTML page that needs no network, with the result of its replay; docs/explain.md.

        ``user`` is whom the call is for, as in ``explain``.

        Raises: as ``explain``.
        """
        from caliber.explain.service import Explaining  # most processes explain no window

        reader = self._reader.seen_by(user)
        return Explaining(self._engine, reader).html(arguments.as_uuid(window_id, "window_id"))

    def diff(self, before: Id, after: Id, *, user: str | EntityRef | None = None) -> WindowDiff:
        """Return why a prompt changed between two persisted windows, and where a provider's prompt cache broke.

        ``apply`` of the result makes the text of ``before`` that of ``after``. ``user`` is whom the call is for, as in
        ``explain``; docs/explain.md.

        Raises: as ``replay``, for either window.
        """
        from caliber.explain.service import Explaining

        first, last = arguments.as_uuid(before, "before"), arguments.as_uuid(after, "after")
        return Explaining(self._engine, self._reader.seen_by(user)).diff(first, last)
