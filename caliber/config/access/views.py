"""Configuration sections of views: the types of notes that a role sees in its view, and scores that order them."""

from typing import Annotated

from caliber.config.knobs import AsList, Duration, Flag, Int, Real, Section, knob
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


class RoleWeights(Section):
    """The share of each part in the score of a note for a role; the four add up to 1."""

    base: Real = knob("Share of the note's importance.", "M-143", ge=0, le=1)
    access: Real = knob("Share of the note's frequency of use.", "M-143", ge=0, le=1)
    recency: Real = knob("Share of the recency of the note's last use.", "M-143", ge=0, le=1)
    relevance: Real = knob("Share of the relevance of the note's type to the role.", "M-143", ge=0, le=1)


class ScoringWeights(Section):
    """Weights of the parts of a note's score, by role."""

    orchestrator: RoleWeights = knob("Weights for an orchestrator.", "M-143")
    optimizer: RoleWeights = knob("Weights for an optimizer.", "M-143")
    reviewer: RoleWeights = knob("Weights for a reviewer.", "M-143")
    executor: RoleWeights = knob("Weights for an executor.", "M-143")

    def for_role(self, role: AgentRole) -> RoleWeights:
        """Return the weights of ``role``."""
        weights: RoleWeights = getattr(self, role.value)
        return weights


class RoleScoringConfig(Section):
    """Scores of notes by role: they order what the search of a view found."""

    enabled: Flag = knob("Order the hits of a view's search by the role's score.", "M-148")
    candidates: Int = knob(
        "Number of best hits that the view orders again; never fewer than the limit of the call.", "M-148", ge=1
    )
    full_uses: Int = knob("Number of uses that counts as frequent use, with 1.", "M-144", source_value=10, ge=1)
    half_life_ms: Duration = knob(
        "Half-life of recency, counted from the last use of a note.",
        "M-145",
        unit="ms",
        source_value=2_592_000_000,
        ge=1,
    )
    interesting: Real = knob(
        "Relevance of a type that the role is interested in.", "M-146", source_value=0.8, ge=0, le=1
    )
    other: Real = knob("Relevance of a note of another type, or none.", "M-146", source_value=0.3, ge=0, le=1)
    weights: ScoringWeights = knob("Weights of the parts, by role.", "M-143")


class ViewsConfig(Section):
    """Views of roles over notes."""

    interests: InterestsConfig = knob("Types of notes that the view of each role shows.", "M-120")
    scoring: RoleScoringConfig = knob("Order of the hits of a view.", "M-148")
