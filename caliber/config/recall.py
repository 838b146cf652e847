"""Configuration section of recall: whose earlier records windows may include, how many, and their weighting."""

from typing import TYPE_CHECKING, Final

from pydantic import create_model

from caliber.config.knobs import Int, Real, Section, knob
from caliber.model.context import Reach
from caliber.model.trust import TrustLabel

_FROM: Final = knob(
    "Tasks whose turns, summaries and artifacts are recalled: the same task, its session, every task of"
    " its owner, or the whole tenant. The owner is the user of the task, or the agent that started it for"
    " no user. Everybody recalls tasks that the system started for no user, such as imports.",
    "ours",
)
if TYPE_CHECKING:

    class _From(Section):
        pass

else:  # `from` is a keyword: as a field it cannot be written in the body of a class
    _From = create_model("_From", __base__=Section, **{"from": (Reach, _FROM)})


class RecallConfig(_From):
    """Recall of earlier conversations into windows."""

    limit: Int = knob(
        "Most records that a search for the query may bring into a window; 0 recalls nothing.",
        "ours",
        unit="records",
        ge=0,
        le=10_000,
    )
    length_weight: Real = knob(
        "Weight of a record's length: 0 fills by relevance alone, 1 by relevance per token.",
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
