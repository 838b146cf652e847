"""What of a configuration an assembly needs, worked out once per configuration.

All lengths are in the estimator's unit, which it turns into tokens and rounds up. Bytes add up exactly where tokens do
not (docs/decisions/0016). Under other estimators a text is measured with the separator after it, since that is how
vocabularies read it, and a separator by itself has no length (docs/decisions/0036).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.kernels import Estimator, open_estimator
from caliber.model.enums import SectionType, SourceType

INT32_MAX: Final = 2**31 - 1
UNCAPPED: Final = -1

SOURCES: Final = (
    SourceType.SYSTEM,
    SourceType.PERSONA,
    SourceType.TURN,
    SourceType.ARTIFACT,
    SourceType.NOTE,
    SourceType.SCOPE_SUMMARY,
    SourceType.EXTRA,
)
"""Sources by the code that stands for them in columns and records; codes never change."""

CODE_OF: Final = {source: code for code, source in enumerate(SOURCES)}
SYSTEM, PERSONA, TURN, ARTIFACT, NOTE, SUMMARY, EXTRA = range(7)

RELATION_OF: Final = {TURN: "turn", ARTIFACT: "artifact", NOTE: "note", SUMMARY: "scope"}
"""The mirrored relation behind each source that has one."""

_TITLES: Final = {
    SectionType.SYSTEM: "System",
    SectionType.PERSONA: "Persona",
    SectionType.HISTORY: "History",
    SectionType.ARTIFACTS: "Artifacts",
    SectionType.NOTES: "Notes",
    SectionType.USER: "Conversation",
}
# From what never changes to what changes with every turn; notes and artifacts follow the query.
_BUILT_IN: Final = (
    (SectionType.SYSTEM, SYSTEM),
    (SectionType.PERSONA, PERSONA),
    (SectionType.HISTORY, SUMMARY),
    (SectionType.ARTIFACTS, ARTIFACT),
    (SectionType.NOTES, NOTE),
    (SectionType.USER, TURN),
)
# C-449: the order of sources, in which sections of equal priority follow one another.
_SOURCE_ORDER: Final = (SYSTEM, PERSONA, EXTRA, TURN, ARTIFACT, NOTE, SUMMARY)


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """One section that a window can have."""

    index: int
    name: str
    type: SectionType
    source: int
    priority: int
    cap_tokens: int | None
    header: str
    header_length: int
    compressible: bool


@dataclass(frozen=True, slots=True)
class Measures:
    """What an estimator made of a configuration; recorded with each window, so that no replay has to ask it again.

    Units: ``separator`` and ``headers``, by section index, are lengths; a length is tokens by numerator / denominator.
    """

    estimator: str
    numerator: int
    denominator: int
    additive: bool
    separator: int
    headers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AssemblyPlan:
    """The constants of one configuration.

    Shapes: arrays by section index. Units: lengths, except where the name says tokens.
    """

    config: CaliberConfig
    measures: Measures
    sections: tuple[SectionPlan, ...]
    emission: tuple[SectionPlan, ...]
    by_rank: tuple[SectionPlan, ...]
    stable_first: bool
    separator: str
    separator_length: int
    message_length: int
    slack: int
    section_of_source: NDArray[np.int32]
    rank_priority: NDArray[np.int32]
    section_overhead: NDArray[np.int32]
    section_budget: NDArray[np.int32]
    overheads: list[int]
    by_name: dict[str, SectionPlan] = field(repr=False)
    user: SectionPlan

    @cached_property
    def estimator(self) -> Estimator:
        """The estimator itself. Raises: ExtraNotInstalled when it needs what is not here."""
        return estimator_of(self.config)

    @property
    def additive(self) -> bool:
        """Whether lengths of parts add up to the length of the whole."""
        return self.measures.additive

    @property
    def ruler(self) -> str:
        """What lengths depend on besides the text."""
        return "" if self.additive else f"{self.measures.estimator} {self.separator!r}"

    def measure(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the length of each text, as it is filled."""
        if not self.additive:
            texts = [text + self.separator for text in texts]
        return self.estimator.lengths_of(texts)

    def tokens(self, length: int) -> int:
        """Return the tokens of a text of this length."""
        return -(-length * self.measures.denominator // self.measures.numerator)

    def longest(self, tokens: int) -> int:
        """Return the greatest length that is at most so many tokens."""
        return tokens * self.measures.numerator // self.measures.denominator

    def whole_tokens(self, room: int) -> int:
        """Return the greatest number of tokens whose text certainly fits a length."""
        return max(0, room * self.measures.denominator // self.measures.numerator)

    def budget(self, max_tokens: int) -> int:
        """Return the most tokens of a window that was asked for with a limit."""
        return min(max_tokens, self.config.pcp.dosage.max_context_tokens)


def estimator_of(config: CaliberConfig) -> Estimator:
    """Return the estimator that a configuration names.

    Raises: ExtraNotInstalled when it needs what is not here.
    """
    tokens = config.tokens
    return open_estimator(tokens.estimator, bytes_per_token=tokens.bytes_per_token, vocabulary=tokens.vocabulary)


def _sections(config: CaliberConfig) -> list[tuple[str, SectionType, int, str]]:
    """Return name, type, source and header of each section a window can have, by index."""
    named: list[tuple[str, SectionType, int]] = [(kind.value, kind, source) for kind, source in _BUILT_IN]
    custom = [(name, SectionType.CUSTOM, EXTRA) for name, _ in config.section_priorities.custom]
    headers = config.assembly.section_headers
    return [
        (name, kind, source, f"# {_TITLES.get(kind, name)}\n" if headers else "")
        for name, kind, source in (*named[:2], *custom, *named[2:])
    ]


def section_count(config: CaliberConfig) -> int:
    """Return how many sections a window can have."""
    return len(_sections(config))


@lru_cache(maxsize=64)
def plan_of(config: CaliberConfig) -> AssemblyPlan:
    """Return the constants of a configuration, worked out at the first call.

    Raises: ExtraNotInstalled when its estimator needs what is not here.
    """
    estimator = estimator_of(config)
    lengths = estimator.lengths_of([config.assembly.separator, *(item[3] for item in _sections(config))]).tolist()
    measures = Measures(
        estimator=estimator.name,
        numerator=estimator.numerator,
        denominator=estimator.denominator,
        additive=estimator.additive,
        separator=lengths[0] if estimator.additive else 0,
        headers=tuple(lengths[1:]),
    )
    return plan_with(config, measures)


@lru_cache(maxsize=64)
def plan_with(config: CaliberConfig, measures: Measures) -> AssemblyPlan:
    """Return the constants of a configuration as an estimator measured it; the estimator need not be here."""
    assembly = config.assembly
    # A section's token count rounds up once: as much less than one token may be paid for nothing.
    slack = -(-(measures.numerator - 1) // measures.denominator)
    sections = [
        SectionPlan(
            index=index,
            name=name,
            type=kind,
            source=source,
            priority=config.section_priorities.of(name),
            cap_tokens=assembly.section_cap(name),
            header=header,
            header_length=measures.headers[index],
            compressible=kind is not SectionType.ARTIFACTS,
        )
        for index, (name, kind, source, header) in enumerate(_sections(config))
    ]
    stable_first = assembly.order == "stable_first"
    by_priority = sorted(sections, key=lambda section: (-section.priority, _SOURCE_ORDER.index(section.source)))
    caps = [
        UNCAPPED
        if section.cap_tokens is None
        else min(section.cap_tokens * measures.numerator // measures.denominator + slack, INT32_MAX)
        for section in sections
    ]
    of_source = np.zeros(len(SOURCES), np.int32)
    for section in sections:
        of_source[section.source] = section.index
    overheads = [section.header_length + measures.separator + slack for section in sections]
    return AssemblyPlan(
        config=config,
        measures=measures,
        sections=tuple(sections),
        emission=tuple(sections) if stable_first else tuple(by_priority),
        by_rank=tuple(sorted(by_priority, key=lambda section: section.source != SYSTEM)),
        stable_first=stable_first,
        separator=assembly.separator,
        separator_length=measures.separator,
        message_length=-(-assembly.message_overhead_tokens * measures.numerator // measures.denominator),
        slack=slack,
        section_of_source=of_source,
        # Instructions are never crowded out, whatever their section's priority (docs/decisions/0016).
        rank_priority=np.array([INT32_MAX if s.source == SYSTEM else s.priority for s in sections], np.int32),
        section_overhead=np.array(overheads, np.int32),
        section_budget=np.array(caps, np.int32),
        overheads=overheads,
        by_name={section.name: section for section in sections},
        user=sections[-1],
    )
