"""Kept visibility masks equal masks that are computed anew. Source: M-046, design section 5."""

from __future__ import annotations

import datetime as dt
import gc
import random
import uuid
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.configs import config
from support.inspection import inspect
from support.kinds import KINDS
from support.search.visible_masks import masks

import caliber
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.model import AgentRole, EntityRef, EntityType, FixedClock, Principal, PrincipalKind
from caliber.model.time import from_us
from caliber.resident.predicates import held_texts
from caliber.schema.relations import NOTE
from caliber.search.filtering.filters import Where, conditions_of
from caliber.search.filtering.visible import VisibleCache
from caliber.search.opening import SearchEngine

PRINCIPALS = [
    Principal(PrincipalKind.AGENT, name, role, is_admin=admin)
    for name, role, admin in (("one", AgentRole.EXECUTOR, False), ("two", None, False), ("three", None, True))
]
SEEN_BY = (None, ["executor"], ["agent:two"], ["agent:nobody"])
DAY_US = 24 * 60 * 60 * 1_000_000


def change(memory: Any, scope: Any, notes: list[Any], rng: random.Random, day: Any) -> None:
    """Add, change or remove something."""
    what = rng.randrange(10)
    if what < 4 or not notes:
        said = {
            "visible_to": rng.choice(SEEN_BY),
            "valid_from": rng.choice((None, day(rng.randint(-5, 5)))),
            "valid_until": rng.choice((None, day(rng.randint(6, 9)))),
        }
        notes.append(
            memory.add_note(
                entity="x", entity_type="t", note_type="fact", content=f"n {rng.random()}", confidence=0.9, **said
            )
        )
    elif what < 6:
        memory.append_turn(scope.scope_id, role="user", content=f"t {rng.random()}")
    elif what < 7:
        memory.create_artifact(
            scope.scope_id, artifact_type="fact", content=f"a {rng.random()}", extraction_method="explicit"
        )
    elif what < 9:
        memory.storage.notes.delete(notes.pop(rng.randrange(len(notes))).note_id)
    else:
        inspect(memory).resident.compact()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_sight_is_what_would_be_found_anew(seed: int) -> None:
    rng = random.Random(seed)
    clock = FixedClock()
    begin_us = clock.now_us()
    with caliber.open(config(":memory:"), clock=clock) as memory:
        task = memory.start_trajectory("t", initiator=EntityRef(EntityType.AGENT, uuid.UUID(int=1)))
        scope = memory.current_scope(task.trajectory_id)
        readers = [Readers(inspect(memory).part(TaskOwners), principal) for principal in PRINCIPALS]
        visibilities, keywords, notes, boundaries = (
            VisibleCache(),
            inspect(memory).part(SearchEngine).searcher.keywords,
            [],
            [],
        )
        for _ in range(rng.randint(3, 12)):
            for _ in range(rng.randint(0, 4)):
                change(memory, scope, notes, rng, lambda days: from_us(begin_us) + dt.timedelta(days=days))
            boundaries.append(inspect(memory).resident.snapshot)
            for _ in range(6):
                snapshot = rng.choice(boundaries[-3:])  # readers of older boundaries are still there
                owners, reader = snapshot[rng.choice(KINDS)], rng.choice(readers)
                as_of_us, now_us = (begin_us + rng.randint(-6, 10) * DAY_US + rng.choice((-1, 0, 1)) for _ in range(2))
                if not owners.length:
                    continue
                visibility = visibilities.of(owners, reader, as_of_us, now_us)
                found = masks(owners, None, reader, as_of_us, now_us)
                assert visibility.visible.tolist() == found[0].tolist()
                assert visibility.count == np.count_nonzero(found[0])
                if rng.random() < 0.7:
                    words = keywords.of(owners)
                    assert visibility.lengths(words) == int(words.lengths[: owners.length][found[0]].sum())
                for values in ([2, 3], 3.0, 3, []):
                    tokens = "summary_tokens" if owners.relation.has("summary_tokens") else "token_count"
                    wanted = conditions_of([owners.relation], {tokens: values})
                    expected = masks(owners, wanted[owners.relation.name], reader, as_of_us, now_us)[1]
                    for _ in range(2):  # found, and kept
                        assert visibility.meeting(owners, Where(wanted, {}), held_texts).tolist() == expected.tolist()
                again = visibilities.of(owners, reader, as_of_us, now_us)
                assert again is visibility  # nothing has changed: nothing is found anew


def test_what_is_kept_is_bounded_and_ends_with_its_generation() -> None:
    clock = FixedClock()
    with caliber.open(config(":memory:"), clock=clock) as memory:
        for at in range(40):
            memory.add_note(
                entity="x",
                entity_type="t",
                note_type="fact",
                content=f"n {at}",
                confidence=0.9,
                valid_from=from_us(clock.now_us() + at * DAY_US),
            )
        visibilities = VisibleCache()
        admin = Readers(inspect(memory).part(TaskOwners), PRINCIPALS[2])
        for at in range(40):  # each instant has visible rows of its own
            snapshot = inspect(memory).resident.snapshot
            assert visibilities.of(snapshot["note"], admin, clock.now_us() + at * DAY_US, 0).count == at + 1
        (kept,) = visibilities.known.values()
        assert len(kept) == 16
        for most in range(40):  # and few filters
            where = Where(conditions_of([NOTE], {"token_count": most}), {})
            assert kept[0].meeting(snapshot["note"], where, held_texts).shape == (40,)
        assert len(kept[0].filtered) <= 16
        memory.storage.notes.delete(memory.search("n").hits[0].id)
        inspect(memory).resident.compact()
        del snapshot
        gc.collect()
        assert not len(visibilities.known)
