"""Dry run of injection rules: assembles a window to report what each rule selects, and stores nothing.

The usual assembler builds the window. Nothing is stored, counted or consumed, and no event is emitted; the
configuration is not recorded either, so that a changed file can be tried against an agent's memory.

Source: issue "The DSL and the policy engine", item 5; docs/decisions/0166.
"""

from __future__ import annotations

import uuid

import numpy as np
from numpy.typing import NDArray

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.admin.inspection import latest_task
from caliber.backends import bare_store
from caliber.config import CaliberConfig
from caliber.context.assembler import assemble
from caliber.context.conversation import TASKS
from caliber.context.gather.asking import default_query, stated_query
from caliber.context.inputs import AssemblyInputs
from caliber.context.pending_injections import PendingInjections
from caliber.embedding.embedding_target import is_of
from caliber.explain.replayer import WindowPlan, window_plan
from caliber.kernels import uuid7
from caliber.kernels.evaluator import open_evaluator
from caliber.llm import build_embedding_provider
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.references import SpaceId, TrajectoryId, WindowId
from caliber.model.time import Clock, SystemClock
from caliber.resident.memory import ResidentMemory
from caliber.resident.snapshot import ResidentSnapshot
from caliber.search.filtering.filters import kinds_of
from caliber.search.searcher import Searcher


def plan_rules(
    config: CaliberConfig,
    trajectory_id: uuid.UUID | None = None,
    *,
    query: str | None = None,
    max_tokens: int | None = None,
    principal: Principal | None = None,
    clock: Clock | None = None,
) -> WindowPlan:
    """Return the window that a configuration would assemble now, and what each of its rules selects.

    Without ``trajectory_id`` it is that of the most recently used active trajectory. ``query`` is as for
    ``assemble_context``: None stands for the last user turn, or the goal.

    Raises: NotFound for an unknown trajectory; InvalidValue, BudgetTooSmall; MultipleErrors for a filter that does not
        compile; Unavailable, SchemaMismatch for a store that cannot be opened.
    """
    clock = clock or SystemClock()
    who = config.principal.to_principal() if principal is None else arguments.as_principal(principal)
    budget = config.token_budget if max_tokens is None else arguments.as_whole(max_tokens, "max_tokens", 1)
    if budget > config.token_budget:
        raise InvalidValue(field="max_tokens", reason=f"must be at most token_budget = {config.token_budget}")
    with bare_store(config, clock.now_us) as store:
        resident = config.resident
        memory = ResidentMemory(
            store,
            resident_bytes=resident.resident_bytes,
            evaluator=open_evaluator(resident.evaluator, config.cache_path),
        )
        snapshot = memory.snapshot
        readers = Readers(TaskOwners(memory, clock.now_us, config.access, store.catalog), who)
        if trajectory_id is None:
            trajectory_id = latest_task(memory, readers, who)
            if trajectory_id is None:
                raise NotFound("there is no active trajectory yet", entity_type=TASKS, id="latest")
        readers = readers.acting_for(trajectory_id)
        snapshot = readers.within(snapshot)
        vector, space_id = _embedded(config, snapshot, query)
        stated = stated_query(config, query, vector)
        query_source = stated or default_query(snapshot, memory, trajectory_id, space_id)
        now = clock.now_us()
        asked = AssemblyInputs(
            snapshot=snapshot,
            trajectory_id=TrajectoryId(trajectory_id),
            max_tokens=budget,
            as_of_us=now,
            now_us=now,
            window_id=WindowId(uuid7()),
            config=config,
            config_hash=config.hash.hex(),
            principal=who.label,
            masks=readers.masks(snapshot),
            used_by=readers.used_by,
            query=query_source.text,
            query_embedding=query_source.vector,
            vector_expected=query_source.origin == "caller",
            query_from=query_source.origin,
            space_id=space_id,
            once=PendingInjections(memory).waiting(trajectory_id),
        )
        searcher = Searcher(memory, config.search, tuple(kinds_of(store.catalog).values()))
        return window_plan(assemble(asked, memory, searcher), query_source)


def _embedded(
    config: CaliberConfig, snapshot: ResidentSnapshot, query: str | None
) -> tuple[NDArray[np.float32] | None, SpaceId | None]:
    """Return the vector of a query in the space that is searched, if this configuration embeds for it."""
    space_id = snapshot.space_in_use
    if space_id is None or config.embedding_provider is None:
        return None, None
    space = snapshot.spaces[space_id]
    provider = build_embedding_provider(config.embedding_provider)
    if query is None or not query.strip() or not is_of(space, provider):
        return None, space.space_id
    return np.asarray(provider.embed(query), np.float32), space.space_id
