"""Handle method ``memory.records(name)``, which opens one memory, built-in (to read) or declared (to write too).

Source: design, section 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from caliber.engine.engine import Engine
from caliber.memories.reading import RecordReader
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import InvalidValue
from caliber.model.hints import did_you_mean
from caliber.model.references import EntityRef
from caliber.schema.memories import BUILT_IN, holds_blocks
from caliber.search.service import Searching

if TYPE_CHECKING:
    from caliber.memories.records import Records
    from caliber.model.knowledge import Note
    from caliber.model.trajectory import Artifact, Scope, Trajectory, Turn


class RecordMethods:
    """Methods of ``Caliber`` about the records of one memory."""

    _engine: Engine
    _principal: Principal
    _searching: Searching

    @overload
    def records(self, name: Literal["note"], *, user: str | EntityRef | None = None) -> RecordReader[Note]: ...  # type: ignore[overload-overlap]

    @overload
    def records(self, name: Literal["artifact"], *, user: str | EntityRef | None = None) -> RecordReader[Artifact]: ...  # type: ignore[overload-overlap]

    @overload
    def records(self, name: Literal["turn_buffer"], *, user: str | EntityRef | None = None) -> RecordReader[Turn]: ...  # type: ignore[overload-overlap]

    @overload
    def records(self, name: Literal["scope"], *, user: str | EntityRef | None = None) -> RecordReader[Scope]: ...  # type: ignore[overload-overlap]

    @overload
    def records(  # type: ignore[overload-overlap]
        self, name: Literal["trajectory"], *, user: str | EntityRef | None = None
    ) -> RecordReader[Trajectory]: ...

    @overload
    def records(self, name: str, *, user: str | EntityRef | None = None) -> Records: ...

    def records(self, name: str, *, user: str | EntityRef | None = None) -> RecordReader[Any]:
        """Return the records of one memory, to find, count and search them; those of a declared one also to write.

        ``user`` is whom all calls on it are for, as in ``search``.

        Raises: InvalidValue for a name that no memory has; PermissionDenied for another user.
        """
        arguments.as_text(name, "name")
        catalog = self._engine.store.catalog
        bound = catalog.named(name)
        if bound is None:
            names = (*BUILT_IN, *catalog.memories)
            hint = did_you_mean(name, names, f"there are {', '.join(names)}", mark="")
            raise InvalidValue(field="name", reason=f"there is no such memory; {hint}")
        searching = self._searching.seen_by(user)
        if name in BUILT_IN or holds_blocks(bound.type):
            return RecordReader(self._engine, self._principal, searching, bound)
        # Most stores have none, and opening one of them need not import the module that builds relations.
        from caliber.memories.records import Records

        return Records(self._engine, self._principal, searching, bound, user)
