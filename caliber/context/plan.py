"""What of a configuration an assembly needs, worked out once per configuration.

All lengths are bytes of UTF-8: the estimator turns bytes into tokens and rounds up, so bytes add up exactly where
tokens do not (docs/decisions/0016).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.kernels import BytesEstimator
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
    header_bytes: int
    compressible: bool


@dataclass(frozen=True, eq=False)
class AssemblyPlan:
    """The constants of one configuration.

    Shapes: arrays by section index. Units: bytes of UTF-8, except where the name says tokens.
    """

    config: CaliberConfig
    estimator: BytesEstimator
    sections: tuple[SectionPlan, ...]
    emission: tuple[SectionPlan, ...]
    by_rank: tuple[SectionPlan, ...]
    stable_first: bool
    separator: str
    separator_bytes: int
    message_bytes: int
    slack_bytes: int
    section_of_source: NDArray[np.int32]
    rank_priority: NDArray[np.int32]
    section_overhead: NDArray[np.int32]
    section_budget: NDArray[np.int32]
    overheads: list[int]
    section_budgets: list[int]
    by_name: dict[str, SectionPlan] = field(repr=False)
    user: SectionPlan

    def tokens(self, length: int) -> int:
        """Return the tokens of a text of ``length`` bytes."""
        return self.estimator.tokens_of_length(length)

    def whole_tokens(self, room: int) -> int:
        """Return the greatest number of tokens whose text certainly fits ``room`` bytes."""
        return max(0, room * self.estimator.denominator // self.estimator.numerator)


@lru_cache(maxsize=64)
def plan_of(config: CaliberConfig) -> AssemblyPlan:
    """Return the constants of a configuration, worked out at the first call."""
    assembly = config.assembly
    estimator = BytesEstimator(config.tokens.bytes_per_token)
    # A section's token count rounds up once: as many bytes less than one token may be paid for nothing.
    slack = -(-(estimator.numerator - 1) // estimator.denominator)
    separator_bytes = len(assembly.separator.encode())
    named: list[tuple[str, SectionType, int]] = [(kind.value, kind, source) for kind, source in _BUILT_IN]
    custom = [(name, SectionType.CUSTOM, EXTRA) for name, _ in config.section_priorities.custom]
    sections = []
    for index, (name, kind, source) in enumerate([*named[:2], *custom, *named[2:]]):
        title = _TITLES.get(kind, name)
        header = f"# {title}\n" if assembly.section_headers else ""
        sections.append(
            SectionPlan(
                index=index,
                name=name,
                type=kind,
                source=source,
                priority=config.section_priorities.of(name),
                cap_tokens=assembly.section_cap(name),
                header=header,
                header_bytes=len(header.encode()),
                compressible=kind is not SectionType.ARTIFACTS,
            )
        )
    stable_first = assembly.order == "stable_first"
    by_priority = sorted(sections, key=lambda section: (-section.priority, _SOURCE_ORDER.index(section.source)))
    caps = [
        UNCAPPED if s.cap_tokens is None else min(estimator.longest(s.cap_tokens) + slack, INT32_MAX) for s in sections
    ]
    of_source = np.zeros(len(SOURCES), np.int32)
    for section in sections:
        of_source[section.source] = section.index
    overheads = [section.header_bytes + separator_bytes + slack for section in sections]
    return AssemblyPlan(
        config=config,
        estimator=estimator,
        sections=tuple(sections),
        emission=tuple(sections) if stable_first else tuple(by_priority),
        by_rank=tuple(sorted(by_priority, key=lambda section: section.source != SYSTEM)),
        stable_first=stable_first,
        separator=assembly.separator,
        separator_bytes=separator_bytes,
        message_bytes=-(-assembly.message_overhead_tokens * estimator.numerator // estimator.denominator),
        slack_bytes=slack,
        section_of_source=of_source,
        # Instructions are never crowded out, whatever their section's priority (docs/decisions/0016).
        rank_priority=np.array([INT32_MAX if s.source == SYSTEM else s.priority for s in sections], np.int32),
        section_overhead=np.array(overheads, np.int32),
        section_budget=np.array(caps, np.int32),
        overheads=overheads,
        section_budgets=caps,
        by_name={section.name: section for section in sections},
        user=sections[-1],
    )
