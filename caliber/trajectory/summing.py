"""Summaries of turns, or of other artifacts, stored as artifacts, for retention's ``compress_on``."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any

from caliber.embedding.embedding_target import Vectors, attach
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model.trajectory import TTL, Artifact, ArtifactType, ExtractionMethod, TTLKind
from caliber.model.trust import TrustLabel
from caliber.schema.relations import ARTIFACT
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import artifacts as artifact_ops
from caliber.trajectory.artifacts import NewArtifact


class ArtifactSums:
    """Makes artifacts of summaries."""

    relation = ARTIFACT

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prepare(self, records: Sequence[Any], summary: str, trust: TrustLabel) -> tuple[NewArtifact, Vectors | None]:  # noqa: ARG002
        """Return the summary with its tokens and vector."""
        new = artifact_ops.check_artifact(
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
        artifact, created = artifact_ops.create_artifact(
            uow, scope_id, new, unlabelled=self._engine.config.trust.artifacts, closing=True
        )
        if created:
            attach(uow, ARTIFACT.name, artifact.artifact_id, artifact.text, vector)
        if artifact.ttl.kind is not TTLKind.PERSISTENT:
            lasting = dataclasses.replace(artifact, ttl=TTL(TTLKind.PERSISTENT), expires_at=None)
            artifact = uow.update(ARTIFACT, lasting)
        return artifact
