"""Knobs of the database's own vector indexes: how they are made, and how they are asked."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from support.config.knobs.case import Case, Knobs, Place
from support.config.knobs.files import store_of
from support.config.knobs.servers import DSN, NEEDS, known

from caliber.config import CaliberConfig
from caliber.model.embedding import DistanceMetric, Embedding, EmbeddingSpace, SpaceState
from caliber.model.ids import SpaceId
from caliber.model.references import EntityType
from caliber.model.time import from_us
from caliber.schema.relations import EMBEDDING, EMBEDDING_SPACE

DIMENSIONS = 4


def configured(**also: Any) -> Callable[[Place], Knobs]:
    def knobs(place: Place) -> Knobs:
        provider = {"provider_type": "hash", "model": "test", "dimensions": DIMENSIONS, "options": {}}
        base = {"storage.path": f"env:{DSN}", "storage.adapter": "postgres", "storage.schema_name": known(place).schema}
        given = {f"vector.{name}": value for name, value in also.items()}
        return {**base, "embedding_provider": provider, "storage.pool_max": 4, **given}

    return knobs


def filled_space(config: CaliberConfig, place: Place, notes: int) -> tuple[Any, EmbeddingSpace]:
    """Return a store and a new space of it with vectors of so many notes, indexed as configured."""
    store = store_of(config, place)
    key = uuid.uuid4()
    space = EmbeddingSpace(SpaceId(key), key.hex, DIMENSIONS, DistanceMetric.COSINE, SpaceState.ACTIVE, from_us(0))
    rows = np.random.default_rng(1).standard_normal((notes, DIMENSIONS)).astype("<f4")

    def work(uow: Any) -> None:
        uow.insert(EMBEDDING_SPACE, space)
        for row in rows:
            owner = uuid.uuid4()
            uow.insert(
                EMBEDDING,
                Embedding(space.space_id, EntityType.NOTE, owner, 0, owner.bytes * 2, row.tobytes(), from_us(0)),
            )

    store.write(work)
    store.vector_index.build(space)
    return store, space


def options(config: CaliberConfig, place: Place) -> list[str]:
    """Return the options of the index of notes, as the database reports them."""
    store, space = filled_space(config, place, 40)
    with store.read() as session:
        found = store.vector_index.indexes_of(session, space.space_id)
    return sorted({part.strip() for _, _, text in found.values() for part in text.split(",")})


def method(config: CaliberConfig, place: Place) -> str | None:
    place.fixture("monkeypatch").setattr("caliber.backends.postgres.searching.vector_index.IVFFLAT_LISTS", 2)
    store, space = filled_space(config, place, 40)
    found = store.vector_index.of(space.space_id)
    return None if found is None else str(found.method)


def case(knob: str, see: Any, one: Any, other: Any, *more: Any, **also: Any) -> Case:
    return Case(f"vector.{knob}", see, one, other, configured(**also), NEEDS, more=more)


CASES: tuple[Case, ...] = (
    case("index_type", method, ("hnsw", "hnsw"), ("exact", None), ("ivf_flat", "ivfflat")),
    case(
        "hnsw_m",
        options,
        (8, ["ef_construction=64", "m=8"]),
        (16, ["ef_construction=64", "m=16"]),
    ),
    case(
        "hnsw_ef_construction",
        options,
        (32, ["ef_construction=32", "m=16"]),
        (64, ["ef_construction=64", "m=16"]),
    ),
)
