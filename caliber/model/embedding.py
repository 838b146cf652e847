"""Data types of embeddings: vector rows, embedding spaces with their state, metrics and index types."""

from __future__ import annotations

import uuid
from dataclasses import field
from datetime import datetime
from enum import StrEnum

from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType, SpaceId


class DistanceMetric(StrEnum):
    COSINE = "cosine"
    L2 = "l2"
    INNER_PRODUCT = "inner_product"


class VectorIndexType(StrEnum):
    HNSW = "hnsw"
    IVF_FLAT = "ivf_flat"
    EXACT = "exact"


class EmbedMode(StrEnum):
    BEHIND = "behind"
    COMMIT = "commit"
    OFF = "off"


class SpaceState(StrEnum):
    ACTIVE = "active"
    BUILDING = "building"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """One model's vectors: comparable among themselves, with nothing else. Source: K-187."""

    space_id: SpaceId
    model_id: str
    dimensions: int
    metric: DistanceMetric
    state: SpaceState
    created_at: datetime
    version: int = 1

    @property
    def name(self) -> str:
        """The name for people: model, dimensions and, unless it is the cosine, the metric."""
        metric = "" if self.metric is DistanceMetric.COSINE else f"+{self.metric.value}"
        return f"{self.model_id}@{self.dimensions}{metric}"


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one record (or of one chunk of it) in one space. Shapes: vector f32-LE bytes, 4·d."""

    space_id: SpaceId
    owner_type: EntityType | str
    owner_id: uuid.UUID
    chunk_index: int
    content_hash: bytes = field(repr=False)
    vector: bytes
    generated_at: datetime
    version: int = 1


@dataclass(frozen=True, slots=True)
class CachedEmbedding:
    content_hash: bytes = field(repr=False)
    model_id: str
    dimensions: int
    vector: bytes
    created_at: datetime
