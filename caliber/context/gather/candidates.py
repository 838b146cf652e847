"""The sources of candidates: filters and limits of each, over columns of the snapshot.

Nothing here touches a text or makes an object for a row; what a limit keeps back is recorded once (O-15).

Source: C-449 to C-455, C-466, K-074, K-080, K-096, K-097.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    AGE_US,
    ALONE,
    ERROR,
    FIELDS,
    GROUP,
    LENGTH,
    MARK,
    ORDINAL,
    PARTS_IN_ONE,
    ROW,
    SECTION,
    SOURCE,
    STORED_TOKENS,
    TURN_NUMBER,
    VERSION,
    Candidates,
)
from caliber.context.gather.ancestry import ancestors_of, keep_of_ancestors
from caliber.context.gather.dialogue import Conversation
from caliber.context.gather.recall import recallable, tasks_in_reach
from caliber.context.gather.scores import Scored, Scorer
from caliber.context.gather.taking import Take, Taking
from caliber.context.gather.turns import TurnFacts
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import (
    ARTIFACT,
    NOTE,
    OWN,
    PASSAGE,
    RELATION_OF,
    SOURCES,
    SUMMARY,
    TURN,
    AssemblyPlan,
    made_and_tokens,
)
from caliber.context.texts import FixedText
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.ids import ScopeId
from caliber.model.windows import CutOff
from caliber.resident.memory import ResidentSnapshot
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.validity import rows_in_force
from caliber.schema.in_force import asked_us
from caliber.schema.relations.trajectory import NEVER_US
from caliber.search.filtering.visible import VisibleRows
from caliber.search.request import Pool

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher


@dataclass(slots=True)
class Gathered:
    """The candidates of one assembly, unranked, and what was kept from becoming one."""

    candidates: Candidates
    scope_id: ScopeId | None
    cut_offs: list[CutOff] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    takes: list[Take] = field(default_factory=list)
    """What each rule took."""


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
    """What else is decided of them, by column."""


@dataclass(slots=True)
class Members:
    """What may enter a window besides turns, before relevance is known.

    ``above`` are artifacts of trajectories above, nearest first. Shapes: rows ``int64[n]``
    """

    own: NDArray[np.int64]
    above: list[NDArray[np.int64]]
    notes: VisibleRows
    summaries: NDArray[np.int64]


def begun(
    inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher, texts: TextSource
) -> tuple[ScopeId | None, bytes | None, Members, Taking]:
    """Return the newest open scope and its key, what belongs to the task, and what rules take.

    Raises: NotFound for an unknown trajectory; InvalidValue for a wrong mask.
    """
    _check_task(inputs)
    scopes = inputs.snapshot["scope"]
    scope_id, key = newest_scope(scopes, open_scopes(scopes, inputs.trajectory_id))
    members = members_of(inputs, plan, searcher)
    return scope_id, key, members, Taking(inputs, plan, texts, scope_id, entering(inputs, plan, members, searcher))


def _check_task(inputs: AssemblyInputs) -> None:
    """Refuse a trajectory that is not there. Raises: NotFound."""
    if inputs.snapshot["trajectory"].find(inputs.trajectory_id.bytes) < 0:
        raise NotFound(entity_type="trajectory", id=str(inputs.trajectory_id))


def marked(inputs: AssemblyInputs, plan: AssemblyPlan, parts: Sequence[Part]) -> dict[int, NDArray[np.bool_]]:
    """Return which rows have entered without a rule, by source."""
    out: dict[int, NDArray[np.bool_]] = {}
    for part in parts:
        mask = out.setdefault(part.source, np.zeros(inputs.snapshot[plan.relation_of(part.source)].length, np.bool_))
        mask[part.rows] = True
    return out


def entering(
    inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, searcher: Searcher
) -> Callable[[int], NDArray[np.bool_]]:
    """Return what says which rows of a source rules may bring into a window."""

    def may_enter(source: int) -> NDArray[np.bool_]:
        if source == PASSAGE:
            tasks = tasks_in_reach(inputs.snapshot, inputs.trajectory_id.bytes, plan.config.recall.reach)
            return recallable(inputs, plan, searcher, RELATION_OF[PASSAGE], tasks)
        return _eligible(inputs, plan, members, source)

    return may_enter


def _eligible(inputs: AssemblyInputs, plan: AssemblyPlan, members: Members, source: int) -> NDArray[np.bool_]:
    if source == NOTE:
        return members.notes.visible
    if source >= OWN:
        own = inputs.snapshot[plan.relation_of(source)]
        at = asked_us(own.relation, inputs.as_of_us, inputs.now_us)
        return rows_in_force(own, at, inputs.readers.over(own))
    rows = members.summaries if source == SUMMARY else np.concatenate((members.own, *members.above))
    allowed = np.zeros(inputs.snapshot[RELATION_OF[source]].length, np.bool_)
    allowed[rows] = True
    return allowed


def members_of(inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher) -> Members:
    """Return what may enter the window of a trajectory that is there.

    Raises: InvalidValue for a wrong mask over rows.
    """
    snapshot, dag = inputs.snapshot, plan.config.pcp.context_dag
    artifacts, scopes = snapshot["artifact"], snapshot["scope"]
    key = inputs.trajectory_id.bytes
    closed = scopes.group("trajectory_id", key)
    closed = closed[scopes.column("closed_at")[closed] != NEVER_US]
    above = ancestors_of(snapshot["trajectory"], key, dag.max_depth) if dag.enabled else []
    seen, notes = inputs.readers, snapshot["note"]
    for name, mask in inputs.masks.items():
        length = snapshot[name].length
        if mask.codes.shape != (length,):
            raise InvalidValue(field=f"masks.{name}", reason=f"must have {length} codes, one for each row")
    in_force = searcher.sight(artifacts, seen, inputs.as_of_us, inputs.now_us).visible
    of = [rows[in_force[rows]] for rows in (artifacts.group("trajectory_id", task) for task in (key, *above))]
    sight = searcher.sight(notes, seen, inputs.as_of_us, inputs.now_us)
    return Members(of[0], of[1:], sight, closed[scopes.column("summary_tokens")[closed] > 0])


def pools_of(inputs: AssemblyInputs, plan: AssemblyPlan, members: Members) -> list[Pool]:
    """Return what a search is to score: what may enter, judged among what may be seen."""
    snapshot = inputs.snapshot
    out = []
    limit = plan.config.assembly.note_search_limit
    if limit and members.notes.count:
        out.append(Pool("note", None, limit))
    for kind, rows in (("artifact", np.concatenate((members.own, *members.above))), ("scope", members.summaries)):
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
    """Return what a search scores for the first rule that would ask it about a row, or None where none would."""
    snapshot = inputs.snapshot
    scopes = snapshot["scope"]
    scope_id, _ = newest_scope(scopes, open_scopes(scopes, inputs.trajectory_id))
    may_enter = entering(inputs, plan, members, searcher)
    rules = Taking(inputs, plan, texts, scope_id, may_enter)
    for section in plan.taking:
        rule = section.rule
        if rule is None or not rule.asks or plan.relation_of(section.source) != kind:
            continue
        allowed = rules.filtered(rule, section.source, snapshot[kind], may_enter(section.source))
        if allowed[row]:
            return Pool(kind, allowed, len(allowed))
    return None


def current_scope(snapshot: ResidentSnapshot, trajectory_id: uuid.UUID) -> ScopeId | None:
    """Return the newest open scope of a trajectory, if there is one."""
    return newest_scope(snapshot["scope"], open_scopes(snapshot["scope"], trajectory_id))[0]


def open_scopes(scopes: RelationSnapshot, trajectory_id: uuid.UUID) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = scopes.group("trajectory_id", trajectory_id.bytes)
    still_open: NDArray[np.int64] = rows[scopes.column("closed_at")[rows] == NEVER_US]
    return still_open


# --- the sources --------------------------------------------------------------------------------


def newest_scope(scopes: RelationSnapshot, open_rows: NDArray[np.int64]) -> tuple[ScopeId | None, bytes | None]:
    """Return the newest open scope, if there is one, and its key."""
    if not len(open_rows):
        return None, None
    scope_id = scopes.entity_id(int(open_rows[np.argmax(scopes.column("sequence_number")[open_rows])]))
    return ScopeId(scope_id), scope_id.bytes


def artifacts_of(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, members: Members, cut_offs: list[CutOff]
) -> Part:
    artifacts = inputs.snapshot["artifact"]
    limit = plan.config.assembly.artifact_limit
    own, above, age = members.own, members.above, artifacts.column("created_at")
    if not scorer.ranks:
        own = own[kept_by_limit(ARTIFACT, age, artifacts, own, None, limit, cut_offs)]
    rows = np.concatenate((own, *above)) if above else own
    scored = scorer.score("artifact", artifacts, rows)
    kept: NDArray[np.int64] = np.arange(len(own))
    if scorer.ranks:
        kept = kept_by_limit(ARTIFACT, age, artifacts, own, scored, limit, cut_offs)
    extra = len(rows) - len(own)
    if extra:
        room = limit - len(kept)
        places: NDArray[np.int64] = np.arange(len(own), len(rows))
        if extra > room:
            depth = np.repeat(np.arange(len(above)), [len(part) for part in above])
            strategy = plan.config.pcp.context_dag.prune_strategy
            relevance = scored.relevance[places]
            chosen = keep_of_ancestors(inputs.snapshot, artifacts, rows[places], relevance, depth, room, strategy)
            worst = float(relevance[chosen].min()) if len(chosen) else None
            cut_offs.append(CutOff(SOURCES[ARTIFACT], f"ancestors:{strategy.value}", room, worst, extra))
            places = places[chosen]
        kept = np.concatenate((kept, places))
    if len(kept) < len(rows):
        rows, scored = rows[kept], scored.at(kept)
    return Part(
        ARTIFACT,
        int(plan.section_of_source[ARTIFACT]),
        rows,
        artifacts.column("created_at")[rows],
        artifacts.column("token_count")[rows],
        scored,
    )


def picked_notes(
    inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, members: Members, cut_offs: list[CutOff]
) -> Part:
    notes, allowed = inputs.snapshot["note"], members.notes.visible
    assembly = plan.config.assembly
    considered = inputs.totals.get("note", members.notes.count)
    picked = scorer.pick(notes, allowed)
    if picked is not None:
        rows, scored = picked.rows, picked.scored
        if len(rows) < considered:
            cut = CutOff(SOURCES[NOTE], picked.filter, assembly.note_search_limit, picked.worst, considered)
            cut_offs.append(cut)
    else:
        rows = np.flatnonzero(allowed)
        limit = assembly.notes_without_query
        if considered > limit:
            rows = notes.evaluator.newest(allowed, notes.column("created_at"), notes.ties(), limit)
            cut_offs.append(newest_cut(NOTE, notes.column("created_at"), rows, limit, considered))
        scored = scorer.score("note", notes, rows)
    return Part(
        NOTE,
        int(plan.section_of_source[NOTE]),
        rows,
        notes.column("created_at")[rows],
        notes.column("token_count")[rows],
        scored,
    )


def made_part(source: int, section: int, owners: RelationSnapshot, rows: NDArray[np.int64], scored: Scored) -> Part:
    made, tokens = made_and_tokens(source)
    return Part(source, section, rows, owners.column(made)[rows], owners.column(tokens)[rows], scored)


def kept_by_limit(
    source: int,
    age: NDArray[np.int64],
    owners: RelationSnapshot,
    rows: NDArray[np.int64],
    scored: Scored | None,
    limit: int,
    cut_offs: list[CutOff],
) -> NDArray[np.int64]:
    """Return which of ``rows`` a limit keeps, as places in it: the most relevant if they are scored, else the newest.

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
    cut_offs.append(CutOff(SOURCES[source], "relevance_limit", limit, worst, count))
    return places


def _newest(age: NDArray[np.int64], tie: NDArray[np.uint64], limit: int) -> NDArray[np.int64]:
    """Return the places of the ``limit`` newest, newest first; equal instants in order of id."""
    places: NDArray[np.int64] = np.arange(len(age))
    if len(age) > limit:
        # Only what is at least as new as the last one wanted has to be sorted.
        least = np.partition(age, len(age) - limit)[len(age) - limit]
        places = np.flatnonzero(age >= least)
    return places[np.lexsort((tie[places, 1], tie[places, 0], -age[places]))[:limit]]


def newest_cut(source: int, age: NDArray[np.int64], rows: NDArray[np.int64], limit: int, considered: int) -> CutOff:
    oldest = float(age[rows[-1]]) if len(rows) else None
    return CutOff(SOURCES[source], "newest", limit, oldest, considered)


# --- joining them -------------------------------------------------------------------------------


def join(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    fixed: tuple[FixedText, ...],
    turns: TurnFacts,
    parts: Sequence[Part],
    conversation: Conversation | None = None,
) -> Candidates:
    count = len(fixed) + len(turns) + sum(len(part.rows) for part in parts)
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
    if len(turns):
        here = slice(at, at + len(turns))
        _fill_rows(numbers[:, here], TURN, plan.user.index, inputs.snapshot["turn"], turns.rows)
        # A clock that went back must not make an old turn look new: ages never rise from turn to turn.
        created = np.maximum.accumulate(inputs.snapshot["turn"].column("created_at")[turns.rows])
        numbers[AGE_US, here] = inputs.now_us - created
        numbers[TURN_NUMBER, here] = turns.numbers
        numbers[GROUP, here] = turns.groups
        numbers[LENGTH, here] = turns.lengths
        if conversation is not None:
            numbers[MARK, here] = conversation.marks
            numbers[SECTION, here][conversation.current :] = plan.current.index
        ids[here] = inputs.snapshot["turn"].ties().take(turns.rows, axis=0)
        # Newest first, also within one instant.
        tie[here, 0] = ~turns.numbers.astype(np.uint64)
        at = here.stop
    for part in parts:
        here = slice(at, at + len(part.rows))
        snapshot = inputs.snapshot[plan.relation_of(part.source)]
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
