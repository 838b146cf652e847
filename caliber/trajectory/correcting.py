"""Correction of artifacts: provenance and time to live change in place, content by an artifact that supersedes another.

Content is never changed in place: its hash identifies an artifact in its trajectory (C-230, C-379).
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from datetime import datetime
from types import EllipsisType
from typing import Any, Final

from caliber.access.correcting import Check, RecordCorrections
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import Conflict, ConstraintViolation
from caliber.model.events import EventType
from caliber.model.references import Id
from caliber.model.trajectory import TTL, Artifact, ExtractionMethod, Scope, Trajectory, TTLKind
from caliber.model.trust import TrustLabel, least_trusted
from caliber.schema.relations import ARTIFACT, SCOPE, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.artifacts import (
    BY_KEY,
    check_artifact,
    check_lifetime,
    create_artifact,
    expiry,
    label_of,
    lint_event,
    lint_on_write,
)

REQUIRED: Final[dict[str, Check]] = {
    "content": lambda value, field: arguments.as_content(value, field, allow_empty=False),
    "extraction_method": lambda value, field: arguments.as_enum(value, ExtractionMethod, field),
    "schema_version": arguments.as_text,
    "ttl": lambda value, _: arguments.as_ttl(value),
    "trust": lambda value, field: arguments.as_enum(value, TrustLabel, field),
}
OPTIONAL: Final[dict[str, Check]] = {
    "confidence": arguments.as_fraction,
    "source_turn": arguments.as_whole,
    "occurred_at": arguments.as_instant,
}
_KEPT: Final = ("artifact_type", "extraction_method", "schema_version", "ttl", "confidence", "source_turn")
"""What a superseding artifact takes over where its caller states nothing else."""


class ArtifactCorrections(RecordCorrections[Artifact]):
    """The corrections of artifacts that one principal makes."""

    relation = ARTIFACT
    required = REQUIRED
    optional = OPTIONAL
    added = EventType.ARTIFACT_CREATE
    changed = EventType.ARTIFACT_UPDATE

    def __init__(self, engine: Engine, principal: Principal) -> None:
        super().__init__(engine, principal, engine.part(Embeddings))

    def text_of(self, record: Artifact) -> str:
        return record.text

    def most_trusted(self, uow: UnitOfWork, record: Artifact) -> tuple[TrustLabel, str]:
        scope: Scope = uow.get(SCOPE, record.scope_id.bytes)
        return label_of(uow, scope, record.source_turn, None, self._engine.config.trust.artifacts)[0], "trust"

    def revised(self, uow: UnitOfWork, record: Artifact, changes: Mapping[str, Any]) -> Artifact:
        """Return an artifact with changed fields; another source turn lowers its label, and never raises it."""
        changed = dataclasses.replace(record, **changes)
        self.require_own(uow, changed, changes)
        if "ttl" in changes:
            self._check_lifetime(uow, record, changed.ttl)
            changed = dataclasses.replace(changed, expires_at=expiry(changed.ttl, record.created_at))
        if not changes.keys().isdisjoint(("source_turn", "trust")):
            scope: Scope = uow.get(SCOPE, record.scope_id.bytes)
            stated = changes.get("trust")
            label, _ = label_of(uow, scope, changed.source_turn, stated, record.trust)
            changed = dataclasses.replace(changed, trust=label if stated else least_trusted(record.trust, label))
        return changed

    def with_key(self, uow: UnitOfWork, old: Artifact, idempotency_key: str) -> Artifact | None:
        found: Artifact | None = uow.find_by(ARTIFACT, BY_KEY, old.trajectory_id.bytes, idempotency_key)
        return found

    def add(
        self,
        uow: UnitOfWork,
        old: Artifact,
        changes: Mapping[str, Any],
        start: datetime,  # noqa: ARG002  (it holds from its creation on)
        idempotency_key: str | None,
        sources: tuple[uuid.UUID, ...],  # noqa: ARG002  (it belongs to the task of the old one)
    ) -> tuple[Artifact, bool]:
        """Store an artifact beside the one that it supersedes, also in a scope that is closed by now.

        Unless one is stated, its label is the least trusted of the old one's and of that of a new artifact.
        """
        values = {**{name: getattr(old, name) for name in _KEPT}, **changes}
        self.require_own(uow, dataclasses.replace(old, source_turn=values["source_turn"]), changes)
        if values["content"] == old.content:
            reason = "it has this content already; update it, or delete it"
            raise Conflict(entity_type=ARTIFACT.name, id=old.artifact_id, reason=reason)
        self._check_lifetime(uow, old, values["ttl"])
        unlabelled = self._engine.config.trust.artifacts
        if "trust" not in changes:
            scope: Scope = uow.get(SCOPE, old.scope_id.bytes)
            label, _ = label_of(uow, scope, values["source_turn"], None, unlabelled)
            values["trust"] = least_trusted(old.trust, label)
        new = check_artifact(self._engine.estimator, **values, idempotency_key=idempotency_key)
        issues = lint_on_write(self._engine, new)
        author_id = self._corrections.guest_in(old.scope_id)
        artifact, created = create_artifact(
            uow, old.scope_id, new, unlabelled=unlabelled, author_id=author_id, closing=True
        )
        if created and issues:
            uow.emit(lint_event(self._engine, self._principal.label, artifact, issues))
        return artifact, created

    @staticmethod
    def _check_lifetime(uow: UnitOfWork, artifact: Artifact, ttl: TTL) -> None:
        """Raise InvalidValue or ConstraintViolation for a time to live that nothing would end."""
        trajectory: Trajectory = uow.get(TRAJECTORY, artifact.trajectory_id.bytes)
        check_lifetime(uow, trajectory, ttl)
        scope: Scope = uow.get(SCOPE, artifact.scope_id.bytes)
        if ttl.kind is TTLKind.SCOPE and not scope.is_open:
            reason = f"scope {scope.scope_id} is closed: nothing would retire it; give another ttl"
            raise ConstraintViolation(constraint="scope_open", reason=reason)


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
        self._engine.check_open()
        return ArtifactCorrections(self._engine, self._principal)
