"""Values of a filter's built-in variables (current time, task, scope, agent) for one window or search."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from caliber.model.time import from_us
from caliber.schema.predicate import Variable

_AGENT: Final = "agent:"


def variables_of(
    trajectory_id: uuid.UUID | None, scope_id: uuid.UUID | None, principal: str, now_us: int
) -> Mapping[Variable, Any]:
    """Return the values of the variables, in one window or, without a trajectory, outside any.

    ``now_us`` is the instant at which records must be in force: valid time for notes, the clock for all else.
    """
    return {
        Variable.NOW: from_us(now_us),
        Variable.TRAJECTORY: trajectory_id,
        Variable.SCOPE: scope_id,
        Variable.AGENT: _agent(principal),
    }


def _agent(principal: str) -> uuid.UUID | None:
    """Return the id of the agent that a principal is, if it has the form of one."""
    if not principal.startswith(_AGENT):
        return None
    try:
        return uuid.UUID(principal.removeprefix(_AGENT))
    except ValueError:
        return None
