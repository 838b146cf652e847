"""Compiled injection rules, of a configuration or for one window, and why a rule's filter leaves a record out.

A configuration without rules has none of them, and the parser of filters is not imported.

Source: C-160 to C-165, C-217 to C-225, C-465, K-065, docs/decisions/0166.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caliber.config import CaliberConfig
from caliber.config.injection import CONVERSATION, InjectionKind, InjectionMode, InjectionRule, rule_names, section_of
from caliber.model.context import SectionType
from caliber.model.lazy_dataclass import dataclass
from caliber.schema.memories import window_of
from caliber.schema.memory_types import MemoryType
from caliber.schema.predicate import Predicate


@dataclass(frozen=True, slots=True)
class OneShot:
    """A rule for one window, requested by a trigger. ``origin`` names the requester, for explanations."""

    memory: str
    kind: InjectionKind
    count: int | None
    min_relevance: float | None
    origin: str


@dataclass(frozen=True, slots=True)
class RulePlan:
    """One rule. ``section`` names its section; ``text`` is its filter as written, ``predicate`` its compiled form.

    ``origin`` is set for a rule of one window.
    """

    name: str
    memory: str
    section: str
    type: SectionType
    mode: InjectionMode
    priority: int
    max_tokens: int | None
    text: str | None
    predicate: Predicate | None
    origin: str | None = None

    @property
    def kind(self) -> InjectionKind:
        """The mode's kind."""
        return self.mode.kind

    @property
    def shortens(self) -> bool:
        """True if its records enter abridged; a summary already is short."""
        window = window_of(self.memory)
        return self.kind is InjectionKind.SUMMARY and not (window is not None and window.brief)

    @property
    def asks(self) -> bool:
        """True if the selected records depend on the query."""
        return self.kind.ranks


def _type_of(memory: str, kind: InjectionKind) -> SectionType:
    """Return the type of a rule's section; turns that a rule ranks are recalled, and no part of the conversation."""
    if memory == CONVERSATION:
        return SectionType.RECALL if kind.ranks else SectionType.USER
    section = section_of(memory)
    return SectionType.CUSTOM if section is None else section


def rule_plans(config: CaliberConfig, once: Iterable[OneShot] = ()) -> tuple[RulePlan, ...]:
    """Return the rules of a configuration, best first: by priority, then as declared; those of one window come last.

    Raises: MultipleErrors for a filter that does not compile.
    """
    declared = config.injection_rules
    declarations = {memory.name: memory.declared for memory in config.memories}
    out = [
        _plan(rule, *names, declarations.get(rule.memory))
        for rule, names in zip(declared, rule_names(declared), strict=True)
    ]
    used_names = {name for rule in out for name in (rule.name, rule.section)}
    used_names.update(name for name, _ in config.section_priorities.custom)
    shots = list(_shots(config, out, once, used_names))
    return tuple(sorted([*out, *shots], key=lambda rule: -rule.priority))


def _plan(rule: InjectionRule, name: str, section: str, declared: MemoryType | None) -> RulePlan:
    predicate = None
    if rule.filter is not None:
        from caliber.dsl.filters import compile_filter
        from caliber.schema.binding import binding_of

        predicate = compile_filter(rule.filter, binding_of(declared, rule.memory), name=f"the filter of rule {name}")
    kind = _type_of(rule.memory, rule.mode.kind)
    return RulePlan(name, rule.memory, section, kind, rule.mode, rule.priority, rule.max_tokens, rule.filter, predicate)


def _shots(
    config: CaliberConfig, standing: Iterable[RulePlan], once: Iterable[OneShot], used_names: set[str]
) -> Iterator[RulePlan]:
    best: dict[str, int] = {}
    for rule in standing:
        best[rule.memory] = max(rule.priority, best.get(rule.memory, 0))
    for shot in once:
        name = base = f"once_{shot.memory}"
        number = 1
        while name in used_names:
            number += 1
            name = f"{base}_{number}"
        used_names.add(name)
        kind = _type_of(shot.memory, shot.kind)
        ordinary = kind.value if kind is not SectionType.CUSTOM else SectionType.NOTES.value
        priority = best.get(shot.memory, config.section_priorities.of(ordinary))
        mode = InjectionMode(kind=shot.kind, count=shot.count, min_relevance=shot.min_relevance)
        yield RulePlan(name, shot.memory, name, kind, mode, priority, None, None, None, shot.origin)
