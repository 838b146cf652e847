"""Configuration section of recall: whose earlier records windows may include, how many, and their weighting."""

from typing import TYPE_CHECKING, Final

from pydantic import create_model

from caliber.config.knobs import Int, Real, Section, knob
from caliber.model.context import Reach
from caliber.model.trust import TrustLabel

_FROM: Final = knob(
    "Whose turns, summaries and artifacts are recalled: those of the same task, of its session, of every task of its "
    "owner, or of the whole tenant. The owner is the user of the task, or the agent that started it for no user. Tasks "
    "that the system started for no user, such as imports, are everybody's.",
    "ours",
)
if TYPE_CHECKING:

    class _From(Section):
        pass

else:  # `from` is a keyword: as a field it cannot be written in the body of a class
    _From = create_model("_From", __base__=Section, **{"from": (Reach, _FROM)})


class RecallConfig(_From):
    """Recall of earlier conversations into windows. Order ``stable_first`` only."""

    limit: Int = knob(
        "Most records that a search for the query may bring into a window; 0 recalls nothing.",
        "ours",
        unit="records",
        ge=0,
        le=10_000,
    )
    carried_share: Real = knob(
        "A turn beside a hit is at least as relevant as this share of what the hit borrowed from its neighbours; "
        "above 1: only as relevant as it is itself.",
        "ours",
        ge=0,
        le=2,
    )
    length_weight: Real = knob(
        "How much length counts against a record: 0 fills by relevance alone, 1 by relevance per token.",
        "ours",
        ge=0,
        le=1,
    )
    duplicate_similarity: Real = knob(
        "Two records whose vectors are at least this similar are almost alike: of the same words, the more relevant "
        "enters; else the newest counts as much as the most relevant. 1: only turns of equal text count as the same.",
        "ours",
        ge=0,
        le=1,
    )
    alike_share: Real = knob(
        "Share of its relevance that counts of a record almost alike to a more relevant and to a newer one; 1: all.",
        "ours",
        ge=0,
        le=1,
    )
    trust: TrustLabel = knob("Least trusted label that is recalled from other tasks.", "ours")

    @property
    def reach(self) -> Reach:
        """The owner whose records are recalled: the knob ``from``."""
        reach: Reach = getattr(self, "from")
        return reach
