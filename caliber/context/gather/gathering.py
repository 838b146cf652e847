"""Candidate gathering of an assembly: the conversation, recalled records, records of the task, and those of rules.

Source: design section 5 (What a window is for), docs/windows.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.cron import zone_of
from caliber.context import limits
from caliber.context.columns import (
    DAY,
    LEAD,
    LENGTH,
    MARK,
    MUST,
    OF_TASK,
    OUTDATED,
    PASSAGE_ID,
    READING,
    TURN_NUMBER,
    TWIN,
    VALUE,
    VALUES_IN_ONE,
)
from caliber.context.conversation import BLOCK, BLOCKS, PASSAGE, SCOPES, SPOKEN, SUMMARY, TURNS
from caliber.context.gather.candidates import (
    Gathered,
    Members,
    OfTask,
    Part,
    begun,
    join,
    kept_by_limit,
    kept_of_ancestors,
    knowledge_records,
    made_part,
    marked,
    pools_of,
    task_records,
)
from caliber.context.gather.dialogue import Conversation, conversation_of
from caliber.context.gather.duplicates import Recalled
from caliber.context.gather.outdated import outdated
from caliber.context.gather.recall import Recall, recall
from caliber.context.gather.rule_selection import FILTER, RuleSelector, Selection
from caliber.context.gather.scores import Flat, Scored, Scorer, scorer_of
from caliber.context.gather.turns import PassageReader, TurnReader
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan, source_type_of
from caliber.context.texts import OUTDATED_LEAD, FixedText
from caliber.model.windows import CutOff
from caliber.resident.conversation import day_text, days_of, times_of

if TYPE_CHECKING:
    from caliber.context.gather.repeats import Repeats
    from caliber.search.searcher import Searcher

_ONE: Final = np.float32(1)


def gather(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    fixed: tuple[FixedText, ...],
    reader: TurnReader,
    searcher: Searcher,
    texts: TextSource,
) -> Gathered:
    """Return every candidate of an assembly.

    Raises: NotFound for an unknown trajectory; InvalidValue, InvalidVector for a wrong mask or query vector.
    """
    cut_offs: list[CutOff] = []
    scope_id, open_scope, members, rules = begun(inputs, plan, searcher, texts)
    conversation = _conversation(inputs, plan, reader, rules, open_scope, cut_offs)
    hidden = conversation.turns.rows[conversation.current :]
    parts: list[Part] = []
    degraded: Sequence[str] = ()
    if not plan.governed:
        from caliber.context.gather.about_user import about_user  # late: opening a store needs neither
        from caliber.context.gather.repeats import Repeats

        repeats = Repeats(inputs, texts, searcher.analyzer)
        about = about_user(inputs, plan, members, texts)
        parts, degraded = _unruled(inputs, plan, searcher, texts, members, conversation, cut_offs, about, repeats)
        owners = {part.source: inputs.snapshot[plan.records[part.source].name] for part in parts}
        parts = [repeats.in_conversation(part, owners[part.source], conversation.turns) for part in parts]
        if about is not None:
            parts = [_besides(part, about) for part in parts] + [about]
        parts += [*_history(inputs, plan, members, cut_offs), *_blocks(inputs, plan)]
    if plan.blocks is not None:
        from caliber.context.gather.blocks import memory_blocks  # few configurations have any

        always = memory_blocks(inputs, plan, plan.blocks, texts)
        parts = [_besides(part, always) if part.source == always.source else part for part in parts] + [always]
    selections: list[Selection] = []
    if plan.rule_sections:
        rules.hidden = hidden
        selections = rules.select(searcher, marked(inputs, plan, parts))
        parts += [_taken(inputs, plan, texts, chosen) for chosen in selections]
        cut_offs += [cut for chosen in selections for cut in chosen.cut_offs]
        degraded = degraded or rules.degraded
    parts = [part for part in parts if len(part.rows)]
    candidates = join(inputs, plan, fixed, parts, conversation)
    return Gathered(candidates, scope_id, cut_offs, [*inputs.degraded, *members.degraded, *degraded], selections)


def _besides(part: Part, other: Part) -> Part:
    """Return records without those that enter another section already."""
    if part.source != other.source:
        return part
    kept = np.flatnonzero(~np.isin(part.rows, other.rows))
    columns = {name: column[kept] for name, column in part.columns.items()}
    rows = part.rows[kept], part.created_us[kept], part.stored_tokens[kept]
    return Part(part.source, part.section, *rows, part.scored.at(kept), columns)


def _conversation(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    reader: TurnReader,
    rules: RuleSelector,
    open_scope: bytes | None,
    cut_offs: list[CutOff],
) -> Conversation:
    limit, rule, keep = limits.MAX_TURNS, plan.user.rule, None
    if rule is not None and rule.predicate is not None:
        keep = partial(rules.filtered, rule, SPOKEN, reader.turns)
    found = conversation_of(inputs, plan, reader, open_scope, limit, keep)
    if plan.turns_by_rules_only:
        return found.at_hand()
    name = None if rule is None else rule.name
    if rule is not None and found.through < found.considered:
        text = rule.text
        cut_offs.append(CutOff(source_type_of(SPOKEN), FILTER, None, None, found.considered, name, found.through, text))
    if len(found.turns) < found.through:
        newest = found.turns.numbers[(found.marks & MUST) == 0]
        oldest = float(newest[0]) if len(newest) else None
        kept = None if rule is None else len(found.turns)
        cut_offs.append(CutOff(source_type_of(SPOKEN), "newest", limit, oldest, found.through, name, kept))
    return found


# --- records that follow the query --------------------------------------------------------------------


def _unruled(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    searcher: Searcher,
    texts: TextSource,
    members: Members,
    conversation: Conversation,
    cut_offs: list[CutOff],
    about: Part | None,
    repeats: Repeats,
) -> tuple[list[Part], Sequence[str]]:
    """Return the records recalled for the query, those of the task, and the note on a missing leg."""
    config = plan.config
    asked = inputs.query_embedding is not None or bool((inputs.query or "").strip())
    if config.assembly.relevance == "vector" or not asked or not config.recall.limit:
        scorer = scorer_of(inputs, plan, lambda: pools_of(inputs, plan, members), searcher)
        return _without_recall(inputs, plan, scorer, members, cut_offs), scorer.degraded
    hidden = conversation.turns.rows[conversation.current :]
    found, missing = recall(inputs, plan, searcher, hidden, texts)
    known = None if about is None else inputs.snapshot[plan.records[about.source].name]
    repeats.mark(found.parts, about, known)
    parts = [_recalled(inputs, plan, texts, item, members.of_task.get(item.source)) for item in found.parts.values()]
    if plan.told is not None and found.turns is not None:
        from caliber.context.gather.told import own_words

        own = own_words(inputs, plan, searcher, texts, found.turns, found.parts.get(PASSAGE), conversation.turns)
        repeats.mark({**found.parts, PASSAGE: own}, about, known)
        parts.append(_recalled(inputs, plan, texts, own, None, plan.told.index))
    unfound = {part.source: part for part in _of_task(inputs, plan, members, found, cut_offs)}
    parts += unfound.values()
    for source, reachable in found.allowed.items():
        item = found.parts.get(source)
        count = 0 if item is None else len(item.rows)
        # Records of the task itself enter whether the search finds them or not.
        allowed = reachable - len(unfound[source].rows) if source in unfound else reachable
        if count < allowed:
            full = found.worst is not None
            cut_offs.append(
                CutOff(
                    source_type_of(source),
                    "relevance_limit" if full else "not_found",
                    found.limit,
                    found.worst,
                    allowed,
                )
            )
    return parts, () if missing is None else (missing,)


def _without_recall(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, members: Members, cut_offs: list[CutOff]
) -> list[Part]:
    parts = [
        *task_records(inputs, plan, scorer, members, cut_offs),
        *knowledge_records(inputs, plan, scorer, members, cut_offs),
    ]
    weighs = not isinstance(scorer, Flat)
    return [_valued(part, plan.config.recall.length_weight if weighs else 0.0) for part in parts]


def _valued(part: Part, weight: float) -> Part:
    """Return records with their value: relevance, with length counted against it."""
    values = part.scored.relevance.astype(np.float64)
    if weight:
        values = values / np.maximum(1, part.stored_tokens) ** weight
    columns = {**part.columns, VALUE: np.rint(values * VALUES_IN_ONE).astype(np.int64)}
    return Part(part.source, part.section, part.rows, part.created_us, part.stored_tokens, part.scored, columns)


def _recalled(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    texts: TextSource,
    item: Recalled,
    own: OfTask | None,
    section: int | None = None,
) -> Part:
    section = plan.section_of_record(item.source) if section is None else section
    part = made_part(item.source, section, item.owners, item.rows, item.scored)
    columns = {TWIN: item.twins} if own is None else {TWIN: item.twins, MARK: OF_TASK * np.isin(item.rows, own.rows)}
    part = replace(part, columns=columns)
    part = _valued(part, plan.config.recall.length_weight)
    return _as_passages(inputs, plan, texts, part) if item.source == PASSAGE else part


def _as_passages(inputs: AssemblyInputs, plan: AssemblyPlan, texts: TextSource, part: Part) -> Part:
    """Return recalled turns as lines of passages, each of one task and one day."""
    turns = inputs.snapshot[TURNS]
    rows = part.rows
    if not len(rows):
        return part
    times = times_of(turns, rows)
    days = days_of(turns, rows, zone_of(plan.config.time_zone))
    tasks, numbers = turns.column("trajectory_id")[rows], turns.column("turn_number")[rows]
    first_day = days.min()
    _, of = np.unique(tasks.astype(np.int64) * (days.max() - first_day + 1) + days - first_day, return_inverse=True)
    begins = np.full(int(of.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, of, times)
    names = turns.interned("trajectory_id")
    task_of, day_of = np.zeros((2, len(begins)), np.int64)
    task_of[of], day_of[of] = tasks, days
    by_time = sorted(zip(begins.tolist(), [names[task] for task in task_of.tolist()], range(len(begins)), strict=True))
    place = np.empty(len(begins), np.int64)
    place[[one for _, _, one in by_time]] = np.arange(len(begins))
    passages = place[of]
    reading = np.empty(len(rows), np.int64)
    reading[np.lexsort((numbers, passages))] = np.arange(len(rows))
    leads = plan.measure([f"[, {day_text(day)}] " for day in day_of.tolist()]) - (2 if plan.additive else 0)
    marked = outdated(inputs, texts, rows)
    columns = {
        **part.columns,
        MARK: marked * OUTDATED,
        LENGTH: PassageReader(inputs.snapshot, texts, plan).lengths(rows) + marked * plan.measure([OUTDATED_LEAD])[0],
        TURN_NUMBER: numbers,
        PASSAGE_ID: passages + 1,
        READING: reading,
        DAY: days,
        LEAD: leads[of],
    }
    return Part(part.source, part.section, rows, part.created_us, part.stored_tokens, part.scored, columns)


def _of_task(
    inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, found: Recall, cut_offs: list[CutOff]
) -> Iterator[Part]:
    """Yield the records of the task, and of those above it, that no search found: the newest after all that is."""
    limit = limits.ARTIFACT_LIMIT
    for source, members_of_source in members.of_task.items():
        owners, item = inputs.snapshot[plan.records[source].name], found.parts.get(source)
        rows, above = members_of_source.own_rows, members_of_source.above
        if item is not None:
            rows, *above = (part[~np.isin(part, item.rows)] for part in (rows, *above))
        rows = rows[kept_by_limit(source, owners.column(owners.relation.age), owners, rows, None, limit, cut_offs)]
        if above:
            higher, room = np.concatenate(above), limit - len(rows)
            nothing = np.zeros(len(higher), np.float32)
            chosen = kept_of_ancestors(inputs, plan, source, above, nothing, room, cut_offs)
            rows = np.concatenate((rows, higher[chosen]))
        unscored = Scored(np.zeros(len(rows), np.float32))
        yield made_part(source, plan.section_of_record(source), owners, rows, unscored)


def _taken(inputs: AssemblyInputs, plan: AssemblyPlan, texts: TextSource, chosen: Selection) -> Part:
    part = made_part(chosen.section.source, chosen.section.index, chosen.owners, chosen.rows, chosen.scored)
    part = _valued(part, 0.0)
    if chosen.section.source == SUMMARY:
        first = np.array(inputs.snapshot[SCOPES].packed_values("start_turn", part.rows.tolist()), np.int64)
        return replace(part, columns={**part.columns, TURN_NUMBER: first})
    return _as_passages(inputs, plan, texts, part) if chosen.section.source == PASSAGE else part


# --- summaries of dropped turns -----------------------------------------------------------------------


def _history(inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, cut_offs: list[CutOff]) -> list[Part]:
    """Return the summaries of the task's closed scopes, newest first, independent of the query."""
    rows = members.summaries
    if not len(rows):
        return []
    scopes = inputs.snapshot[SCOPES]
    age, limit = scopes.column("sequence_number"), limits.SUMMARY_LIMIT
    rows = rows[kept_by_limit(SUMMARY, age, scopes, rows, None, limit, cut_offs)]
    rows = rows[np.argsort(-age[rows], kind="stable")]
    first = np.array(scopes.packed_values("start_turn", rows.tolist()), np.int64)
    part = made_part(SUMMARY, plan.history_index, scopes, rows, Scored(np.full(len(rows), _ONE, np.float32)))
    return [_newest_first(part, first)]


def _blocks(inputs: AssemblyInputs, plan: AssemblyPlan) -> list[Part]:
    """Return the summaries of blocks of turns in scopes without a summary."""
    summaries = inputs.snapshot.relations.get(BLOCKS)
    rows = None if summaries is None else summaries.group("trajectory_id", inputs.trajectory_id.bytes)
    if summaries is None or rows is None or not len(rows):
        return []
    scopes = inputs.snapshot[SCOPES]
    values, codes = summaries.interned("scope_id"), summaries.column("scope_id")[rows]
    found = {code: scopes.find(values[code]) for code in set(codes.tolist())}
    lacking = [code for code, scope in found.items() if scope >= 0 and not scopes.column("summary_tokens")[scope]]
    rows = rows[np.isin(codes, lacking)]
    first = summaries.column("first_turn")[rows]
    part = made_part(BLOCK, plan.history_index, summaries, rows, Scored(np.full(len(rows), _ONE, np.float32)))
    return [_newest_first(part, first)]


def _newest_first(part: Part, first: NDArray[np.int64]) -> Part:
    most = int(first.max()) + 1 if len(first) else 1
    values = (first + 1) * VALUES_IN_ONE // (most + 1)
    columns = {VALUE: values, TURN_NUMBER: first}
    return Part(part.source, part.section, part.rows, part.created_us, part.stored_tokens, part.scored, columns)
