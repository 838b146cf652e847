"""Validation and creation of artifacts, idempotent by content hash; summaries of several as one.

Source: C-040 to C-045, C-230 to C-232, K-043, K-044.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from caliber.access.owners import require_own_trust
from caliber.embedding.embedding_target import Vectors, attach
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.model import arguments
from caliber.model.errors import Conflict, ConstraintViolation, InvalidValue
from caliber.model.events import Event, EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ArtifactId, EntityType
from caliber.model.time import from_us
from caliber.model.trajectory import (
    TTL,
    Artifact,
    ArtifactType,
    ExtractionMethod,
    Scope,
    Session,
    Trajectory,
    TrajectoryStatus,
    TTLKind,
    Turn,
)
from caliber.model.trust import TrustLabel, least_trusted
from caliber.schema.relations import ARTIFACT, SCOPE, SESSION, TRAJECTORY, TURN
from caliber.schema.validity import is_valid
from caliber.storage.compile.derived import derive
from caliber.storage.write.ending import archive
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from caliber.model.guard.validation import LintIssue


BY_KEY = ("trajectory_id", "idempotency_key")
_BY_CONTENT = ("trajectory_id", "content_hash", "artifact_type", "trust")
DEFAULT_SCHEMA_VERSION = "1"
"""The version of a content layout that its author did not name."""


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """An artifact as checked, before it has an owner; ``trust`` is the label its caller stated, if any."""

    artifact_type: ArtifactType
    content: bytes
    content_hash: bytes
    token_count: int
    extraction_method: ExtractionMethod
    confidence: float | None
    ttl: TTL
    source_turn: int | None
    schema_version: str
    occurred_at: datetime | None
    idempotency_key: str | None
    trust: TrustLabel | None


_STATED: Final = tuple(each.name for each in dataclasses.fields(NewArtifact) if each.name != "trust")


@dataclass(frozen=True, slots=True)
class LintOnWrite:
    """The part of a tenant that lints artifacts as they are stored, where ``pcp.anti_sprawl.on_write`` is set."""

    check: Callable[[NewArtifact], Sequence[LintIssue]]
    """Returns the issues of a new artifact. Raises: ConstraintViolation for one that is to be refused."""


def lint_on_write(engine: Engine, new: NewArtifact) -> Sequence[LintIssue]:
    """Return the issues of an artifact about to be stored; none where nothing lints it. Raises: ConstraintViolation."""
    lint = engine.find_part(LintOnWrite)
    return () if lint is None else lint.check(new)


def lint_event(engine: Engine, principal: str, artifact: Artifact, issues: Sequence[LintIssue]) -> Event:
    """Return the event that notes the issues of an artifact that was stored all the same."""
    counts = Counter(issue.issue_type.value for issue in issues)
    return engine.event(
        EventType.VALIDATION_RUN,
        principal=principal,
        trajectory_id=artifact.trajectory_id,
        scope_id=artifact.scope_id,
        subject=(EntityType.ARTIFACT, artifact.artifact_id),
        payload={
            "id": str(artifact.artifact_id),
            "valid": all(issue.severity != "error" for issue in issues),
            **counts,
        },
    )


def check_artifact(
    estimator: Estimator,
    *,
    artifact_type: Any,
    content: Any,
    extraction_method: Any,
    confidence: Any = None,
    ttl: Any = None,
    source_turn: Any = None,
    schema_version: Any = None,
    occurred_at: Any = None,
    idempotency_key: Any = None,
    trust: Any = None,
) -> NewArtifact:
    """Return a checked artifact. Raises: InputError kinds."""
    raw = arguments.as_content(content, "content", allow_empty=False)
    return NewArtifact(
        artifact_type=arguments.as_enum(artifact_type, ArtifactType, "artifact_type"),
        content=raw,
        **derive(ARTIFACT, {"content": raw}, estimator),
        extraction_method=arguments.as_enum(extraction_method, ExtractionMethod, "extraction_method"),
        confidence=None if confidence is None else arguments.as_fraction(confidence, "confidence"),
        ttl=arguments.as_ttl(ttl),
        source_turn=None if source_turn is None else arguments.as_whole(source_turn, "source_turn"),
        schema_version=DEFAULT_SCHEMA_VERSION
        if schema_version is None
        else arguments.as_text(schema_version, "schema_version"),
        occurred_at=arguments.as_instant(occurred_at, "occurred_at"),
        idempotency_key=arguments.as_name(idempotency_key, "idempotency_key"),
        trust=None if trust is None else arguments.as_enum(trust, TrustLabel, "trust"),
    )


def create_artifact(
    uow: UnitOfWork,
    scope_id: uuid.UUID,
    new: NewArtifact,
    *,
    unlabelled: TrustLabel,
    user: str | None = None,
    author_id: uuid.UUID | None = None,
    closing: bool = False,
) -> tuple[Artifact, bool]:
    """Store an artifact, or find the same content already active in its trajectory; return it and whether it is new.

    The same content of another label is another artifact. The label is the one stated, else that of the source turn,
    else ``unlabelled``. A ``user``, by its label, may state none of more trust than it would have without.
    ``author_id`` is who made it, if not the user or agent of the task.

    Raises: NotFound; ConstraintViolation for a closed scope or an ended session; Conflict when an idempotency key
        comes again with other content or another label; InvalidValue for ``ttl='session'`` outside a session, and for
        a label that trusts it more than its source turn; PermissionDenied for one above what a user may state.
    """
    scope: Scope = uow.get(SCOPE, scope_id.bytes)
    trajectory: Trajectory = uow.get(TRAJECTORY, scope.trajectory_id.bytes)
    trust, is_stated = label_of(uow, scope, new.source_turn, new.trust, unlabelled)
    if user is not None:
        limit, _ = label_of(uow, scope, new.source_turn, None, unlabelled)
        require_own_trust(user, trust, limit, "trust")
    if new.idempotency_key is not None:
        known: Artifact | None = uow.find_by(ARTIFACT, BY_KEY, scope.trajectory_id.bytes, new.idempotency_key)
        if known is not None:
            same = known.content_hash == new.content_hash and known.artifact_type is new.artifact_type
            if not same or (is_stated and known.trust is not trust):
                raise Conflict(
                    entity_type="artifact",
                    id=known.artifact_id,
                    reason="its idempotency key was used for other content or trust",
                )
            return _shared(uow, known, author_id), False
    if not closing:
        if not scope.is_open:
            raise ConstraintViolation(constraint="scope_open", reason=f"scope {scope_id} is closed; open another one")
        if trajectory.status is not TrajectoryStatus.ACTIVE:
            raise ConstraintViolation(
                constraint="trajectory_active",
                reason=f"trajectory {trajectory.trajectory_id} is {trajectory.status.value}",
            )
    now = from_us(uow.now_us)
    existing: Artifact | None = uow.find_by(
        ARTIFACT, _BY_CONTENT, scope.trajectory_id.bytes, new.content_hash, new.artifact_type.value, trust.value
    )
    if existing is not None and is_valid(ARTIFACT, existing, now):
        return _update_provenance(uow, existing, new, now, author_id), False
    # The trajectory before all that belongs to it: a deletion locks in this order too, so no deadlock occurs.
    uow.update(TRAJECTORY, dataclasses.replace(trajectory, last_activity_at=now))
    if existing is not None:
        archive(uow, ARTIFACT, existing)
    check_lifetime(uow, trajectory, new.ttl)
    artifact = Artifact(
        artifact_id=ArtifactId(uuid7()),
        trajectory_id=scope.trajectory_id,
        scope_id=scope.scope_id,
        created_at=now,
        updated_at=now,
        session_id=trajectory.session_id,
        expires_at=expiry(new.ttl, now),
        trust=trust,
        author_id=author_id,
        **{name: getattr(new, name) for name in _STATED},
    )
    uow.insert(ARTIFACT, artifact)
    return artifact, True


def expiry(ttl: TTL, since: datetime) -> datetime | None:
    """Return when an artifact of ``since`` expires; None for one that ends with something else, or not at all."""
    return None if ttl.duration_ms is None else since + timedelta(milliseconds=ttl.duration_ms)


def label_of(
    uow: UnitOfWork, scope: Scope, source_turn: int | None, stated: TrustLabel | None, unlabelled: TrustLabel
) -> tuple[TrustLabel, bool]:
    """Return the label of an artifact, and whether its caller or its source states it, rather than a rule.

    Raises: InvalidValue for content that is to be trusted more than the turn it came from.
    """
    if source_turn is None:
        return stated or unlabelled, stated is not None
    turn: Turn | None = uow.find_by(TURN, ("trajectory_id", "turn_number"), scope.trajectory_id.bytes, source_turn)
    if turn is None:  # pruned, or of no turn: it is trusted no more than the scope
        return stated or least_trusted(unlabelled, scope.trust), stated is not None
    if stated is None:
        return turn.trust, True
    if stated.distrust < turn.trust.distrust:
        raise InvalidValue(
            field="trust",
            reason=f"turn {turn.turn_number} is {turn.trust}, and derived records cannot have more trust: leave "
            "trust out, or leave source_turn out if somebody checked the content",
        )
    return stated, True


def check_lifetime(uow: UnitOfWork, trajectory: Trajectory, ttl: TTL) -> None:
    """Raise InvalidValue or ConstraintViolation for a time to live of a session that nothing would end."""
    if ttl.kind is not TTLKind.SESSION:
        return
    if trajectory.session_id is None:
        raise InvalidValue(field="ttl", reason="'session' needs a trajectory that was started with a session")
    session: Session = uow.get(SESSION, trajectory.session_id.bytes)
    if session.ended_at is not None:
        raise ConstraintViolation(constraint="session_open", reason="the session has ended: nothing would retire it")


def _shared(uow: UnitOfWork, artifact: Artifact, author_id: uuid.UUID | None) -> Artifact:
    """Return an artifact that came again: what a second one states as well is no longer the words of the one alone."""
    if artifact.author_id in (None, author_id):
        return artifact
    shared: Artifact = uow.update(
        ARTIFACT, dataclasses.replace(artifact, author_id=None, updated_at=from_us(uow.now_us))
    )
    return shared


def _update_provenance(
    uow: UnitOfWork, artifact: Artifact, new: NewArtifact, now: datetime, author_id: uuid.UUID | None
) -> Artifact:
    """Take over the newer provenance of the same content (C-230); nothing is written when it is the same.

    Content that had no idempotency key takes the one it came with now: the key must not come again with other content.
    """
    changed = dataclasses.replace(
        artifact,
        extraction_method=new.extraction_method,
        confidence=new.confidence,
        source_turn=new.source_turn,
        idempotency_key=artifact.idempotency_key or new.idempotency_key,
        # What a second one states as well is no longer the words of the one alone.
        author_id=artifact.author_id if artifact.author_id == author_id else None,
    )
    if changed == artifact:
        return artifact
    updated: Artifact = uow.update(ARTIFACT, dataclasses.replace(changed, updated_at=now))
    return updated


class ArtifactSums:
    """Makes artifacts of summaries."""

    relation = ARTIFACT

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prepare(self, records: Sequence[Any], summary: str, trust: TrustLabel) -> tuple[NewArtifact, Vectors | None]:  # noqa: ARG002
        """Return the summary with its tokens and vector."""
        new = check_artifact(
            self._engine.estimator,
            artifact_type=ArtifactType.INTERMEDIATE_OUTPUT,
            content=summary,
            extraction_method=ExtractionMethod.INFERRED,
            trust=trust,
        )
        return new, self._engine.part(Embeddings).vector(ARTIFACT.name, summary)

    def write(self, uow: UnitOfWork, new: NewArtifact, vector: Vectors | None, scope_id: uuid.UUID | None) -> Artifact:
        """Store it in a scope; the same words that were there for a while stay from now on."""
        assert scope_id is not None  # turns and artifacts have a scope
        artifact, created = create_artifact(
            uow, scope_id, new, unlabelled=self._engine.config.trust.artifacts, closing=True
        )
        if created:
            attach(uow, ARTIFACT.name, artifact.artifact_id, artifact.text, vector)
        if artifact.ttl.kind is not TTLKind.PERSISTENT:
            lasting = dataclasses.replace(artifact, ttl=TTL(TTLKind.PERSISTENT), expires_at=None)
            artifact = uow.update(ARTIFACT, lasting)
        return artifact
