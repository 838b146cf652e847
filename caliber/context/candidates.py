"""Where candidates come from: filters and limits of each source, over columns of the snapshot.

Nothing here touches a text or makes an object for a row; what a limit keeps back is recorded once (O-15).

Source: C-449 to C-455, C-466, K-074, K-080, K-096, K-097.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.context.ancestry import ancestors_of, keep_of_ancestors
from caliber.context.columns import (
    AGE_US,
    ALONE,
    ERROR,
    FIELDS,
    GROUP,
    LENGTH,
    ORDINAL,
    ROW,
    SECTION,
    SOURCE,
    STORED_TOKENS,
    TURN_NUMBER,
    VERSION,
    Candidates,
)
from caliber.context.inputs import AssemblyInputs
from caliber.context.plan import ARTIFACT, NOTE, RELATION_OF, SOURCES, SUMMARY, TURN, AssemblyPlan
from caliber.context.scores import Scorer
from caliber.context.texts import FixedText
from caliber.context.turns import TurnFacts, TurnReader
from caliber.kernels.evaluator import Allowed
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.ids import ScopeId
from caliber.model.windows import CutOff
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.validity import valid_artifacts, valid_notes
from caliber.schema.relations.trajectory import NEVER_US


@dataclass(slots=True)
class Gathered:
    """The candidates of one assembly, unranked, and what was kept from becoming one."""

    candidates: Candidates
    scope_id: ScopeId | None
    cut_offs: list[CutOff] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one source."""

    source: int
    rows: NDArray[np.int64]
    created_us: NDArray[np.int64]
    stored_tokens: NDArray[np.int64]
    relevance: NDArray[np.float32] | float
    error: NDArray[np.bool_] | None = None


def gather(inputs: AssemblyInputs, plan: AssemblyPlan, fixed: tuple[FixedText, ...], reader: TurnReader) -> Gathered:
    """Return every candidate of an assembly.

    Raises: NotFound for an unknown trajectory; InvalidValue, InvalidVector for a wrong mask or query vector.
    """
    snapshot = inputs.snapshot
    key = inputs.trajectory_id.bytes
    if snapshot["trajectory"].find(key) < 0:
        raise NotFound(entity_type="trajectory", id=str(inputs.trajectory_id))
    cut_offs: list[CutOff] = []
    scorer = Scorer(inputs, plan)
    scopes = snapshot["scope"]
    scope_rows = scopes.group("trajectory_id", key)
    closed_us = scopes.column("closed_at")[scope_rows]
    scope_id, turns = _current_turns(reader, plan, scopes, scope_rows[closed_us == NEVER_US], cut_offs)
    parts = [
        _artifacts(inputs, plan, scorer, cut_offs),
        _notes(inputs, plan, scorer, cut_offs),
        _summaries(plan, scorer, scopes, scope_rows[closed_us != NEVER_US], cut_offs),
    ]
    candidates = _join(inputs, plan, fixed, turns, [part for part in parts if len(part.rows)])
    return Gathered(candidates, scope_id, cut_offs, [*inputs.degraded, *scorer.degraded])


# --- the sources --------------------------------------------------------------------------------


def _current_turns(
    reader: TurnReader,
    plan: AssemblyPlan,
    scopes: RelationSnapshot,
    open_rows: NDArray[np.int64],
    cut_offs: list[CutOff],
) -> tuple[ScopeId | None, TurnFacts]:
    if not len(open_rows):
        return None, TurnFacts.none()
    current = int(open_rows[np.argmax(scopes.column("sequence_number")[open_rows])])
    scope_id = scopes.entity_id(current)
    turns, considered = reader.gather(scope_id.bytes, plan.config.assembly.max_turns)
    if len(turns) < considered:
        oldest = float(turns.numbers[0]) if len(turns) else None
        cut_offs.append(CutOff(SOURCES[TURN], "newest", plan.config.assembly.max_turns, oldest, considered))
    return ScopeId(scope_id), turns


def _artifacts(inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, cut_offs: list[CutOff]) -> _Part:
    artifacts = inputs.snapshot["artifact"]
    limit = plan.config.assembly.artifact_limit
    rows = valid_artifacts(artifacts, artifacts.group("trajectory_id", inputs.trajectory_id.bytes), inputs.now_us)
    considered = len(rows)
    if considered > limit:
        rows = _newest(artifacts, rows, limit)
        cut_offs.append(_newest_cut(ARTIFACT, artifacts, rows, limit, considered))
    relevance, error = scorer.score("artifact", artifacts, rows)
    dag = plan.config.pcp.context_dag
    if dag.enabled:
        found = [
            valid_artifacts(artifacts, artifacts.group("trajectory_id", ancestor), inputs.now_us)
            for ancestor in ancestors_of(inputs.snapshot["trajectory"], inputs.trajectory_id.bytes, dag.max_depth)
        ]
        if any(len(part) for part in found):
            extra = np.concatenate(found)
            more, more_error = scorer.score("artifact", artifacts, extra)
            room = limit - len(rows)
            if len(extra) > room:
                depth = np.repeat(np.arange(len(found)), [len(part) for part in found])
                kept = keep_of_ancestors(inputs.snapshot, artifacts, extra, more, depth, room, dag.prune_strategy)
                worst = float(more[kept].min()) if len(kept) else None
                name = f"ancestors:{dag.prune_strategy.value}"
                cut_offs.append(CutOff(SOURCES[ARTIFACT], name, room, worst, len(extra)))
                extra, more, more_error = extra[kept], more[kept], more_error[kept]
            rows = np.concatenate((rows, extra))
            relevance = np.concatenate((relevance, more))
            error = np.concatenate((error, more_error))
    return _Part(
        ARTIFACT, rows, artifacts.column("created_at")[rows], artifacts.column("token_count")[rows], relevance, error
    )


def _notes(inputs: AssemblyInputs, plan: AssemblyPlan, scorer: Scorer, cut_offs: list[CutOff]) -> _Part:
    notes = inputs.snapshot["note"]
    allowed = allowed_notes(notes, inputs.note_mask, inputs.as_of_us)
    considered = int(np.count_nonzero(allowed))
    assembly = plan.config.assembly
    error = None
    relevance: NDArray[np.float32] | float
    found = scorer.search("note", notes, allowed, assembly.note_search_limit, assembly.note_min_similarity)
    if found is not None:
        rows, relevance = found
        if len(rows) < considered:
            full = len(rows) == assembly.note_search_limit and len(rows)
            worst = float(relevance[-1]) if full else float(assembly.note_min_similarity)
            name = "similarity_limit" if full or not assembly.note_search_limit else "min_similarity"
            cut_offs.append(CutOff(SOURCES[NOTE], name, assembly.note_search_limit, worst, considered))
        relevance = np.clip(relevance, np.float32(0), np.float32(1))
    else:
        rows = np.flatnonzero(allowed)
        limit = assembly.notes_without_query
        if considered > limit:
            rows = notes.evaluator.newest(allowed, notes.column("created_at"), notes.ties(), limit)
            cut_offs.append(_newest_cut(NOTE, notes, rows, limit, considered))
        relevance, error = scorer.score("note", notes, rows)
    return _Part(NOTE, rows, notes.column("created_at")[rows], notes.column("token_count")[rows], relevance, error)


def allowed_notes(notes: RelationSnapshot, mask: Allowed | None, as_of_us: int) -> NDArray[np.bool_]:
    """Return which notes are visible, in force and valid at an instant. Shapes: ``bool[notes.length]``."""
    if mask is not None and mask.codes.shape != (notes.length,):
        raise InvalidValue(field="note_mask", reason=f"must have {notes.length} codes, one for each row of the mirror")
    return valid_notes(notes, as_of_us, mask)


def _summaries(
    plan: AssemblyPlan, scorer: Scorer, scopes: RelationSnapshot, rows: NDArray[np.int64], cut_offs: list[CutOff]
) -> _Part:
    rows = rows[scopes.column("summary_tokens")[rows] > 0]
    limit = plan.config.assembly.summary_limit
    considered = len(rows)
    if considered > limit:
        # The newest scopes of a trajectory are those with the highest sequence.
        rows = rows[np.argsort(-scopes.column("sequence_number")[rows], kind="stable")[:limit]]
        oldest = float(scopes.column("sequence_number")[rows[-1]]) if limit else None
        cut_offs.append(CutOff(SOURCES[SUMMARY], "newest", limit, oldest, considered))
    relevance, error = scorer.score("scope", scopes, rows)
    return _Part(
        SUMMARY, rows, scopes.column("closed_at")[rows], scopes.column("summary_tokens")[rows], relevance, error
    )


def _newest(snapshot: RelationSnapshot, rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return the ``limit`` newest of ``rows``, newest first; equal instants in order of id."""
    if limit <= 0:
        return rows[:0]
    created = snapshot.column("created_at")[rows]
    if len(rows) > limit:
        # Only what is at least as new as the last one wanted has to be sorted.
        least = np.partition(created, len(created) - limit)[len(created) - limit]
        near = created >= least
        rows, created = rows[near], created[near]
    tie = snapshot.ties()[rows]
    return rows[np.lexsort((tie[:, 1], tie[:, 0], -created))[:limit]]


def _newest_cut(
    source: int, snapshot: RelationSnapshot, rows: NDArray[np.int64], limit: int, considered: int
) -> CutOff:
    oldest = float(snapshot.column("created_at")[rows[-1]]) if len(rows) else None
    return CutOff(SOURCES[source], "newest", limit, oldest, considered)


# --- joining them -------------------------------------------------------------------------------


def _join(
    inputs: AssemblyInputs, plan: AssemblyPlan, fixed: tuple[FixedText, ...], turns: TurnFacts, parts: list[_Part]
) -> Candidates:
    count = len(fixed) + len(turns) + sum(len(part.rows) for part in parts)
    numbers = np.zeros((FIELDS, count), np.int64)
    numbers[ROW] = -1
    numbers[GROUP] = ALONE
    numbers[LENGTH] = -1
    relevance = np.ones(count, np.float32)
    tie = np.zeros((count, 2), np.uint64)
    ids = np.zeros((count, 2), np.uint64)
    at = len(fixed)
    for place, item in enumerate(fixed):
        numbers[SOURCE, place] = item.source
        numbers[SECTION, place] = item.section
        tie[place, 1] = place
    if len(turns):
        here = slice(at, at + len(turns))
        _fill_rows(numbers[:, here], plan, TURN, inputs.snapshot["turn"], turns.rows)
        # A clock that went back must not make an old turn look new: ages never rise from turn to turn.
        created = np.maximum.accumulate(inputs.snapshot["turn"].column("created_at")[turns.rows])
        numbers[AGE_US, here] = inputs.now_us - created
        numbers[TURN_NUMBER, here] = turns.numbers
        numbers[GROUP, here] = turns.groups
        numbers[LENGTH, here] = turns.lengths
        ids[here] = inputs.snapshot["turn"].ties()[turns.rows]
        # Newest first, also within one instant.
        tie[here, 0] = ~turns.numbers.astype(np.uint64)
        at = here.stop
    for part in parts:
        here = slice(at, at + len(part.rows))
        snapshot = inputs.snapshot[RELATION_OF[part.source]]
        _fill_rows(numbers[:, here], plan, part.source, snapshot, part.rows)
        numbers[STORED_TOKENS, here] = part.stored_tokens
        numbers[AGE_US, here] = inputs.now_us - part.created_us
        if part.error is not None:
            numbers[ERROR, here] = part.error
        relevance[here] = part.relevance
        ids[here] = snapshot.ties()[part.rows]
        tie[here] = ids[here]
        at = here.stop
    return Candidates(numbers, relevance, tie, ids)


def _fill_rows(
    numbers: NDArray[np.int64], plan: AssemblyPlan, source: int, snapshot: RelationSnapshot, rows: NDArray[np.int64]
) -> None:
    numbers[SOURCE] = source
    numbers[SECTION] = plan.section_of_source[source]
    numbers[ORDINAL] = snapshot.column("ordinal")[rows]
    numbers[VERSION] = snapshot.column("version")[rows]
    numbers[ROW] = rows
