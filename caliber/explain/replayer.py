"""Replay: rebuilds a recorded window byte for byte from its record and the content versions of that time.

Ranking and filling run again over the recorded columns; only the content of included records is read. The bytes are the
same even after sources were changed, merged, pruned or expired (design, section 5).

A window's record holds the relevance of its candidates only. A record that a limit cut off is scored against present
memory. A dry run reports the records that each injection rule selected for a window, and what became of them: issue
"The DSL and the policy engine", item 5.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.context.assembler import Assembled, check_budget, fixed_texts
from caliber.context.columns import DISPUTED, MARK, ORDINAL, OUTDATED, SECTION, SOURCE, VERSION, entered, rank
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.filling.fill import fill
from caliber.context.filling.filled import Filled
from caliber.context.gather.asking import DefaultQuery
from caliber.context.gather.candidates import members_of, pool_of_rules, pools_of
from caliber.context.gather.recall import pools_of_recall, request_of
from caliber.context.gather.rule_selection import FILTER
from caliber.context.gather.scores import Flat, scorer_of
from caliber.context.inputs import AssemblyInputs, ContentSource, TextSource, WindowFacts
from caliber.context.plan import AssemblyPlan, SectionPlan, plan_of, plan_with, section_count, source_type_of
from caliber.context.record.record import Record, content_hash, unpack_record
from caliber.context.texts import DISPUTED_LEAD, RenderedTexts, TurnText, about_line, text_of_content, turn_of_content
from caliber.context.trace import Decided, rule_id_of
from caliber.context.window import build_window, cut_texts, filled_sections
from caliber.kernels.evaluator import Allowed
from caliber.model.errors import InvalidValue, NotFound, StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import ContextWindow, CutOff
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot


def replay(record: bytes, config: CaliberConfig, contents: ContentSource) -> ContextWindow:
    """Return the window of a record: same text, messages, sections and trace, byte for byte.

    Raises: StorageError for a damaged record, or one that no longer gives the same decisions; InvalidValue when the
    configuration is another one than the window's; NotFound naming the source whose content was removed for good.
    """
    kept = unpack_record(record)
    plan = plan_for(kept, config)
    facts = replace(kept.facts, measures=plan.measures, cut_offs=with_conditions(kept.facts.cut_offs, plan))
    filled = decide_again(kept, plan)
    rendered = _render(kept, plan, contents)

    def id_of(place: int) -> uuid.UUID | None:
        return identity_of(kept, contents, place)

    shown = cut_texts(plan, kept.ranked, kept.sizes, filled, rendered, kept.known_cuts)
    return build_window(facts, decided_again(kept, plan, filled, shown), rendered, id_of)


def with_conditions(cut_offs: tuple[CutOff, ...], plan: AssemblyPlan) -> tuple[CutOff, ...]:
    """Return cut-offs by rules with the filters that they are by, which the configuration keeps."""
    texts = {section.rule.name: section.rule.text for section in plan.sections if section.rule is not None}
    return tuple(
        replace(item, condition=texts.get(item.rule)) if item.rule is not None and item.filter == FILTER else item
        for item in cut_offs
    )


def decided_again(record: Record, plan: AssemblyPlan, filled: Filled, shown: NDArray[np.int64]) -> Decided:
    """Return the decisions about a window, its tokens as they were counted then."""
    ranked, sizes = record.ranked, record.sizes
    return Decided(plan, record.facts.max_tokens, ranked, filled, sizes, shown, record.reserve, record.counts)


def plan_for(record: Record, config: CaliberConfig) -> AssemblyPlan:
    """Return the constants of the window's configuration.

    Raises: InvalidValue, StorageError.
    """
    if config.hash.hex() != record.facts.config_hash:
        raise InvalidValue(field="config", reason="the window was assembled under another configuration")
    plan = _measured(record.facts, config)
    sections = record.ranked[SECTION]
    if len(sections):
        if int(sections.min()) < 0 or int(sections.max()) >= len(plan.sections):
            raise StorageError("a window's record names a section that its configuration does not have")
        pairs = set(zip(sections.tolist(), record.ranked[SOURCE].tolist(), strict=True))
        if not all(plan.sections[section].holds(source) for section, source in pairs):
            raise StorageError("a window's record has a source in a section of another kind")
    check_budget(record.facts.max_tokens, config.token_budget)
    return plan


def _measured(facts: WindowFacts, config: CaliberConfig) -> AssemblyPlan:
    """Return the constants of a configuration as measured at that time, whatever estimator is installed now."""
    measures = facts.measures
    if len(measures.headers) != section_count(config, facts.once):
        raise StorageError("a window's record has other sections than its configuration")
    return plan_with(config, measures, facts.once)


def decide_again(record: Record, plan: AssemblyPlan) -> Filled:
    """Run ranking and filling over the recorded columns.

    Raises: StorageError when they decide otherwise than they did.
    """
    ranked, codes = rank(record.ranked, plan)
    if not np.array_equal(ranked[ORDINAL], record.ranked[ORDINAL]) or not np.array_equal(codes, record.undecided):
        raise StorageError("a window's record does not rank again as it did")
    filled = fill(record.ranked, codes, record.sizes, plan, record.facts.max_tokens, record.reserve)
    if not np.array_equal(filled.codes, record.codes):
        raise StorageError("a window's record does not fill again as it did")
    if set(record.cuts) != {item.place for item in filled.truncations}:
        raise StorageError("a window's record does not cut again as it did")
    return filled


def identity_of(record: Record, contents: ContentSource, place: int) -> uuid.UUID | None:
    """Return the id of a candidate, recorded or looked up; None for one that is hidden by now."""
    relation, ordinal = record.facts.relation_of(int(record.ranked[SOURCE][place])), int(record.ranked[ORDINAL][place])
    return None if relation is None else contents.identity(relation, ordinal, record.ids.get(place))


def _render(record: Record, plan: AssemblyPlan, contents: ContentSource) -> RenderedTexts:
    if record.erased:
        raise _gone(record, min(record.erased), "it was forgotten")
    if record.erased_sections:
        window_id = record.facts.window_id
        raise NotFound(
            "an extra section is gone: what it named was forgotten, so the window cannot be replayed",
            entity_type="context_window",
            id=window_id,
        )
    ranked = record.ranked
    by_section = {item.section: item.text for item in fixed_texts(plan, dict(record.facts.extra_sections))}
    out: dict[int, str] = {}
    turns: dict[int, TurnText] = {}
    speakers: dict[int, str] = {}
    for place in entered(record.codes).tolist():
        source = int(ranked[SOURCE][place])
        relation = record.facts.relation_of(source)
        if relation is None:
            text = by_section.get(int(ranked[SECTION][place]))
            if text is None:
                raise StorageError("a window's record includes a section that has no text")
            out[place] = text
            continue
        ordinal, version = int(ranked[ORDINAL][place]), int(ranked[VERSION][place])
        content = contents.content(relation, ordinal, version)
        if content is None:
            raise _gone(record, place, "its content was removed")
        if source == SPOKEN:
            turns[place] = turn_of_content(content)
            out[place] = turns[place].text
        elif source == PASSAGE:
            turn = replace(turn_of_content(content), outdated=bool(ranked[MARK][place] & OUTDATED))
            short = record.shortened.get(place)
            out[place], speakers[place] = turn.line if short is None else short.of(turn.line), turn.speaker
        else:
            if source not in plan.records:
                raise StorageError("a window's record names a memory that its configuration does not have")
            short = record.shortened.get(place)
            lead = DISPUTED_LEAD if ranked[MARK][place] & DISPUTED else ""
            text = text_of_content(plan.records[source], content)
            if plan.about is not None and int(ranked[SECTION][place]) == plan.about.index:
                text = about_line(content[plan.records[source].in_windows.shown[-1]])
            out[place] = lead + (text if short is None else short.of(text))
        if content_hash(out[place]) != record.hashes[place]:
            raise _gone(record, place, "what it said then was not kept")
    return RenderedTexts(out, lambda places: [turns[place] for place in places], speakers=speakers)


def _gone(record: Record, place: int, reason: str) -> NotFound:
    kind = source_type_of(int(record.ranked[SOURCE][place])).value
    record_id = record.ids.get(place)
    return NotFound(
        f"{kind} {record_id} is gone: {reason}, so the window cannot be replayed", entity_type=kind, id=record_id
    )


if TYPE_CHECKING:
    from caliber.search.searcher import Searcher


@dataclass(frozen=True, slots=True)
class CurrentScore:
    """The present relevance of a record, and the share of each part of the search."""

    score: float
    breakdown: Mapping[str, float] = field(default_factory=dict)


def rebuild_inputs(
    facts: WindowFacts, snapshot: ResidentSnapshot, config: CaliberConfig, masks: Mapping[str, Allowed]
) -> AssemblyInputs:
    """Return the inputs of a window over another snapshot."""
    return AssemblyInputs(
        snapshot=snapshot,
        trajectory_id=facts.trajectory_id,
        max_tokens=facts.max_tokens,
        as_of_us=facts.as_of_us,
        now_us=facts.now_us,
        window_id=facts.window_id,
        config=config,
        config_hash=facts.config_hash,
        principal=facts.principal,
        masks=masks,
        query=facts.query,
        query_from=facts.query_from,
        query_embedding=facts.query_embedding,
        space_id=facts.space_id,
        extra_sections=facts.extra_sections,
        once=facts.once,
    )


def score_now(
    inputs: AssemblyInputs, owners: RelationSnapshot, row: int, searcher: Searcher, texts: TextSource
) -> CurrentScore | None:
    """Return the relevance of one row, or None: it is not eligible, or has no vector."""
    plan = plan_of(inputs.config, inputs.once)
    kind = owners.relation.name
    rows = np.array([row], np.int64)
    if plan.config.assembly.relevance == "vector":
        return _similarity(inputs, owners, rows)
    if plan.config.recall.limit and not plan.governed:
        return _recalled(inputs, plan, owners, row, searcher)
    members = members_of(inputs, plan, searcher)
    found = pool_of_rules(inputs, plan, members, kind, row, searcher, texts) if plan.rule_sections else None
    pools = {pool.kind: pool for pool in pools_of(inputs, plan, members)} if found is None else {kind: found}
    pool = pools.get(kind)
    if pool is None:
        return None
    allowed = pool.allowed
    if allowed is None:
        allowed = searcher.visibility(owners, inputs.readers, inputs.as_of_us, inputs.now_us).visible
    if not allowed[row]:
        return None
    # All rows that may enter: a limit does not count here.
    every = np.flatnonzero(allowed)
    pools[kind] = replace(pool, rows=every)
    scorer = scorer_of(inputs, plan, lambda: list(pools.values()), searcher)
    if isinstance(scorer, Flat):
        return None
    scored = scorer.score(kind, owners, every).at(np.searchsorted(every, rows))
    parts = {name: float(part[0]) for name, part in scored.parts.items() if part[0]}
    return CurrentScore(float(scored.relevance[0]), parts)


def _recalled(
    inputs: AssemblyInputs, plan: AssemblyPlan, owners: RelationSnapshot, row: int, searcher: Searcher
) -> CurrentScore | None:
    """Return the search result of a recalling window for one row."""
    if inputs.query_embedding is None and not (inputs.query or "").strip():
        return None
    pools = [pool for _, pool in pools_of_recall(inputs, plan, searcher, np.empty(0, np.int64))[0]]
    at = next((at for at, pool in enumerate(pools) if pool.kind == owners.relation.name), None)
    allowed = None if at is None else pools[at].allowed
    if at is None or allowed is None or not allowed[row]:
        return None
    pools[at] = replace(pools[at], rows=np.array([row], np.int64))
    found = searcher.relevance(request_of(inputs, plan), pools, together=True)[0][at]
    parts = {name: float(part[0]) for name, part in found.parts.items() if part[0]}
    return CurrentScore(min(1.0, float(found.scores[0])), parts)


def _similarity(inputs: AssemblyInputs, owners: RelationSnapshot, rows: np.ndarray) -> CurrentScore | None:
    if inputs.query_embedding is None or inputs.space_id is None:
        return None
    vectors = inputs.snapshot.vectors.get((owners.relation.name, inputs.space_id))
    if vectors is None or vectors.dimensions != len(inputs.query_embedding):
        return None
    scores, present = vectors.scores(inputs.query_embedding, owners, rows)
    return CurrentScore(float(scores[0])) if present[0] else None


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One rule. ``once`` names the origin of a rule that holds for this window alone.

    Units: of ``considered`` records the filter matched ``through``, the rule selected ``selected``, and ``included``
    fit the budget. ``cost_tokens`` is the cost of all selected records, ``used_tokens`` that of the finished section;
    ``excluded`` counts selected records that are not in the window, by reason.
    """

    rule: str
    section: str
    memory: str
    mode: str
    filter: str | None
    priority: int
    cap_tokens: int | None
    considered: int
    through: int
    selected: int
    cost_tokens: int
    included: int
    used_tokens: int
    excluded: dict[str, int]
    once: str | None = None


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """A window that is not stored, and each rule's outcome, best first. Units: ``left_tokens`` of its budget."""

    window: ContextWindow
    rules: tuple[RuleOutcome, ...]
    left_tokens: int
    query: str | None
    query_from: str
    """Where the query came from: the caller, the last user turn, or the goal of the task."""


def window_plan(assembled: Assembled, query: DefaultQuery) -> WindowPlan:
    """Return the selection of each rule of a window, and its cost."""
    decided, window = assembled.decided, assembled.window
    plan = decided.plan
    out = [_outcome(assembled, (take.section,), take.considered, take.through) for take in assembled.selections]
    if plan.user.rule is not None:
        cuts = [cut for cut in window.cut_offs if cut.rule == plan.user.rule.name]
        count = int(np.count_nonzero(np.isin(decided.ranked[SECTION], [item.index for item in plan.conversation])))
        out.append(_outcome(assembled, plan.conversation, *_of_conversation(cuts, count)))
    out.sort(key=lambda item: -item.priority)
    unused = plan.budget(window.max_tokens) - window.used_tokens
    return WindowPlan(window, tuple(out), unused, query.text, query.origin)


def _of_conversation(cuts: list[CutOff], count: int) -> tuple[int, int]:
    """Return how many turns there were, and how many matched the filter; cut-offs record both."""
    for cut in cuts:
        if cut.filter == FILTER:
            return cut.considered, cut.kept or 0
    return (cuts[0].considered,) * 2 if cuts else (count, count)


def _outcome(assembled: Assembled, sections: Sequence[SectionPlan], considered: int, through: int) -> RuleOutcome:
    decided, section, rule = assembled.decided, sections[0], sections[0].rule
    assert rule is not None
    places = np.flatnonzero(np.isin(decided.ranked[SECTION], [item.index for item in sections]))
    codes = decided.filled.codes[places]
    included = len(entered(codes))
    reasons = Counter(rule_id_of(code) for code in codes.tolist())
    for code in set(codes[entered(codes)].tolist()):
        del reasons[rule_id_of(code)]
    return RuleOutcome(
        rule=rule.name,
        section=section.name,
        memory=rule.memory,
        mode=rule.mode.shown,
        filter=rule.text,
        priority=rule.priority,
        cap_tokens=section.cap_tokens,
        considered=considered,
        through=through,
        selected=len(places),
        cost_tokens=sum(decided.tokens(place) for place in places.tolist()),
        included=included,
        used_tokens=sum(item.tokens for item in filled_sections(decided) if item.section in sections),
        excluded=dict(sorted(reasons.items())),
        once=rule.origin,
    )
