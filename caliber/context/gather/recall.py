"""Recall: the earlier tasks within a window's reach, one search of their records, and the hits worth including.

Turns enter as lines of passages; summaries, artifacts, notes and declared records enter as they are. One relevance
score decides, whatever the kind. No content enters twice: of equal records the most relevant one enters, and a summary
yields to turns that it covers. All of this is decided before the budget is filled, and recorded.

Source: design section 5 (What a window is for), docs/windows.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.owners import tasks_of_user, user_of_row
from caliber.context.conversation import PASSAGE, SUMMARY, TASKS
from caliber.context.gather.duplicates import Recalled, find_twins, words_of
from caliber.context.gather.scores import Scored, compared, without_vector
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan
from caliber.model.context import Reach
from caliber.model.references import EntityType
from caliber.model.trust import TrustLabel
from caliber.resident.conversation import neighbours
from caliber.resident.documents import shown
from caliber.resident.keywords import ASKS
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.predicate import All, Comparison, Operator, Predicate, all_of, one_of
from caliber.schema.relation import Relation
from caliber.search.request import Pool, Request

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]

_STARTERS: Final = (EntityType.USER, EntityType.SYSTEM)
_TASK: Final = "trajectory_id"
_KEPT: Final = 16
"""Tasks for which a boundary keeps what is in their reach: thousands of ids each."""
_NEIGHBOUR_BOOST: Final = "neighbour_boost"
_ANSWERS: Final = 0.8
"""Share of a question's relevance from which on the turn after it counts as its answer."""
_CARRIES: Final = "carries"
"""The part of a relevance that a turn has because a hit beside it borrowed words from it."""
_YIELDS: Final = "yields"
"""The part of a relevance that a question loses to its answer."""


@dataclass(slots=True)
class Recall:
    """Hits of the search for a window, by source. ``worst``: the score of the last record if the limit is reached."""

    parts: dict[int, Recalled] = field(default_factory=dict)
    allowed: dict[int, int] = field(default_factory=dict)
    """How many records could have been found, by source."""
    limit: int = 0
    worst: float | None = None
    turns: Bools | None = None
    """The turns that may be recalled, if a window may repeat some that no query asks for."""


# --- whose records -------------------------------------------------------------------------------


class InReach:
    """The tasks whose records a window may recall, with their ordinals; None: of every task.

    The owner of a task is its user, or the agent that started it for no user.
    """

    __slots__ = ("_conditions", "_own_task", "tasks")

    def __init__(self, tasks: RelationSnapshot, trajectory_id: uuid.UUID, reach: Reach) -> None:
        self.tasks = _tasks_in_reach(tasks, trajectory_id, reach)
        self._own_task = trajectory_id
        self._conditions: dict[tuple[str, TrustLabel], tuple[Predicate | None, ...]] = {}

    @classmethod
    def of(cls, tasks: RelationSnapshot, trajectory_id: uuid.UUID, reach: Reach) -> InReach:
        """Return those of a window's task. A user may have thousands: they are looked up once a boundary."""
        kept: dict[tuple[uuid.UUID, Reach], InReach] = tasks.once("in reach", dict)
        found = kept.get((trajectory_id, reach))
        if found is None:
            if len(kept) >= _KEPT:
                kept.clear()
            found = kept[trajectory_id, reach] = cls(tasks, trajectory_id, reach)
        return found

    def conditions_of(self, relation: Relation, least: TrustLabel) -> tuple[Predicate | None, ...]:
        """Return one or two conditions, of which a record meets just one if a window may recall it, and none if not.

        Each says which values columns have; None: every record meets it. Records of other tasks than the window's are
        trusted ``least`` or more.
        """
        key = relation.name, least
        if key not in self._conditions:
            self._conditions[key] = _conditions_of(relation, self.tasks, self._own_task, least)
        return self._conditions[key]


def _tasks_in_reach(tasks: RelationSnapshot, trajectory_id: uuid.UUID, reach: Reach) -> dict[uuid.UUID, int] | None:
    if reach is Reach.TENANT:
        return None
    own = tasks.find(trajectory_id.bytes)
    near = np.arange(tasks.length) == own
    if own >= 0 and reach is not Reach.TRAJECTORY:
        kinds, starters, users = (tasks.column(name) for name in ("initiator_type", "initiator_id", "user_id"))
        by_user, by_system = (tasks.enum_code("initiator_type", each.value) for each in _STARTERS)
        shared = (kinds != by_user) & (users == tasks.interned_codes("user_id").get(None, -1))
        near |= shared & (kinds == by_system)
        if reach is Reach.SESSION:
            session = tasks.packed(own)[tasks.layout.codec.index("session_id")]
            near[[] if session is None else tasks.group("session_id", session)] = True
        elif shared[own]:
            near |= shared & (kinds == kinds[own]) & (starters == starters[own])
        elif (user := user_of_row(tasks, own)) is not None:
            near |= tasks_of_user(tasks, user)
    rows = np.flatnonzero(near & tasks.live_mask)
    return dict(zip(tasks.entity_ids(rows.tolist()), tasks.column("ordinal")[rows].tolist(), strict=True))


def _conditions_of(
    relation: Relation, tasks: Collection[uuid.UUID] | None, own_task: uuid.UUID, least: TrustLabel
) -> tuple[Predicate | None, ...]:
    if not relation.has(_TASK):  # knowledge belongs to no task
        return (None,)
    whose = None
    if tasks is not None:
        # A record that may belong to no task, and does not, is everybody's.
        whose = one_of(_TASK, [*tasks, None] if relation.column(_TASK).nullable else [*tasks])
    labels = list(TrustLabel)
    trusted = labels[: labels.index(least) + 1]
    if relation.trust is None or trusted == labels:
        return (whose,)
    column = relation.trust.column
    distrusted = one_of(column, [label.value for label in labels if label not in trusted])
    return (
        all_of(whose, one_of(column, [label.value for label in trusted])),
        All((Comparison(_TASK, Operator.EQUAL, own_task), distrusted)),
    )


def recallable(inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher, kind: str, reach: InReach) -> Bools:
    """Return the rows of a kind that a window may recall. Shapes: ``bool[length of the mirror]``"""
    owners, least = inputs.snapshot[kind], plan.config.recall.trust
    visibility = searcher.visibility(owners, inputs.readers, inputs.as_of_us, inputs.now_us)
    masks = [
        visibility.visible if each is None else visibility.having(owners, each, (reach, least, at))
        for at, each in enumerate(reach.conditions_of(owners.relation, least))
    ]
    return masks[0] if len(masks) == 1 else masks[0] | masks[1]


# --- searching ----------------------------------------------------------------------------------------


def request_of(inputs: AssemblyInputs, plan: AssemblyPlan) -> Request:
    """Return the search of a window. Raises: InvalidVector."""
    vector, mismatch = compared(inputs)
    return Request(
        snapshot=inputs.snapshot,
        text=inputs.query or "",
        vector=vector,
        without_vector=without_vector(inputs, mismatch=mismatch),
        space_id=inputs.space_id,
        kinds=(),
        limit=max(1, plan.config.recall.limit),
        readers=inputs.readers,
        as_of_us=inputs.as_of_us,
        now_us=inputs.now_us,
        moment=inputs.moment,
    )


def pools_of_recall(
    inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher, hidden: Rows
) -> tuple[list[tuple[int, Pool]], dict[int, int]]:
    """Return the pools of records that a window may recall, by source, and the number of records of each.

    ``hidden`` are excluded turns: the last user message and the turns after it.
    """
    config, snapshot = plan.config, inputs.snapshot
    limit = config.recall.limit
    reach = InReach.of(snapshot[TASKS], inputs.trajectory_id, plan.reach)
    sources = {relation.name: source for source, relation in plan.records.items()}
    pools, counts = [], {}
    for kind in searcher.kinds:
        source = sources.get(kind)
        # A relation that another process dropped cannot be recalled; calls that name it raise an error.
        if source is None or not limit or kind in snapshot.gone:
            continue
        allowed = recallable(inputs, plan, searcher, kind, reach)
        seen = int(np.count_nonzero(allowed))
        unseen = inputs.totals.get(kind, seen) - seen
        if source == PASSAGE and len(hidden):
            allowed = allowed.copy()
            allowed[hidden] = False
        elif source == SUMMARY:
            visibility = searcher.visibility(snapshot[kind], inputs.readers, inputs.as_of_us, inputs.now_us)
            others = Comparison(_TASK, Operator.UNEQUAL, inputs.trajectory_id)
            allowed = allowed & visibility.having(snapshot[kind], others)
        counts[source] = int(np.count_nonzero(allowed)) + unseen
        if counts[source]:
            pools.append((source, Pool(kind, allowed, limit, excluded=hidden if source == PASSAGE else None)))
    return pools, counts


def recall(
    inputs: AssemblyInputs, plan: AssemblyPlan, searcher: Searcher, hidden: Rows, texts: TextSource
) -> tuple[Recall, str | None]:
    """Return the hits for the query among all that a window may recall, and the note on a missing leg.

    ``hidden`` are turns excluded from the search. Raises: InvalidVector.
    """
    config, snapshot, request = plan.config, inputs.snapshot, request_of(inputs, plan)
    limit = config.recall.limit
    out = Recall(limit=limit)
    pools, out.allowed = pools_of_recall(inputs, plan, searcher, hidden)
    if not pools:
        return out, inputs.without_vector
    found, query, degraded = searcher.found([pool for _, pool in pools], request, limit)
    more = plan.told is not None and not (query.of_days_only or query.of_others)
    for (source, pool), item in zip(pools, found, strict=True):
        if more and source == PASSAGE and pool.allowed is not None:
            out.turns = pool.allowed
        if len(item.rows):
            owners = snapshot[pool.kind]
            scored = Scored(np.minimum(item.scores, np.float32(1)), None, item.parts)
            out.parts[source] = Recalled(source, owners, item.rows, scored, np.zeros(len(item.rows), np.int64))
    if sum([len(item.rows) for item in out.parts.values()]) >= limit:
        out.worst = min([float(item.scored.relevance.min()) for item in out.parts.values()])
    if PASSAGE in out.parts:
        turns = out.parts[PASSAGE]
        place = np.full(turns.owners.length, -1, np.int64)
        place[turns.rows] = np.arange(len(turns.rows))
        _carry(turns, place)
        asks = searcher.keywords.of(turns.owners).flagged(ASKS)[turns.rows].astype(np.bool_)
        _yield_to_answers(turns, place, asks)
        _repeat_the_query(inputs, turns, asks, hidden, texts)
    find_twins(inputs, plan, out.parts, texts)
    return out, degraded


def _carry(turns: Recalled, place: Rows) -> None:
    """Raise the neighbours that lent a hit its words: they carry it, and enter with it."""
    boost = turns.scored.parts.get(_NEIGHBOUR_BOOST)
    if boost is None or not boost.any():
        return
    beside = neighbours(turns.owners, "scope_id")
    relevance = turns.scored.relevance.copy()
    boosts = boost.astype(np.float32)
    for rows in (beside.before(turns.rows), beside.after(turns.rows)):
        at = np.where(rows >= 0, place[rows], -1)
        has_row = at >= 0
        np.maximum.at(relevance, at[has_row], boosts[has_row])
    carried = (relevance - turns.scored.relevance).astype(np.float64)
    turns.scored = Scored(relevance, None, {**turns.scored.parts, _CARRIES: carried})


def _yield_to_answers(turns: Recalled, place: Rows, asks: Bools) -> None:
    """Lower each question below the turn after it, if that is about as relevant: its answer enters first."""
    after = neighbours(turns.owners, "scope_id").after(turns.rows)
    answers = np.where(asks & (after >= 0), place[after], -1)
    relevance = turns.scored.relevance.copy()
    for question in np.flatnonzero(answers >= 0).tolist():
        answer = relevance[answers[question]]
        if answer >= _ANSWERS * relevance[question]:
            relevance[question] = min(relevance[question], np.nextafter(answer, np.float32(0)))
    lost = (relevance - turns.scored.relevance).astype(np.float64)
    if lost.any():
        turns.scored = Scored(relevance, None, {**turns.scored.parts, _YIELDS: lost})


def _repeat_the_query(inputs: AssemblyInputs, turns: Recalled, asks: Bools, hidden: Rows, texts: TextSource) -> None:
    """Mark earlier questions that have no word besides those of the query: they are the last message once more."""
    if not len(hidden) or not inputs.query:
        return
    words = words_of(inputs.query)
    current = int(turns.owners.column("ordinal")[hidden[0]])
    longest = 2 * turns.owners.column("token_count")[hidden[0]]
    short = np.flatnonzero(asks & (turns.owners.column("token_count")[turns.rows] <= longest))
    owners = turns.owners
    said = owners.generation.read_once(
        "words asked",
        turns.rows[short].tolist(),
        lambda rows: [tuple(words_of(shown(text))) for text in texts.texts(owners, rows)],
    )
    turns.twins[short[[words.issuperset(each) for each in said]]] = current
