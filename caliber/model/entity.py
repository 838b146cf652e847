"""Type alias ``Entity``: the union of all record types that ``get`` can return."""

from __future__ import annotations

from caliber.model.agents import Lock
from caliber.model.embedding import EmbeddingSpace
from caliber.model.events import Event
from caliber.model.knowledge import Edge, Note
from caliber.model.pcp import Checkpoint
from caliber.model.trajectory import Artifact, Scope, Session, Trajectory, Turn

Entity = Session | Trajectory | Scope | Turn | Artifact | Note | Edge | EmbeddingSpace | Checkpoint | Lock | Event
