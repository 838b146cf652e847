"""Configuration section of injection rules: which records of a memory enter windows, in what form, up to what limit.

Source: C-156, C-160 to C-165, C-465, K-065.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from caliber.config.context import PRIORITY_MAX
from caliber.config.faults import Faults
from caliber.config.knobs import Int, Real, Section, Text, knob
from caliber.config.memories import MemoryName, MemoryRef
from caliber.model.context import SectionType
from caliber.schema.memories import window_of

RULES_MAX: Final = 256
FILTER_CHARS: Final = 65_536
CONVERSATION: Final = "turn_buffer"
"""The memory of turns: a rule with mode full filters the conversation, rules that rank recall turns of all tasks."""


class InjectionKind(StrEnum):
    """All records of a memory, all shortened, the best ones, or those above a relevance."""

    FULL = "full"
    SUMMARY = "summary"
    TOP_K = "top_k"
    RELEVANT = "relevant"

    @property
    def ranks(self) -> bool:
        """True if records are chosen by their relevance to the query."""
        return self in (InjectionKind.TOP_K, InjectionKind.RELEVANT)


class InjectionMode(Section):
    """Form and number of the records that a rule brings in."""

    kind: InjectionKind = knob("All records, all in short, the best, or the relevant ones.", "C-156")
    count: Int | None = knob("Number of records; with kind top_k only.", "C-156", optional=True, ge=1)
    min_relevance: Real | None = knob("Least relevance; with kind relevant only.", "C-156", optional=True, ge=0, le=1)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        faults.fit(
            self.kind,
            count=(InjectionKind.TOP_K, self.count),
            min_relevance=(InjectionKind.RELEVANT, self.min_relevance),
        )
        faults.done()
        return self

    @property
    def shown(self) -> str:
        """The mode as the language writes it."""
        if self.kind is InjectionKind.TOP_K:
            return f"top_k({self.count})"
        if self.kind is InjectionKind.RELEVANT:
            return f"relevant({self.min_relevance})"
        return self.kind.value


class InjectionRule(Section):
    """The records of one memory that enter windows."""

    memory: MemoryRef = knob("Memory whose records enter: a declared one, or one that every store has.", "C-160")
    name: MemoryName | None = knob(
        "Name of the rule in traces and sections. Default: the memory's name, with a number from the second rule on.",
        "ours",
        optional=True,
    )
    mode: InjectionMode = knob("Form and number of the records.", "C-160")
    priority: Annotated[Int, Field(ge=0, le=PRIORITY_MAX)] = knob(
        "Priority of the rule when the budget is short; the higher one wins.", "C-160"
    )
    max_tokens: Int | None = knob("Most tokens of the rule's records.", "C-160", unit="tokens", optional=True, ge=1)
    filter: Annotated[Text, Field(min_length=1, max_length=FILTER_CHARS)] | None = knob(
        "Condition that the records meet, in the language of filters.", "C-161", optional=True
    )


RECALL: Final = "recall"


def section_of(memory: str) -> SectionType | None:
    """Return the section of a memory's records in windows without rules; None: records that the search finds."""
    window = window_of(memory)
    return None if window is None or window.section is SectionType.RECALL else window.section


def rule_names(rules: Sequence[InjectionRule]) -> list[tuple[str, str]]:
    """Return the name of each rule, and the name of its section.

    A rule without a name is called as its memory, and its section as that memory's is without rules; the memory's
    second such rule is ``<memory>_2``, and so is its section. A rule that filters the conversation has its section; the
    first nameless rule that ranks turns has the section ``recall``.
    """
    seen: dict[str, int] = {}
    ranked = False
    out = []
    for rule in rules:
        name = section = rule.name
        if name is None:
            count = seen[rule.memory] = seen.get(rule.memory, 0) + 1
            name = rule.memory if count == 1 else f"{rule.memory}_{count}"
            own = section_of(rule.memory)
            section = name if own is None or count > 1 else own.value
        if rule.memory == CONVERSATION and not rule.mode.kind.ranks:
            section = SectionType.USER.value
        elif rule.memory == CONVERSATION and rule.name is None:
            section, ranked = (name if ranked else RECALL), True
        out.append((name, section or name))
    return out
