"""Default search query of a window when the caller gives none: the last user turn, or the goal of the task.

Source: O-16, against C-448, C-449, C-453; docs/windows.md.
"""

from __future__ import annotations

import uuid
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.context.conversation import TASKS, TURNS, last_said
from caliber.context.inputs import TextSource
from caliber.embedding.embedder import Embedder
from caliber.embedding.embedding_target import mean_vector, says_something
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.documents import document_of, shown
from caliber.resident.snapshot import ResidentSnapshot


@dataclass(frozen=True, slots=True)
class DefaultQuery:
    """A query, its stored vector if there is one, and where it came from. Shapes: vector ``f32[d]``"""

    text: str | None
    vector: NDArray[np.float32] | None
    origin: str


NO_QUERY: Final = DefaultQuery(None, None, "none")
"""There is no query, and no default for one."""


def stated_query(config: CaliberConfig, query: str | None, vector: NDArray[np.float32] | None) -> DefaultQuery | None:
    """Return the caller's query; None where it is left to ``default_query``.

    An empty text without a vector asks nothing. Where sections are filled strictly by priority, so does no text.
    """
    if config.assembly.order == "stable_first" and vector is None and not query:
        return None if query is None else NO_QUERY
    return DefaultQuery(query, vector, "caller")


def default_query(
    snapshot: ResidentSnapshot,
    texts: TextSource,
    trajectory_id: uuid.UUID,
    space_id: uuid.UUID | None,
    embedder: Embedder | None = None,
) -> DefaultQuery:
    """Return the text of the last user turn of a task, or the task's goal before the first turn.

    A turn that waits for its vector gets it from a local provider; no other is called, and it is used by its words.
    """
    key = trajectory_id.bytes
    turns, row = snapshot[TURNS], last_said(snapshot, key)
    if row >= 0:
        (content,) = texts.texts(turns, [row])
        vectors = None if space_id is None else snapshot.vectors.get((TURNS, space_id))
        stored = np.empty((0, 0), np.float32) if vectors is None else vectors.vectors(turns, row)
        vector = mean_vector(stored) if len(stored) else None
        if vector is None and embedder is not None and says_something(shown(content)):
            target = embedder.answering(space_id) if TURNS in embedder.embedded else None
            text = shown(document_of(turns.relation, turns.packed(row), content))
            vector = None if target is None else target.at_once(TURNS, text)
        return DefaultQuery(shown(content), vector, "last_user_turn")
    tasks = snapshot[TASKS]
    task = tasks.find(key)
    (goal,) = texts.texts(tasks, [task]) if task >= 0 else (None,)
    return DefaultQuery(goal, None, "goal") if goal else NO_QUERY
