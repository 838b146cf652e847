"""Relations of vectors: embedding_space, embedding, embedding_cache. Source: K-042, K-187, C-396."""

from __future__ import annotations

from caliber.model.embedding import CachedEmbedding, DistanceMetric, Embedding, EmbeddingSpace, SpaceState
from caliber.model.references import EntityType
from caliber.schema.erase import Erase, Redaction
from caliber.schema.relation import (
    AccessPath,
    ForeignKey,
    Relation,
    Unique,
    blob,
    enum,
    integer,
    stamped,
    text,
    uuid_,
    vector,
    version,
)
from caliber.schema.traits import Exported, Mirror, Place, Resident

EMBEDDING_SPACE = Relation(
    name="embedding_space",
    plural="embedding_spaces",
    entity=EmbeddingSpace,
    code=20,
    comment="One model's vectors; several spaces live side by side.",
    ordinal=True,
    versioned=True,
    resident=Resident(form=Mirror.SPACES, framed=True),
    derived=None,  # the name of a model
    erase=None,  # a model's property, not personal data
    links=None,  # none is made to a space
    trust=None,  # a model
    exported=Exported.ON_REQUEST,  # built by the store that imports
    place=Place.OPENED,
    key=("space_id",),
    columns=(
        uuid_("space_id"),
        text("model_id"),
        integer("dimensions", check=(1, 16384)),
        enum("metric", DistanceMetric),
        enum("state", SpaceState),
        stamped("created_at"),
        version(),
    ),
    uniques=(Unique(("model_id", "dimensions", "metric")),),
    paths=(AccessPath("list_all", (), ("ordinal",)),),
)

EMBEDDING = Relation(
    name="embedding",
    plural="embeddings",
    entity=Embedding,
    code=21,
    comment="The vector of one record, or of one chunk of it, in one space.",
    ordinal=True,
    versioned=True,
    resident=Resident(form=Mirror.VECTORS),
    derived=None,  # content_hash is that of a text of the owner
    erase=Erase(hangs_on=("owner_id",), digest="content_hash"),
    links=None,  # it hangs on its owner
    trust=None,  # that of its owner
    exported=Exported.ON_REQUEST,  # as its space
    key=("space_id", "owner_id", "chunk_index"),
    columns=(
        uuid_("space_id"),
        enum("owner_type", EntityType, open=True),
        uuid_("owner_id"),
        integer("chunk_index", check=(0, None)),
        blob("content_hash", length=32, redact=Redaction.DIGEST),
        vector("vector"),
        stamped("generated_at"),
        version(),
    ),
    foreign_keys=(ForeignKey("space_id", "embedding_space", "space_id", "cascade"),),
    paths=(AccessPath("list_by_owner", ("owner_id",), ("chunk_index",)),),
)

EMBEDDING_CACHE = Relation(
    name="embedding_cache",
    plural="embedding_cache",
    entity=CachedEmbedding,
    code=22,
    comment="Vectors of texts seen before, so that a provider is asked once.",
    derived=None,  # content_hash is that of a text which is not kept
    erase=Erase(cache="embedding_cache.prune"),  # its keys are hashes of texts that are not stored
    links=None,  # nothing names a text that is not kept
    trust=None,  # vectors
    exported=Exported.RECORDS,  # vectors that were paid for
    key=("content_hash", "model_id", "dimensions"),
    columns=(
        blob("content_hash", length=32, redact=Redaction.DIGEST),
        text("model_id"),
        integer("dimensions", check=(1, 16384)),
        vector("vector"),
        stamped("created_at"),
    ),
    paths=(AccessPath("list_older", (), ("created_at",), limited=True),),
)
