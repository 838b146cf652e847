"""Configuration sections of context windows: assembly, recall, priorities, token counting, storage."""

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, create_model
from pydantic_core import PydanticCustomError

from caliber.config.knobs import AsList, Duration, Flag, FrozenMap, Int, Name, Real, Section, Text, knob
from caliber.config.secret import readable
from caliber.model.context import ContextPersistence, Reach
from caliber.model.trust import TrustLabel

PRIORITIZED: Final = ("system", "persona", "user", "artifacts", "notes", "history")
"""The sections that have a priority of their own."""
SECTION_NAMES: Final = (*PRIORITIZED, "about_user", "earlier", "told", "recall", "current")
TOKEN_BUDGET_MAX: Final = 2_000_000
PRIORITY_MAX: Final = 2**31 - 1

Priority = Annotated[Int, Field(ge=0, le=PRIORITY_MAX)]


def _custom_names(value: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    names = [name for name, _ in value]
    for name in names:
        if name in SECTION_NAMES:
            raise PydanticCustomError("custom", "{name} is a built-in section", {"name": readable(name)})
        if names.count(name) > 1:
            raise PydanticCustomError("custom", "{name} is named twice", {"name": readable(name)})
    return value


def _ordered(share: tuple[float, float]) -> tuple[float, float]:
    if share[0] > share[1]:
        raise PydanticCustomError("share", "the floor must not be above the cap")
    return share


_Ratio = Annotated[Real, Field(ge=0, le=1)]
Share = Annotated[tuple[_Ratio, _Ratio], AsList, AfterValidator(_ordered)]
"""Floor and cap of a section, in shares of the budget."""


class SectionPriorities(Section):
    """Priorities of sections with assembly.order = priority: when the budget is short, the higher one wins."""

    user: Priority = knob("The conversation.", "C-096")
    system: Priority = knob("System instructions.", "C-096")
    persona: Priority = knob("The persona.", "C-096")
    artifacts: Priority = knob("Typed outputs of the trajectory.", "C-096")
    notes: Priority = knob("Knowledge kept beyond trajectories.", "C-096")
    history: Priority = knob("Summaries of closed scopes.", "C-096")
    custom: Annotated[tuple[Annotated[tuple[Name, Priority], AsList], ...], AsList, AfterValidator(_custom_names)] = (
        knob(
            'Further sections, each a [name, priority] as ["tools", 40], fed by extra_sections.',
            "C-096",
            source_value=(),
        )
    )

    def of(self, section: str) -> int:
        """Return the priority of a section, built-in or custom.

        Raises: KeyError for a name that is neither.
        """
        if section in PRIORITIZED:
            return int(getattr(self, section))
        if section in SECTION_NAMES:
            return self.user if section == "current" else self.notes
        return dict(self.custom)[section]


class PersistenceConfig(Section):
    """Storage of assembled windows, for explain and replay."""

    kind: ContextPersistence = knob("Never stored, stored for ttl_ms, or stored without expiry.", "C-100")
    ttl_ms: Duration | None = knob("Time to store; with kind ttl only.", "C-100", unit="ms", optional=True, gt=0)


class TokensConfig(Section):
    """Counting of tokens: in budgets, when a text is cut, and in stored counts."""

    estimator: Literal["bytes", "calibrated", "exact"] = knob(
        "By bytes; calibrated: by tables fitted to a vocabulary, a few percent off; exact: by the vocabulary"
        " (extra tokens).",
        "C-121",
    )
    bytes_per_token: Real = knob(
        "UTF-8 bytes of one token, with the estimator bytes.", "C-121", unit="bytes", source_value=3.5, gt=0, le=1_024
    )
    vocabulary: Literal["o200k_base", "cl100k_base"] | None = knob(
        "Vocabulary that tokens are counted in, with the estimators calibrated and exact.", "ours", optional=True
    )


class AssemblyConfig(Section):
    """Filling of windows."""

    order: Literal["priority", "stable_first"] = knob(
        "stable_first: the sections share the budget, and those that change least stand first, so that providers can "
        "cache the prefix. priority: sections strictly by priority, as the sources say; a long conversation leaves "
        "no room for what answers.",
        "design",
    )
    section_shares: FrozenMap[Share] = knob(
        "Floor and cap of a section, by its name, in shares of the budget. What a section does not use goes to the "
        "others, and a cap gives way when nothing else fits; with order = priority caps hold and floors mean nothing.",
        "C-219",
    )
    evict_block_turns: Int = knob(
        "Turns that leave in one block.",
        "design",
        unit="turns",
        ge=1,
        le=65_536,
    )
    fill_ratio: Real = knob(
        "Share of the budget at which filling stops, with order = priority.", "C-121", source_value=0.95, gt=0, le=1
    )
    relevance: Literal["search", "vector"] = knob(
        "Measure of relevance: search is the score of a search for the query, 0 for records that it does not"
        " find; vector is the similarity of the record's vector to the query's.",
        "ours",
    )
    notes_without_query: Int = knob("Newest notes taken when there is no query; 0 for none.", "C-453", ge=0)
    overflow_policy: Literal["truncate", "compress", "exclude"] = knob(
        "A record too long for the rest of the budget is cut, compressed to its key sentences, or left out.", "C-121"
    )
    truncate_min_tokens: Int = knob("Smallest rest for a cut record.", "ours", unit="tokens", ge=1)
    message_overhead_tokens: Int = knob(
        "Tokens that each message costs beyond its text.", "O-14", unit="tokens", ge=0, le=1_024
    )
    separator: Text = knob("Text between the items of a section.", "C-461", source_value="\n\n", max_length=64)
    section_headers: Flag = knob("Begin each section with its name.", "ours")

    def share(self, section: str) -> tuple[float, float]:
        """Return floor and cap of a section in shares of the budget; 0 and 1 where none is configured."""
        shares: Any = self.section_shares
        floor, cap = shares.get(section, (0.0, 1.0))
        return float(floor), float(cap)


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
