"""Configuration sections of views: the types of notes that a role sees in its view, and scores that order them."""

from typing import Annotated

from caliber.config.knobs import AsList, Flag, Section, knob
from caliber.model.access import AgentRole
from caliber.model.knowledge import NoteType

NoteTypes = Annotated[tuple[NoteType, ...], AsList]


class InterestsConfig(Section):
    """The types of notes that the view of a role shows, besides notes without a type."""

    orchestrator: NoteTypes = knob(
        "Types that an orchestrator's view shows.", "M-120", source_value=("decision", "architecture", "coordination")
    )
    optimizer: NoteTypes = knob(
        "Types that an optimizer's view shows.", "M-120", source_value=("decision", "pattern", "skill")
    )
    reviewer: NoteTypes = knob("Types that a reviewer's view shows.", "M-120", source_value=("bug", "test", "decision"))
    executor: NoteTypes = knob(
        "Types that an executor's view shows.", "M-120", source_value=("implementation", "pattern", "bug")
    )

    def for_role(self, role: AgentRole) -> tuple[NoteType, ...]:
        """Return the types of notes that ``role`` is interested in."""
        types: tuple[NoteType, ...] = getattr(self, role.value)
        return types


class RoleScoringConfig(Section):
    """Scores of notes by role: they order what the search of a view found."""

    enabled: Flag = knob("Order the hits of a view's search by the role's score.", "M-148")


class ViewsConfig(Section):
    """Views of roles over notes."""

    interests: InterestsConfig = knob("Types of notes that the view of each role shows.", "M-120")
    scoring: RoleScoringConfig = knob("Order of the hits of a view.", "M-148")
