"""Configuration sections of views: the types of notes that a role sees in its view, and scores that order them."""

from typing import Annotated

from caliber.config.knobs import AsList, Duration, Flag, Int, Real, Section, knob
from caliber.model.agents import AgentRole
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
    access: Real = knob("Share of how often the note was used.", "M-143", ge=0, le=1)
    recency: Real = knob("Share of how recently the note was used.", "M-143", ge=0, le=1)
    relevance: Real = knob("Share of whether the role is interested in the note's type.", "M-143", ge=0, le=1)


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

    enabled: Flag = knob("Whether a view orders the hits of its search by the role's score.", "M-148")
    candidates: Int = knob(
        "Best hits of the search that are ordered anew, and no fewer than the limit of the call.", "M-148", ge=1
    )
    full_uses: Int = knob("Uses from which on a note counts as used often, with 1.", "M-144", source_value=10, ge=1)
    half_life_ms: Duration = knob(
        "Time since its last use after which a note counts half as recent.",
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

    interests: InterestsConfig = knob("Which types of notes a role sees in its view.", "M-120")
    scoring: RoleScoringConfig = knob("Order of the hits of a view.", "M-148")
