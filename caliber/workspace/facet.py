"""Facet ``memory.workspace``: values, to-dos and the calendar that the agents of a store share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.search.service import Searching

if TYPE_CHECKING:
    from caliber.workspace.calendar import Calendar
    from caliber.workspace.todos import Todos
    from caliber.workspace.values import Values


class Workspace:
    """The workspace, as one principal uses it."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._principal = principal
        self._searching = searching

    @property
    def values(self) -> Values:
        """JSON values under keys."""
        from caliber.workspace.values import Values  # most processes use no workspace

        return Values(self._engine, self._principal)

    @property
    def todos(self) -> Todos:
        """Work to do: of a user, or shared out among agents."""
        from caliber.workspace.todos import Todos  # most processes use no workspace

        return Todos(self._engine, self._principal, self._searching)

    @property
    def calendar(self) -> Calendar:
        """Events, once or repeated, with reminders."""
        from caliber.workspace.calendar import Calendar  # most processes use no workspace

        return Calendar(self._engine, self._principal, self._searching)
