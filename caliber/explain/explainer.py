"""Explainer of a recorded window: reports for each record why it was included, cut or excluded.

Source: C-298, design section 5 ("Why not this note?").
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from caliber.access.owners import user_of
from caliber.config import CaliberConfig
from caliber.context.columns import ORDINAL, SECTION, SOURCE, TWIN, entered
from caliber.context.conversation import PASSAGE, SPOKEN
from caliber.context.inputs import WindowFacts
from caliber.context.plan import source_type_of
from caliber.context.record.record import Record, unpack_record
from caliber.context.texts import text_of_content, turn_of_content
from caliber.context.trace import Decided, trace
from caliber.context.window import FilledSection, filled_sections, status_of, used_tokens
from caliber.explain.absence import Absent
from caliber.explain.picture import cut_off_document, decision_document
from caliber.explain.replayer import CurrentScore, decide_again, decided_again, identity_of, plan_for, with_conditions
from caliber.model.context import AssemblyAction, Reach
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel
from caliber.schema.relations import CONFLICT
from caliber.schema.traits import Enters

if TYPE_CHECKING:
    from caliber.search.stored_content import StoredContents


ScoreNow = Callable[[uuid.UUID, WindowFacts], "CurrentScore | None"]
"""The present relevance of a record to a window's query, or None if it cannot be computed."""


@dataclass(frozen=True, slots=True)
class Explained:
    """A recorded window, decided again."""

    record: Record
    decided: Decided
    source: StoredContents

    def id_of(self, place: int) -> uuid.UUID | None:
        return identity_of(self.record, self.source, place)

    def trust_of(self, record_id: uuid.UUID | None) -> str | None:
        """Return a record's trust label; None for text of the configuration and for a deleted record."""
        entity = None if record_id is None else self.source.entity(record_id)
        trust = getattr(entity, "trust", None)
        return None if trust is None else str(trust)


def explain(
    record: bytes,
    config: CaliberConfig,
    source: StoredContents,
    *,
    exclusion: uuid.UUID | None = None,
    score_now: ScoreNow | None = None,
) -> dict[str, Any]:
    """Return the reasons for everything in and out of a window; with ``exclusion``, those for one record.

    Without ``score_now`` the relevance of a record that a limit kept out is not worked out again.
    Raises: StorageError for a damaged record; InvalidValue for a configuration that is not the window's.
    """
    explained = explained_of(record, config, source)
    if exclusion is not None:
        return {**explain_one(explained, exclusion, score_now), "trust": explained.trust_of(exclusion)}
    return _all(explained)


def explained_of(record: bytes, config: CaliberConfig, source: StoredContents) -> Explained:
    """Return a recorded window decided again. Raises: as ``explain``."""
    kept = unpack_record(record)
    plan = plan_for(kept, config)
    filled = decide_again(kept, plan)
    return Explained(kept, decided_again(kept, plan, filled, kept.shown), source)


def _all(explained: Explained) -> dict[str, Any]:
    facts = explained.record.facts
    _fetch(explained)
    decisions = trace(explained.decided, explained.id_of, facts.now_us)
    sections = filled_sections(explained.decided)
    by_section: dict[str, int] = {}
    for item in sections:
        by_section[item.section.type.value] = by_section.get(item.section.type.value, 0) + item.tokens
    included = [d for d in decisions if d.action is not AssemblyAction.EXCLUDE]
    excluded = [d for d in decisions if d.action is AssemblyAction.EXCLUDE]
    return {
        "window_id": str(facts.window_id),
        "trajectory_id": str(facts.trajectory_id),
        "status": status_of(facts, bool(sections)).value,
        "degraded": list(facts.degraded),
        "inclusions": [{**decision_document(d), "trust": explained.trust_of(d.target_id)} for d in included],
        "exclusions": [decision_document(d) for d in excluded],
        "budget": {
            "total": facts.max_tokens,
            "used": used_tokens(explained.decided, sections),
            "by_section": by_section,
        },
        "sections": _sections(explained, sections),
        "cut_offs": [cut_off_document(item) for item in with_conditions(facts.cut_offs, explained.decided.plan)],
        "rules": _rules(explained, sections),
        "inputs": _inputs(explained),
    }


def _fetch(explained: Explained) -> None:
    """Read the rows of all candidates in a few statements instead of one for each."""
    ranked, facts = explained.record.ranked, explained.record.facts
    by_relation: dict[str, set[int]] = {}
    for source in np.unique(ranked[SOURCE]).tolist():
        relation = facts.relation_of(source)
        if relation is not None:
            ordinals = ranked[ORDINAL][ranked[SOURCE] == source]
            by_relation.setdefault(relation, set()).update(ordinals.tolist())
    for relation, wanted in by_relation.items():
        explained.source.fetch(relation, sorted(wanted))


def _sections(explained: Explained, sections: list[FilledSection]) -> list[dict[str, Any]]:
    """Return the sections of a window in order, and whether each belongs to its stable prefix."""
    still, out = True, []
    for item in sections:
        still = still and item.section.index in explained.decided.filled.stable_sections
        section = item.section
        out.append({"name": section.name, "type": section.type.value, "tokens": item.tokens, "stable": still})
    return out


def _rules(explained: Explained, sections: list[FilledSection]) -> list[dict[str, Any]]:
    """Return the rules of a window, best first, with the number of records and tokens of each."""
    decided = explained.decided
    plan, brought = decided.plan, {item.section.index: item for item in sections}
    out = []
    for section in (*plan.rule_sections, plan.user):
        if section.rule is None:
            continue
        rule, parts = section.rule, plan.conversation if section is plan.user else (section,)
        filled = [brought[part.index] for part in parts if part.index in brought]
        out.append(
            {
                "rule": rule.name,
                "memory": rule.memory,
                "mode": rule.mode.shown,
                "filter": rule.text,
                "priority": rule.priority,
                "section": section.name,
                "max_tokens": section.cap_tokens,
                "candidates": int(np.count_nonzero(np.isin(decided.ranked[SECTION], [part.index for part in parts]))),
                "included": sum(len(item.places) for item in filled),
                "tokens": sum(item.tokens for item in filled),
                **({} if rule.origin is None else {"once": rule.origin}),
            }
        )
    return out


def _inputs(explained: Explained) -> dict[str, Any]:
    record, facts = explained.record, explained.record.facts
    vector = facts.query_embedding
    return {
        "position": {"epoch": facts.position.epoch, "sequence": facts.position.sequence},
        "config_hash": facts.config_hash,
        "trajectory_id": str(facts.trajectory_id),
        "scope_id": None if facts.scope_id is None else str(facts.scope_id),
        "principal": facts.principal,
        "query": facts.query,
        "query_from": facts.query_from,
        "query_embedding_dimensions": None if vector is None else int(vector.shape[0]),
        "space_id": None if facts.space_id is None else str(facts.space_id),
        "max_tokens": facts.max_tokens,
        "as_of": from_us(facts.as_of_us).isoformat(),
        "clock": from_us(facts.now_us).isoformat(),
        "evaluator": facts.evaluator,
        "estimator": explained.decided.plan.measures.estimator,
        "extra_sections": sorted(facts.extra_sections),
        "candidates": len(record.ranked),
    }


# --- one record ----------------------------------------------------------------------------------


def explain_one(explained: Explained, record_id: uuid.UUID, score_now: ScoreNow | None) -> dict[str, Any]:
    """Return why one record is, or is not, in a window."""
    entity = explained.source.entity(record_id)
    place = _place_of(explained, record_id, entity)
    if place is not None:
        return _candidate(explained, record_id, place)
    if entity is None:
        reason = "no record with this id is known, or it is not visible to the principal that asks"
        return {"id": str(record_id), "type": None, "verdict": "unknown", "reason": reason}
    plan = explained.decided.plan
    sources = {relation.name: source for source, relation in plan.records.items()}
    source = sources.get(explained.source.relation(record_id) or "")
    if source is None:
        name = type(entity).__name__.lower()
        reason = f"windows are not made of records of this kind ({name})"
        return {"id": str(record_id), "type": name, "verdict": "filtered", "filter": "kind", "reason": reason}
    facts = explained.record.facts
    score = None if score_now is None else score_now(record_id, facts)
    unreached = _unreached(explained, entity, source)
    absence = Absent(entity, source, facts, plan, score, _above(explained), unreached).why()
    kind = source_type_of(source).value
    out: dict[str, Any] = {"id": str(record_id), "type": kind, "verdict": absence.verdict, "reason": absence.reason}
    if absence.filter is not None:
        out["filter"] = absence.filter
    out.update(absence.numbers)
    return out


def _above(explained: Explained) -> set[uuid.UUID]:
    """Return the trajectories above the window's, as far up as windows take records from."""
    dag = explained.decided.plan.config.pcp.context_dag
    found: set[uuid.UUID] = set()
    task: Any = explained.source.entity(explained.record.facts.trajectory_id) if dag.enabled else None
    while task is not None and task.parent_trajectory_id is not None and len(found) < dag.max_depth:
        if task.parent_trajectory_id in found:
            break
        found.add(task.parent_trajectory_id)
        task = explained.source.entity(task.parent_trajectory_id)
    return found


def _unreached(explained: Explained, entity: Any, source: int) -> str | None:
    """Return why windows of this task recall nothing of a record's, or None if they may: see ``recallable``."""
    facts, recall = explained.record.facts, explained.decided.plan.config.recall
    task, trust = getattr(entity, "trajectory_id", None), getattr(entity, "trust", None)
    enters = explained.decided.plan.records[source].in_windows.enters
    if enters is Enters.KNOWLEDGE or task == facts.trajectory_id:
        return None
    if task is not None and recall.reach is not Reach.TENANT:
        here, there = explained.source.entity(facts.trajectory_id), explained.source.entity(task)
        if not _shares(recall.reach, here, there):
            return f"it belongs to trajectory {task}, which recall.from = {recall.reach} does not reach"
    labels = list(TrustLabel)
    if trust is not None and labels.index(trust) > labels.index(recall.trust):
        return f"its label is {trust}: of other tasks, windows recall what is labelled {recall.trust} or better"
    return None


def _shares(reach: Reach, here: Any, there: Any) -> bool:
    """Return whether one task recalls the records of another: see ``context.gather.recall.InReach``."""
    if reach is Reach.TRAJECTORY or here is None or there is None:
        return False
    if there.initiator.entity_type is EntityType.SYSTEM and there.user_id is None:
        return True
    if reach is Reach.SESSION:
        return here.session_id is not None and here.session_id == there.session_id
    return (user_of(here) or here.initiator) == (user_of(there) or there.initiator)


def _place_of(explained: Explained, record_id: uuid.UUID, entity: Any | None) -> int | None:
    record = explained.record
    for place, candidate_id in record.ids.items():
        if candidate_id == record_id and explained.id_of(place) is not None:
            return place
    ordinal = explained.source.ordinal(record_id)
    if ordinal is None:
        return None
    wanted_in = None if entity is None else explained.source.relation(record_id)
    at = np.flatnonzero(record.ranked[ORDINAL] == ordinal)
    for place in at.tolist():
        relation = record.facts.relation_of(int(record.ranked[SOURCE][place]))
        if relation is None:
            continue
        # For a deleted record the relation is unknown; the ordinal identifies it.
        same = explained.id_of(place) == record_id if entity is None else relation == wanted_in
        if same:
            return int(place)
    return None


def _candidate(explained: Explained, record_id: uuid.UUID, place: int) -> dict[str, Any]:
    decided = explained.decided
    (decision,) = [d for d in trace(decided, lambda _: None, explained.record.facts.now_us) if d.rank == place]
    excluded = decision.action is AssemblyAction.EXCLUDE
    out = decision_document(decision)
    out["id"] = str(record_id)
    out["verdict"] = "excluded" if excluded else "included"
    out["candidates"] = len(decided.ranked)
    out["min_relevance"] = decided.plan.config.min_relevance_threshold
    ordinal = -int(explained.record.ranked[TWIN][place])
    if ordinal > 0:
        key = explained.source.identity(CONFLICT.name, ordinal, None)
        out["conflict_id"] = None if key is None else str(key)
    if decision.rule_id == "budget_limit":
        # For records excluded for another reason, the room was not examined.
        out["tokens_left"] = decided.plan.whole_tokens(decided.filled.room(place)[1])
    return out


LABEL_CHARS: Final = 160


def labels_of(record: bytes, config: CaliberConfig, source: StoredContents) -> dict[int, str]:
    """Return the beginnings of the texts of the records that a window left out, by rank."""
    kept = unpack_record(record)
    plan, ranked = plan_for(kept, config), kept.ranked
    out: dict[int, str] = {}
    left_out = np.ones(len(ranked), bool)
    left_out[entered(kept.codes)] = False
    for place in np.flatnonzero(left_out).tolist():
        number = int(ranked[SOURCE][place])
        relation = kept.facts.relation_of(number)
        content = None if relation is None else source.present(relation, int(ranked[ORDINAL][place]))
        if content is None:
            continue
        spoken = number in (SPOKEN, PASSAGE)
        text = turn_of_content(content).line if spoken else text_of_content(plan.records[number], content)
        out[place] = beginning(text)
    return out


def beginning(text: str) -> str:
    """Return the beginning of a text, as one line."""
    words = " ".join(text.split())
    return words if len(words) <= LABEL_CHARS else words[: LABEL_CHARS - 1].rstrip() + "…"
