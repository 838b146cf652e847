"""Facet ``memory.artifacts``: corrections of artifacts, each audited and undoable."""

from __future__ import annotations

from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING

from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.ids import Id
from caliber.model.trajectory import TTL, Artifact, ExtractionMethod
from caliber.model.trust import TrustLabel

if TYPE_CHECKING:
    from caliber.trajectory.correcting import ArtifactCorrections


class Artifacts:
    """Corrections of artifacts: those who may write to its task correct an artifact, also after the task has ended."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def update(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        confidence: float | EllipsisType | None = ...,
        extraction_method: ExtractionMethod | str | EllipsisType = ...,
        source_turn: int | EllipsisType | None = ...,
        occurred_at: datetime | EllipsisType | None = ...,
        ttl: TTL | str | int | EllipsisType = ...,
        trust: TrustLabel | str | EllipsisType = ...,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Artifact:
        """Correct the provenance, date, label or time to live of an artifact, and return it as stored.

        Fields that are left out stay, None clears one. A duration ``ttl`` counts from the creation of the artifact. The
        label never exceeds that of ``source_turn``. For other content, use ``supersede``.

        Raises: InputError kinds; NotFound; PermissionDenied for a task that may only be read; ConstraintViolation for
            a ``ttl`` that nothing would end; Conflict when ``version`` is no longer that of the artifact, for one that
            was superseded, deleted, retired or rolled back, or when an equal one is in use; LockExpired.
        """
        fields = {
            "confidence": confidence,
            "extraction_method": extraction_method,
            "source_turn": source_turn,
            "occurred_at": occurred_at,
            "ttl": ttl,
            "trust": trust,
        }
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._corrections().update(key, fields, expected, guard))

    def supersede(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        content: str | bytes,
        confidence: float | EllipsisType | None = ...,
        extraction_method: ExtractionMethod | str | EllipsisType = ...,
        schema_version: str | EllipsisType = ...,
        source_turn: int | EllipsisType | None = ...,
        occurred_at: datetime | EllipsisType | None = ...,
        ttl: TTL | str | int | EllipsisType = ...,
        trust: TrustLabel | str | EllipsisType = ...,
        idempotency_key: str | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Artifact:
        """Replace an artifact by one with other content from now on, and return that.

        The old one names it in ``superseded_by``, and an edge ``supersedes`` leads from the new one to it: no window
        and no search shows the old one any more, whatever its ``as_of``, because an artifact has no valid time. What is
        left out is as in the old artifact, but ``occurred_at``; without ``trust`` its label is no higher than the old
        one's. The same call with the same ``idempotency_key`` returns the artifact that the first one made.

        Raises: as ``update``; Conflict also for content that the old one or another artifact in use has, and for a key
            that was used for something else.
        """
        fields = {
            "content": content,
            "confidence": confidence,
            "extraction_method": extraction_method,
            "schema_version": schema_version,
            "source_turn": source_turn,
            "occurred_at": occurred_at,
            "ttl": ttl,
            "trust": trust,
        }
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._corrections().supersede(key, fields, None, idempotency_key, expected, guard))

    def end(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        at: datetime | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Artifact:
        """Let an artifact expire at ``at`` (now, if left out), whatever its ``ttl``, and return it.

        Raises: as ``update``.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._corrections().end(key, at, expected, guard))

    def delete(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Artifact:
        """Take an artifact out of every search and window, and return it; it stays in the store until ``forget``.

        Raises: as ``update``.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._corrections().delete(key, expected, guard))

    def undo(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Artifact:
        """Take back the newest correction of an artifact, and return it as it was before; again, the one before that.

        Undoing ``supersede`` takes the new artifact out of use. An artifact that was retired after ``end`` is in use
        again.

        Raises: as ``update``; Conflict without a correction, where its values were changed again or forgotten since, or
            where the new artifact was corrected since.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._corrections().undo(key, expected, guard))

    def _corrections(self) -> ArtifactCorrections:
        from caliber.trajectory.correcting import ArtifactCorrections  # most processes correct no artifact

        self._engine.check_open()
        return ArtifactCorrections(self._engine, self._principal)
