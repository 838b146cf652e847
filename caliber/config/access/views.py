"""Configuration sections of views: the types of notes that a role sees in its view, and scores that order them."""

from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from caliber.config.knobs import AsList, Flag, FrozenMap, Section, knob
from caliber.model.access import AgentRole
from caliber.model.knowledge import NoteType

NoteTypes = Annotated[tuple[NoteType, ...], AsList]
V = TypeVar("V")
_ROLES: Final = ", ".join(AgentRole)


def _every_role(value: FrozenMap[V]) -> FrozenMap[V]:
    if value.keys() != {role.value for role in AgentRole}:
        raise PydanticCustomError("roles", "must name each role, and nothing else: {roles}", {"roles": _ROLES})
    return value


ByRole = Annotated[FrozenMap[V], AfterValidator(_every_role)]
"""A table with an entry for each role."""


class RoleScoringConfig(Section):
    """Scores of notes by role: they order what the search of a view found."""

    enabled: Flag = knob("Order the hits of a view's search by the role's score.", "M-148")


class ViewsConfig(Section):
    """Views of roles over notes."""

    interests: ByRole[NoteTypes] = knob(
        "Types of notes that the view of each role shows, besides notes without a type.",
        "M-120",
        source_value={
            "executor": ["implementation", "pattern", "bug"],
            "optimizer": ["decision", "pattern", "skill"],
            "orchestrator": ["decision", "architecture", "coordination"],
            "reviewer": ["bug", "test", "decision"],
        },
    )
    scoring: RoleScoringConfig = knob("Order of the hits of a view.", "M-148")
