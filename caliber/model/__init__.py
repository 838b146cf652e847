"""Pure data: ids, time, enums, entities, windows, state machines and the error tree. Standard library only."""

from caliber.model.access import Principal
from caliber.model.entities import (
    TTL,
    Artifact,
    CachedEmbedding,
    Checkpoint,
    ConfigDocument,
    ContentVersion,
    Edge,
    Embedding,
    EmbeddingSpace,
    Entity,
    EntityRef,
    Event,
    Lock,
    LockToken,
    Note,
    Provenance,
    Scope,
    Session,
    StoredWindow,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    Turn,
    Usage,
)
from caliber.model.enums import *  # noqa: F403  (every enum is public here)
from caliber.model.time import Clock, FixedClock, SystemClock
from caliber.model.windows import (
    AssemblyDecision,
    ContextSection,
    ContextWindow,
    CutOff,
    Message,
    Position,
    SearchHit,
    SearchResult,
    SourceRef,
)

__all__ = [name for name in dir() if not name.startswith("_") and name[0].isupper()]
