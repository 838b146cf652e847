"""Views of roles over notes: only the types that a role is interested in, and of these what its principal may see.

The types are a condition of the query itself. A caller can narrow nothing and widen nothing.

Source: M-118 to M-128, M-142 to M-148.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import AgentRole
from caliber.model.knowledge import Note, NoteType
from caliber.model.windows import SearchResult
from caliber.schema.relations import NOTE
from caliber.search.ranking.roles import RoleScoring
from caliber.search.service import DEFAULT_LIMIT, Searching

_TYPE: Final = "note_type"


class AgentMemoryView:
    """The notes that a role is interested in, as far as its principal may see them."""

    def __init__(self, engine: Engine, searching: Searching, role: AgentRole) -> None:
        self._engine = engine
        self._searching = searching
        self._role = role
        self._types = engine.config.access.views.interests[role.value]

    @property
    def role(self) -> AgentRole:
        """The role."""
        return self._role

    @property
    def types(self) -> tuple[NoteType, ...]:
        """The types of notes that it shows: those in ``access.views.interests``, and notes without a type."""
        return tuple(dict.fromkeys((*self._types, NoteType.UNTYPED)))

    def search(self, query: str, limit: int | None = None, *, as_of: datetime | None = None) -> SearchResult:
        """Search the notes of the view, as ``Caliber.search`` does; an empty query finds recent and important ones.

        With ``access.views.scoring.enabled`` the best hits are ordered by the role's score, which is their ``score``
        then; its parts are in ``breakdown``. ``as_of`` is the instant at which notes hold, and at which their age
        counts; now, if left out.

        Raises: InputError kinds.
        """
        config = self._engine.config
        scoring = config.access.views.scoring
        count = DEFAULT_LIMIT if limit is None else arguments.as_whole(limit, "limit", 1)
        by_role = RoleScoring(self._role, _TYPE, self._types, count)
        return self._searching.search_many(
            [arguments.as_text(query, "query", allow_empty=True)],
            kinds=(NOTE.name,),
            limit=count,
            conditions={_TYPE: self.types},
            as_of=arguments.as_instant(as_of, "as_of"),
            consistency=None,
            by_role=by_role if scoring.enabled else None,
        )[0]

    def list_recent(self, limit: int | None = None) -> list[Note]:
        """Return the notes of the view that were used last, or else added last; the latest first, ties by id.

        Raises: InputError kinds.
        """
        return self._searching.recently_used(NOTE.name, {_TYPE: self.types}, limit)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._role.value})"
