"""Assembly plan: sections, priorities, shares and limits of a configuration, precomputed once per configuration.

All lengths are in the estimator's unit, which it turns into tokens, rounding up. Bytes add up exactly where tokens do
not (docs/decisions/0016). Under other estimators a text is measured with the separator after it, since vocabularies
read it that way, and a separator by itself has no length (docs/decisions/0016).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.config.injection import CONVERSATION
from caliber.context.conversation import PASSAGE, SPOKEN, SUMMARY, TURNS
from caliber.context.rules import OneShot, RulePlan, rule_plans
from caliber.engine.refusals import estimator_of
from caliber.kernels import Estimator
from caliber.model.context import Reach, SectionType, SourceType
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.memories import BUILT_IN, holds_blocks
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.schema.traits import Enters

INT32_MAX: Final = 2**31 - 1
UNCAPPED: Final = -1
_EXCERPT_LEAST, _EXCERPT_MOST, _EXCERPT_SHARE = 60, 200, 0.3

SYSTEM, PERSONA, EXTRA = 0, 1, 6
"""The numbers of sources that are texts, not records. Stored windows hold these numbers: none ever changes."""
OWN: Final = 16
"""The source of the first declared memory of a configuration; the others follow in its order."""

RECORDS: Final[Mapping[int, Relation]] = {
    SPOKEN: BY_NAME[TURNS],
    **{relation.window.number: relation for relation in BY_NAME.values() if relation.window is not None},
}
"""The built-in relations that windows use, by source. A turn has two: in the conversation, and recalled."""
_NO_RESULT_TOKENS: Final = 4
"""Tokens of the text that stands for a missing result of a call in messages; estimators count 3 or 4."""
_TEXTS: Final = {SYSTEM: SourceType.SYSTEM, PERSONA: SourceType.PERSONA, EXTRA: SourceType.EXTRA}
SOURCES: Final = frozenset((*_TEXTS, *RECORDS))


def source_type_of(source: int) -> SourceType:
    """Return the kind of source for a number."""
    relation = RECORDS.get(source)
    if relation is not None:
        return relation.in_windows.source_type
    return _TEXTS.get(source, SourceType.MEMORY)


def source_numbers() -> dict[SourceType, int]:
    """Return the number of each kind of source outside of the conversation."""
    kinds = {source_type_of(number): number for number in sorted(SOURCES)}
    return kinds | {SourceType.MEMORY: OWN}


def has_records(sources: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the candidates that are records, not texts of the configuration or of a caller."""
    return ~is_any_of(sources, _TEXTS)


def is_any_of(values: NDArray[np.int64], few: Iterable[int]) -> NDArray[np.bool_]:
    """Return the mask of the values that are one of a few: for these, ``np.isin`` takes ten times as long."""
    found = np.zeros(len(values), np.bool_)
    for each in few:
        found |= values == each
    return found


_TITLES: Final = {
    SectionType.SYSTEM: "System",
    SectionType.PERSONA: "Persona",
    SectionType.ABOUT_USER: "About the user",
    SectionType.HISTORY: "History",
    SectionType.ARTIFACTS: "Artifacts",
    SectionType.NOTES: "Notes",
    SectionType.RECALL: "From earlier",
    SectionType.USER: "Conversation",
    SectionType.EARLIER: "Earlier in this conversation",
    SectionType.TOLD: "In the user's words",
    SectionType.CURRENT: "Now",
}
"""Sections from constant text to text that changes with every turn; notes and artifacts follow the query."""
_PLACES: Final = list(_TITLES)


_FIRST: Final = {record.in_windows.section: at for at, record in sorted(RECORDS.items(), reverse=True) if at != SPOKEN}
_STANDING: Final = {kind: _FIRST[kind] for kind in _PLACES if kind in _FIRST}
"""The first source of each section of records, in the order of sections."""
_PEOPLE: Final = next(each for each, record in RECORDS.items() if record.erase is not None and record.erase.people)
_CHOSEN: Final = {SectionType.ABOUT_USER: _PEOPLE, SectionType.EARLIER: PASSAGE, SectionType.TOLD: PASSAGE}
"""Sections that a configuration has where it gives them a share, with their sources."""
_SOURCE_OF: Final = {
    name: memory.relation.window.number for name, memory in BUILT_IN.items() if memory.relation.window is not None
}
"""The source of each built-in memory that rules can name."""


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
    rule: RulePlan | None = None
    floor: float = 0.0
    """Share of the budget that is kept for it, under a shared budget."""
    cap: float = 1.0
    """Share of the budget beyond which others come first; by priority, beyond which nothing enters."""

    def holds(self, source: int) -> bool:
        """Return whether a section may hold records of a source."""
        if source == self.source:
            return True
        if self.type is SectionType.PERSONA:
            return source >= OWN
        if self.type is SectionType.RECALL:
            return source != SPOKEN and source not in _TEXTS
        return source in RECORDS and source != SPOKEN and RECORDS[source].in_windows.section is self.type


@dataclass(frozen=True, slots=True)
class Measures:
    """An estimator's measurements of a configuration; stored with each window, so that replay need not measure.

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
    """The sections in the order in which they are filled by priority; empty where they share the budget."""
    stable_first: bool
    separator: str
    separator_length: int
    message_length: int
    no_result_tokens: int
    slack: int
    section_of_source: NDArray[np.int32]
    rank_priority: NDArray[np.int32]
    overheads: list[int]
    by_name: dict[str, SectionPlan] = field(repr=False)
    user: SectionPlan
    current: SectionPlan
    """The section of the last user message and the turns after it: ``user`` where sections stand by priority."""
    earlier: SectionPlan | None = None
    """The section of turns that left the conversation, in room that nothing else needs; not with rules."""
    about: SectionPlan | None = None
    """The section of what is known of the user, and the source of it; not with rules."""
    blocks: int | None = None
    """The source of memory blocks, which stand in the section of the persona."""
    dated: bool = False
    """Whether turns carry their days: where there can be a section about the user."""
    told: SectionPlan | None = None
    """The section of messages of the user that no query asks for; not with rules."""
    rule_sections: tuple[SectionPlan, ...] = ()
    """The sections of rules that bring records, in the order in which they take them."""
    governed: bool = False
    """Whether records enter by rules only."""
    turns_by_rules_only: bool = False
    """Whether older turns enter only as rules rank them."""
    records: Mapping[int, Relation] = field(default_factory=lambda: RECORDS)
    """The relations that the window uses, by source."""
    reach: Reach = Reach.TRAJECTORY
    """Of which tasks records may be recalled."""
    most: tuple[tuple[tuple[int, ...], int], ...] = ()
    """Limits on the number of records of several sources together."""
    compresses: bool = False
    """Whether records that do not fit whole enter compressed."""

    @cached_property
    def declared(self) -> dict[int, str]:
        """The relations of declared memories by source."""
        return {source: relation.name for source, relation in self.records.items() if source >= OWN}

    @cached_property
    def entering(self) -> dict[Enters, list[int]]:
        """The sources of records that something brings into windows without rules."""
        of = {source: relation.in_windows.enters for source, relation in self.records.items()}
        return {enters: [source for source, its in of.items() if its is enters] for enters in Enters}

    @cached_property
    def fixed(self) -> tuple[int, ...]:
        """The sections of the persona, blocks and texts of the caller, which no query changes."""
        return tuple(section.index for section in self.sections if section.source in (PERSONA, EXTRA))

    @cached_property
    def history_index(self) -> int:
        """The section of summaries of the task itself."""
        return int(self.section_of_source[SUMMARY])

    @cached_property
    def conversation(self) -> tuple[SectionPlan, ...]:
        """The sections of the conversation: one where sections stand by priority, else two."""
        return (self.user,) if self.current is self.user else (self.user, self.current)

    def section_of_record(self, source: int) -> int:
        """Return the section of a record without rules: that of its kind, or the section of all that is recalled."""
        kind = self.records[source].in_windows.section
        shown_source = PASSAGE if source == SUMMARY else _STANDING[kind]
        return int(self.section_of_source[shown_source])

    @cached_property
    def estimator(self) -> Estimator:
        """The estimator itself. Raises: ExtraNotInstalled when its package is missing."""
        return estimator_of(self.config)

    @cached_property
    def by_rule(self) -> NDArray[np.bool_]:
        """The mask of sections that a rule fills."""
        return np.array([section.rule is not None for section in self.sections])

    @cached_property
    def additive(self) -> bool:
        """True if lengths of parts add up to the length of the whole."""
        return self.measures.additive

    @cached_property
    def line_length(self) -> int:
        """The length of the separator of two lines of a passage; other estimators count it with the text before it."""
        return 1 if self.additive else 0

    @cached_property
    def hole_length(self) -> int:
        """The length of the line that marks turns left out of a passage; of other estimators, the most it may be."""
        return 4 if self.additive else 3

    @cached_property
    def ruler(self) -> str:
        """The parameters that lengths depend on, besides the text."""
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
        """Return the greatest length that is at most the given number of tokens."""
        return tokens * self.measures.numerator // self.measures.denominator

    def length_of(self, tokens: int) -> int:
        """Return the least length that certainly is so many tokens."""
        return -(-tokens * self.measures.numerator // self.measures.denominator)

    def whole_tokens(self, room: int) -> int:
        """Return the greatest number of tokens whose text certainly fits a length."""
        return max(0, room * self.measures.denominator // self.measures.numerator)

    def section_budget(self, max_tokens: int) -> list[int]:
        """Return the greatest length of each section, -1 if unlimited: by its rule, and by its cap with priorities.

        A cap includes the rounding of the section's own token count.
        """
        out = []
        for section in self.sections:
            caps = [] if section.cap_tokens is None else [section.cap_tokens]
            if self.by_rank and section.cap < 1.0:
                caps.append(int(section.cap * self.budget(max_tokens)))
            out.append(self.longest(min(caps)) + self.slack if caps else UNCAPPED)
        return out

    def excerpt_length(self, max_tokens: int) -> int:
        """Return the length from which on a recalled turn enters as an excerpt, which is no longer than that."""
        share = int(_EXCERPT_SHARE * self.budget(max_tokens))
        return self.longest(min(_EXCERPT_MOST, max(_EXCERPT_LEAST, share)))

    def cap_of(self, section: SectionPlan, max_tokens: int) -> int | None:
        """Return the hard limit of a section's tokens, or None."""
        length = self.section_budget(max_tokens)[section.index]
        return None if length == UNCAPPED else self.tokens(length - self.slack)

    def budget(self, max_tokens: int) -> int:
        """Return the hard limit of tokens for a window with the requested limit."""
        return min(max_tokens, self.config.pcp.dosage.max_context_tokens)


@dataclass(frozen=True, slots=True)
class _Named:
    """A section before it is measured."""

    name: str
    type: SectionType
    source: int
    header: str
    rule: RulePlan | None = None


def _sections(config: CaliberConfig, rules: Sequence[RulePlan]) -> list[_Named]:
    """Return each section a window can have, by index: the conversation's is the last."""
    headers = config.assembly.section_headers

    def named(name: str, kind: SectionType, source: int, rule: RulePlan | None = None) -> _Named:
        ordinary = rule is None or rule.section == kind.value
        title = _TITLES.get(kind, name) if ordinary else name
        return _Named(name, kind, source, f"# {title}\n" if headers else "", rule)

    texts = ((SectionType.SYSTEM, SYSTEM), (SectionType.PERSONA, PERSONA))
    fixed = [named(kind.value, kind, source) for kind, source in texts]
    custom = [named(name, SectionType.CUSTOM, EXTRA) for name, _ in config.section_priorities.custom]
    sources = {**{memory.name: OWN + at for at, memory in enumerate(config.memories)}, **_SOURCE_OF}
    bringing = [(rule, sources[rule.memory]) for rule in rules if not speaks(rule)]
    bringing.sort(key=lambda item: (item[0].origin is not None, _steadiness(item[1])))
    brought = [named(rule.section, rule.type, source, rule) for rule, source in bringing]
    spoken = next((rule for rule in rules if speaks(rule) and rule.origin is None), None)
    conversation = named(SectionType.USER.value, SectionType.USER, SPOKEN, spoken)
    standing = [] if config.injection_rules else [named(kind.value, kind, source) for kind, source in _STANDING.items()]
    if config.assembly.order != "stable_first":
        return [*fixed, *custom, *standing, *brought, conversation]
    # Records that follow the query stand after the older turns and before the last user message.
    lead = [item for item in (*standing, *brought) if item.source == SUMMARY]
    following = [item for item in (*standing, *brought) if item.source != SUMMARY]
    current = named(SectionType.CURRENT.value, SectionType.CURRENT, SPOKEN)
    chosen = {kind: source for kind, source in _CHOSEN.items() if standing and kind in config.assembly.section_shares}
    about, earlier, told = ([named(kind.value, kind, chosen[kind])] if kind in chosen else [] for kind in _CHOSEN)
    return [*fixed, *custom, *about, *lead, conversation, *earlier, *told, *following, current]


def speaks(rule: RulePlan) -> bool:
    """Return whether a rule is about the conversation itself, and does not rank turns."""
    return rule.memory == CONVERSATION and not rule.asks


def _steadiness(source: int) -> tuple[int, int]:
    """Return the sort key of sources by how seldom they change."""
    kind = RECORDS[source].in_windows.section if source in RECORDS else SectionType.RECALL
    return _PLACES.index(kind), source


def _place(source: int) -> tuple[int, int]:
    """Return the sort key of sources of equal priority; texts of a caller follow the persona (C-449)."""
    return (PERSONA, source) if source == EXTRA else (source, 0)


def _declared(config: CaliberConfig) -> dict[int, Relation]:
    """Return the relations of the declared memories of a configuration, by source."""
    from caliber.schema.declared_memories import bind_declared, is_own

    declared = [memory.declared for memory in config.memories]
    return {OWN + at: bind_declared(memory, 0).relation for at, memory in enumerate(declared) if is_own(memory)}


def _most(config: CaliberConfig, records: Mapping[int, Relation]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return the limits on records per group of sources in one window: sources of one knob share its limit."""
    shared: dict[str, list[int]] = {}
    for source, relation in records.items():
        if source != SPOKEN and relation.in_windows.most is not None:
            shared.setdefault(relation.in_windows.most, []).append(source)
    return tuple((tuple(sources), config.pcp.dosage.most(knob)) for knob, sources in shared.items())


def section_count(config: CaliberConfig, once: tuple[OneShot, ...] = ()) -> int:
    """Return how many sections a window can have."""
    return len(_sections(config, _rules(config, once)))


@lru_cache(maxsize=64)
def _rules(config: CaliberConfig, once: tuple[OneShot, ...]) -> tuple[RulePlan, ...]:
    return rule_plans(config, once) if once or config.injection_rules else ()


@lru_cache(maxsize=64)
def plan_of(config: CaliberConfig, once: tuple[OneShot, ...] = ()) -> AssemblyPlan:
    """Return the constants of a configuration, and of rules for one window; computed at the first call.

    Raises: ExtraNotInstalled when its estimator's package is missing; MultipleErrors for a filter that does not
    compile.
    """
    estimator = estimator_of(config)
    headers = [item.header for item in _sections(config, _rules(config, once))]
    lengths = estimator.lengths_of([config.assembly.separator, *headers]).tolist()
    measures = Measures(
        estimator=estimator.name,
        numerator=estimator.numerator,
        denominator=estimator.denominator,
        additive=estimator.additive,
        separator=lengths[0] if estimator.additive else 0,
        headers=tuple(lengths[1:]),
    )
    return plan_with(config, measures, once)


@lru_cache(maxsize=64)
def plan_with(config: CaliberConfig, measures: Measures, once: tuple[OneShot, ...] = ()) -> AssemblyPlan:
    """Return the constants of a configuration as an estimator measured it; the estimator need not be here."""
    assembly = config.assembly
    # A section's token count rounds up once: as much less than one token may be paid for nothing.
    slack = -(-(measures.numerator - 1) // measures.denominator)
    rules = _rules(config, once)
    spoken = next((rule for rule in rules if speaks(rule) and rule.origin is None), None)
    stable_first = assembly.order == "stable_first"
    sections = [
        SectionPlan(
            index=index,
            name=item.name,
            type=item.type,
            source=item.source,
            priority=config.section_priorities.of(item.name) if item.rule is None else item.rule.priority,
            cap_tokens=None if item.rule is None else item.rule.max_tokens,
            header=item.header,
            header_length=measures.headers[index],
            compressible=item.source not in RECORDS or not RECORDS[item.source].in_windows.whole,
            rule=item.rule,
            floor=_share(config, item)[0],
            cap=_share(config, item)[1],
        )
        for index, item in enumerate(_sections(config, rules))
    ]
    by_priority = sorted(sections, key=lambda section: (-section.priority, _place(section.source)))
    of_source = np.zeros(OWN, np.int32)
    for section in sections:
        ordinary = section.rule is None or section.source == SPOKEN
        if ordinary and section.type not in (SectionType.CURRENT, *_CHOSEN):
            of_source[section.source] = section.index
    records = {**RECORDS, **(_declared(config) if config.memories else {})}
    overheads = [section.header_length + measures.separator + slack for section in sections]
    return AssemblyPlan(
        config=config,
        measures=measures,
        sections=tuple(sections),
        emission=tuple(sections) if stable_first else tuple(by_priority),
        by_rank=() if stable_first else tuple(sorted(by_priority, key=lambda section: section.source != SYSTEM)),
        stable_first=stable_first,
        separator=assembly.separator,
        separator_length=measures.separator,
        message_length=-(-assembly.message_overhead_tokens * measures.numerator // measures.denominator),
        no_result_tokens=assembly.message_overhead_tokens + _NO_RESULT_TOKENS,
        slack=slack,
        section_of_source=of_source,
        # Instructions always fit, whatever their section's priority (docs/decisions/0016).
        rank_priority=np.array([_rank(section, shared=stable_first) for section in sections], np.int32),
        overheads=overheads,
        by_name={section.name: section for section in sections},
        user=next(section for section in sections if section.type is SectionType.USER and section.source == SPOKEN),
        current=sections[-1],
        about=next((section for section in sections if section.type is SectionType.ABOUT_USER), None),
        earlier=next((section for section in sections if section.type is SectionType.EARLIER), None),
        blocks=next((OWN + at for at, each in enumerate(config.memories) if holds_blocks(each.declared)), None),
        dated=any(section.type is SectionType.ABOUT_USER for section in sections),
        told=next((section for section in sections if section.type is SectionType.TOLD), None),
        rule_sections=tuple(
            next(section for section in sections if section.rule is rule) for rule in rules if not speaks(rule)
        ),
        governed=bool(config.injection_rules),
        turns_by_rules_only=spoken is None
        and any(rule.memory == CONVERSATION and rule.origin is None for rule in rules),
        records=records,
        reach=config.recall.reach,
        most=_most(config, records),
        compresses=assembly.overflow_policy == "compress",
    )


def _share(config: CaliberConfig, item: _Named) -> tuple[float, float]:
    """Return floor and cap of a section. Rules share a budget strictly by priority: of theirs max_tokens is all."""
    floor, cap = config.assembly.share(item.name)
    if config.assembly.order == "priority":
        return 0.0, cap
    return (floor, cap) if item.rule is None or item.source == SPOKEN else (0.0, 1.0)


def _rank(section: SectionPlan, *, shared: bool) -> int:
    """Return the rank at which a section is filled; a shared budget ranks all records alike."""
    if section.source == SYSTEM:
        return INT32_MAX
    if not shared or section.rule is not None:
        return min(section.priority, INT32_MAX - 3)
    if section.source in (PERSONA, EXTRA):
        return INT32_MAX - 1
    return INT32_MAX - 2 if section.source == SPOKEN else 0
