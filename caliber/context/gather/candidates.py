"""Common steps of gathering candidates: eligible records, pools to score, limits per source, the joined table.

Nothing here reads a text or makes an object per row; records that a limit excludes are counted once (O-15).

Source: C-449 to C-455, C-466, K-074, K-080, K-096, K-097.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.cron import zone_of
from caliber.context import limits
from caliber.context.columns import (
    AGE_US,
    ALONE,
    DAY,
    ERROR,
    FIELDS,
    GROUP,
    LENGTH,
    MARK,
    ORDINAL,
    PARTS_IN_ONE,
    READING,
    ROW,
    SECTION,
    SOURCE,
    STORED_TOKENS,
    TURN_NUMBER,
    VERSION,
    Candidates,
)
from caliber.context.conversation import (
    PASSAGE,
    SCOPES,
    SPOKEN,
    SUMMARY,
    TASKS,
    TURNS,
    closed_scopes,
    newest_scope,
    open_scopes,
)
from caliber.context.days import shows_days
from caliber.context.gather.ancestry import ancestors_of, keep_of_ancestors
from caliber.context.gather.dialogue import Conversation
from caliber.context.gather.recall import InReach, recallable
from caliber.context.gather.rule_selection import RuleSelector, Selection
from caliber.context.gather.scores import Scored, Scorer
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan, source_type_of
from caliber.context.texts import FixedText
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId
from caliber.model.windows import CutOff
from caliber.resident.conversation import user_days
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import visible_rows
from caliber.schema.traits import Enters
from caliber.schema.validity import asked_us
from caliber.search.filtering.visible import VisibleRows
from caliber.search.request import Pool
from caliber.search.usage import Uses

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher


_NO_COLUMNS: Final[Mapping[int, NDArray[np.int64]]] = MappingProxyType({})


@dataclass(slots=True)
class Gathered:
    """The candidates of one assembly, unranked, and what limits excluded."""

    candidates: Candidates
    scope_id: ScopeId | None
    cut_offs: list[CutOff] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    """The selection of each rule."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one source, or of one rule."""

    source: int
    section: int
    rows: NDArray[np.int64]
    created_us: NDArray[np.int64]
    stored_tokens: NDArray[np.int64]
    scored: Scored
    columns: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    """Further columns that are decided at this stage."""


@dataclass(frozen=True, slots=True)
class OfTask:
    """The records of one kind that belong to a task, and to those above it, nearest first. Shapes: ``int64[n]`` each"""

    own_rows: NDArray[np.int64]
    above: list[NDArray[np.int64]]

    @property
    def rows(self) -> NDArray[np.int64]:
        """All of them."""
        return np.concatenate((self.own_rows, *self.above))


@dataclass(frozen=True, slots=True)
class Members:
    """Candidates besides turns, by source, before relevance is known. Shapes: summaries ``int64[n]``"""

    of_task: Mapping[int, OfTask]
    knowledge: Mapping[int, VisibleRows]
    summaries: NDArray[np.int64]
    degraded: tuple[str, ...] = ()
    """The trajectory that is above itself, where the chain of parents is a cycle."""


def begun(
    inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher, texts: TextSource
) -> tuple[ScopeId | None, bytes | None, Members, RuleSelector]:
    """Return the newest open scope and its key, the records of the task, and the selections of rules.

    Raises: NotFound for an unknown trajectory; InvalidValue for a wrong mask.
    """
    _check_task(inputs)
    scopes = inputs.snapshot[SCOPES]
    scope_id, key = newest_scope(scopes, open_scopes(scopes, inputs.trajectory_id))
    members = members_of(inputs, plan, searcher)
    may_enter = entering(inputs, plan, members, searcher)
    return scope_id, key, members, RuleSelector(inputs, plan, texts, scope_id, may_enter)


def _check_task(inputs: AssemblyInputs) -> None:
    """Refuse a trajectory that is not there. Raises: NotFound."""
    if inputs.snapshot[TASKS].find(inputs.trajectory_id.bytes) < 0:
        raise NotFound(entity_type=TASKS, id=str(inputs.trajectory_id))


def marked(inputs: AssemblyInputs, plan: AssemblyPlan, parts: Sequence[Part]) -> dict[int, NDArray[np.bool_]]:
    """Return the rows that entered without a rule, by source."""
    out: dict[int, NDArray[np.bool_]] = {}
    for part in parts:
        mask = out.setdefault(part.source, np.zeros(inputs.snapshot[plan.records[part.source].name].length, np.bool_))
        mask[part.rows] = True
    return out


def entering(
    inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, searcher: Searcher
) -> Callable[[int], NDArray[np.bool_]]:
    """Return a function that gives the rows of a source that rules may bring into a window."""

    def may_enter(source: int) -> NDArray[np.bool_]:
        if source == PASSAGE:
            reach = InReach.of(inputs.snapshot[TASKS], inputs.trajectory_id, plan.reach)
            return recallable(inputs, plan, searcher, TURNS, reach)
        return _eligible(inputs, plan, members, source)

    return may_enter


def _eligible(inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, source: int) -> NDArray[np.bool_]:
    if source in members.knowledge:
        return members.knowledge[source].visible
    owners = inputs.snapshot[plan.records[source].name]
    if source != SUMMARY and source not in members.of_task:
        at = asked_us(owners.relation, inputs.as_of_us, inputs.now_us)
        return visible_rows(owners, at, inputs.readers.over(owners))
    allowed = np.zeros(owners.length, np.bool_)
    allowed[members.summaries if source == SUMMARY else members.of_task[source].rows] = True
    return allowed


def members_of(inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher) -> Members:
    """Return the records that may enter the window of an existing trajectory.

    Raises: InvalidValue for a wrong mask over rows.
    """
    snapshot, dag = inputs.snapshot, plan.config.pcp.context_dag
    key = inputs.trajectory_id.bytes
    above, cyclic = ancestors_of(snapshot[TASKS], key, dag.max_depth) if dag.enabled else ([], None)
    for name, mask in inputs.masks.items():
        length = snapshot.relations[name].length
        if mask.codes.shape != (length,):
            raise InvalidValue(field=f"masks.{name}", reason=f"must have {length} codes, one for each row")

    def visibility(source: int) -> VisibleRows:
        return searcher.visibility(snapshot[plan.records[source].name], inputs.readers, inputs.as_of_us, inputs.now_us)

    of_task = {}
    for source in plan.entering[Enters.TASK]:
        owners, visible = snapshot[plan.records[source].name], visibility(source).visible
        of = [rows[visible[rows]] for rows in [owners.group("trajectory_id", task) for task in (key, *above)]]
        of_task[source] = OfTask(of[0], of[1:])
    knowledge = {source: visibility(source) for source in plan.entering[Enters.KNOWLEDGE]}
    degraded = () if cyclic is None else (f"cycle_in_ancestry({uuid.UUID(bytes=cyclic)})",)
    return Members(of_task, knowledge, closed_scopes(snapshot[SCOPES], key), degraded)


def pools_of(inputs: AssemblyInputs, plan: AssemblyPlan, members: Members) -> list[Pool]:
    """Return the pools that a search is to score: candidates, judged among visible records."""
    snapshot = inputs.snapshot
    out: list[Pool] = []
    limit = limits.NOTE_SEARCH_LIMIT
    out += [
        Pool(plan.records[source].name, None, limit)
        for source, seen in members.knowledge.items()
        if limit and seen.count
    ]
    for source, item in members.of_task.items():
        kind, rows = plan.records[source].name, item.rows
        if len(rows):
            allowed = np.zeros(snapshot[kind].length, np.bool_)
            allowed[rows] = True
            out.append(Pool(kind, allowed, len(rows), rows))
    return out


def pool_of_rules(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    members: Members,
    kind: str,
    row: int,
    searcher: Searcher,
    texts: TextSource,
) -> Pool | None:
    """Return the pool of the first rule that would ask a search about a row, or None."""
    snapshot = inputs.snapshot
    scopes = snapshot[SCOPES]
    scope_id, _ = newest_scope(scopes, open_scopes(scopes, inputs.trajectory_id))
    may_enter = entering(inputs, plan, members, searcher)
    rules = RuleSelector(inputs, plan, texts, scope_id, may_enter)
    for section in plan.rule_sections:
        rule = section.rule
        if rule is None or not rule.asks or plan.records[section.source].name != kind:
            continue
        allowed = rules.filtered(rule, section.source, snapshot[kind], may_enter(section.source))
        if allowed[row]:
            return Pool(kind, allowed, len(allowed))
    return None


# --- the sources --------------------------------------------------------------------------------


def task_records(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, members: Members, cut_offs: list[CutOff]
) -> list[Part]:
    """Return the records of the task and its ancestors, up to the limit of each kind."""
    return [_of_task(inputs, plan, scorer, source, item, cut_offs) for source, item in members.of_task.items()]


def _of_task(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, source: int, members: OfTask, cut_offs: list[CutOff]
) -> Part:
    owners = inputs.snapshot[plan.records[source].name]
    limit = limits.ARTIFACT_LIMIT
    own_rows, above, age = members.own_rows, members.above, owners.column(owners.relation.age)
    if not scorer.ranks:
        own_rows = own_rows[kept_by_limit(source, age, owners, own_rows, None, limit, cut_offs)]
    rows = np.concatenate((own_rows, *above)) if above else own_rows
    scored = scorer.score(owners.relation.name, owners, rows)
    kept: NDArray[np.int64] = np.arange(len(own_rows))
    if scorer.ranks:
        kept = kept_by_limit(source, age, owners, own_rows, scored, limit, cut_offs)
    extra = len(rows) - len(own_rows)
    if extra:
        chosen = kept_of_ancestors(
            inputs, plan, source, above, scored.relevance[len(own_rows) :], limit - len(kept), cut_offs
        )
        kept = np.concatenate((kept, len(own_rows) + chosen))
    if len(kept) < len(rows):
        rows, scored = rows[kept], scored.at(kept)
    return made_part(source, plan.section_of_record(source), owners, rows, scored)


def kept_of_ancestors(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    source: int,
    above: Sequence[NDArray[np.int64]],
    relevance: NDArray[np.float32],
    room: int,
    cut_offs: list[CutOff],
) -> NDArray[np.int64]:
    """Return the places of those records of ancestors, nearest first, that the configured strategy keeps."""
    rows = np.concatenate(above)
    if len(rows) <= room:
        return np.arange(len(rows))
    owners, strategy = inputs.snapshot[plan.records[source].name], plan.config.pcp.context_dag.prune_strategy
    depth = np.repeat(np.arange(len(above)), [len(part) for part in above])
    uses = Uses(inputs.snapshot["usage"], inputs.used_by)
    chosen = keep_of_ancestors(uses, owners, rows, relevance, depth, room, strategy)
    worst = float(relevance[chosen].min()) if len(chosen) else None
    cut_offs.append(CutOff(source_type_of(source), f"ancestors:{strategy.value}", room, worst, len(rows)))
    return chosen


def knowledge_records(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, members: Members, cut_offs: list[CutOff]
) -> list[Part]:
    """Return records that belong to no task: the best for the query, else the newest of each kind."""
    return [_known(inputs, plan, scorer, source, seen, cut_offs) for source, seen in members.knowledge.items()]


def _known(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, source: int, seen: VisibleRows, cut_offs: list[CutOff]
) -> Part:
    owners = inputs.snapshot[plan.records[source].name]
    considered = inputs.totals.get(owners.relation.name, seen.count)
    picked = scorer.pick(owners, seen.visible)
    if picked is not None:
        rows, scored = picked.rows, picked.scored
        if len(rows) < considered:
            limit = limits.NOTE_SEARCH_LIMIT
            cut_offs.append(CutOff(source_type_of(source), picked.filter, limit, picked.worst, considered))
    else:
        rows, limit = np.flatnonzero(seen.visible), plan.config.assembly.notes_without_query
        if considered > limit:
            age = owners.column(owners.relation.age)
            rows = owners.evaluator.newest(seen.visible, age, owners.ties(), limit)
            cut_offs.append(newest_cut(source, age, rows, limit, considered))
        scored = scorer.score(owners.relation.name, owners, rows)
    return made_part(source, plan.section_of_record(source), owners, rows, scored)


def made_part(
    source: int,
    section: int,
    owners: RelationSnapshot,
    rows: NDArray[np.int64],
    scored: Scored,
    columns: Mapping[int, NDArray[np.int64]] = _NO_COLUMNS,
) -> Part:
    """Return records as candidates."""
    relation = owners.relation
    made, tokens = owners.column(relation.times.entered)[rows], owners.column(relation.tokens)[rows]
    return Part(source, section, rows, made, tokens, scored, columns)


def kept_by_limit(
    source: int,
    age: NDArray[np.int64],
    owners: RelationSnapshot,
    rows: NDArray[np.int64],
    scored: Scored | None,
    limit: int,
    cut_offs: list[CutOff],
) -> NDArray[np.int64]:
    """Return the places in ``rows`` that a limit keeps: the most relevant if they are scored, else the newest.

    Equals go by age, newest first, then by id. ``age`` is a column that grows with time.
    """
    count = len(rows)
    if count <= limit:
        return np.arange(count)
    places: NDArray[np.int64] = np.empty(0, np.int64)
    if scored is None:
        if limit:
            places = _newest(age[rows], owners.ties().take(rows, axis=0), limit)
        cut_offs.append(newest_cut(source, age, rows[places], limit, count))
        return places
    tie = owners.ties().take(rows, axis=0)
    places = np.lexsort((tie[:, 1], tie[:, 0], -age[rows], -scored.relevance[:count]))[:limit]
    worst = float(scored.relevance[places[-1]]) if limit else None
    cut_offs.append(CutOff(source_type_of(source), "relevance_limit", limit, worst, count))
    return places


def _newest(age: NDArray[np.int64], tie: NDArray[np.uint64], limit: int) -> NDArray[np.int64]:
    """Return the places of the ``limit`` newest, newest first; equal instants in order of id."""
    places: NDArray[np.int64] = np.arange(len(age))
    if len(age) > limit:
        # Only rows at least as new as the last one selected have to be sorted.
        least = np.partition(age, len(age) - limit)[len(age) - limit]
        places = np.flatnonzero(age >= least)
    return places[np.lexsort((tie[places, 1], tie[places, 0], -age[places]))[:limit]]


def newest_cut(source: int, age: NDArray[np.int64], rows: NDArray[np.int64], limit: int, considered: int) -> CutOff:
    oldest = float(age[rows[-1]]) if len(rows) else None
    return CutOff(source_type_of(source), "newest", limit, oldest, considered)


# --- joining them -------------------------------------------------------------------------------


def join(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    fixed: tuple[FixedText, ...],
    parts: Sequence[Part],
    conversation: Conversation,
) -> Candidates:
    turns, spoken = conversation.turns, inputs.snapshot[TURNS]
    count = len(fixed) + len(turns.rows) + sum([len(part.rows) for part in parts])
    numbers = np.zeros((FIELDS, count), np.int64)
    numbers[ROW] = -1
    numbers[GROUP] = ALONE
    numbers[LENGTH] = -1
    relevance = np.ones(count, np.float32)
    tie = np.zeros((count, 2), np.uint64)
    ids = np.zeros((count, 2), np.uint64)
    made: dict[str, NDArray[np.int32]] = {}
    at = len(fixed)
    for place, item in enumerate(fixed):
        numbers[SOURCE, place] = item.source
        numbers[SECTION, place] = item.section
        tie[place, 1] = place
    if len(turns.rows):
        here = slice(at, at + len(turns.rows))
        _fill_rows(numbers[:, here], SPOKEN, plan.user.index, spoken, turns.rows)
        # A clock that went back must not make an old turn look new: ages never rise from turn to turn.
        created = np.maximum.accumulate(spoken.column("created_at")[turns.rows])
        numbers[AGE_US, here] = inputs.now_us - created
        numbers[TURN_NUMBER, here] = turns.numbers
        numbers[GROUP, here] = turns.groups
        numbers[LENGTH, here] = turns.lengths
        numbers[READING, here] = turns.unanswered
        numbers[MARK, here] = conversation.marks
        numbers[SECTION, here][conversation.current :] = plan.current.index
        if shows_days(plan, inputs.max_tokens):
            numbers[DAY, here] = user_days(spoken, turns.rows, zone_of(inputs.config.time_zone))
        ids[here] = spoken.ties().take(turns.rows, axis=0)
        # Newest first, also within one instant.
        tie[here, 0] = ~turns.numbers.astype(np.uint64)
        at = here.stop
    for part in parts:
        here = slice(at, at + len(part.rows))
        snapshot = inputs.snapshot[plan.records[part.source].name]
        _fill_rows(numbers[:, here], part.source, part.section, snapshot, part.rows)
        numbers[STORED_TOKENS, here] = part.stored_tokens
        numbers[AGE_US, here] = inputs.now_us - part.created_us
        for field_number, column in part.columns.items():
            numbers[field_number, here] = column
        scored = part.scored
        if scored.error is not None:
            numbers[ERROR, here] = scored.error
        relevance[here] = scored.relevance
        for name, values in scored.parts.items():
            if values.any():
                made.setdefault(name, np.zeros(count, np.int32))[here] = np.rint(values * PARTS_IN_ONE)
        ids[here] = snapshot.ties().take(part.rows, axis=0)
        tie[here] = ids[here]
        at = here.stop
    adds = np.array(list(made.values()), np.int32).reshape(len(made), count)
    return Candidates(numbers, relevance, tie, ids, tuple(made), adds)


def _fill_rows(
    numbers: NDArray[np.int64], source: int, section: int, snapshot: RelationSnapshot, rows: NDArray[np.int64]
) -> None:
    numbers[SOURCE] = source
    numbers[SECTION] = section
    numbers[ORDINAL] = snapshot.column("ordinal")[rows]
    numbers[VERSION] = snapshot.column("version")[rows]
    numbers[ROW] = rows
