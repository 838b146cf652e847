"""Database queries for injection rules, where records are not in memory (``search.mode = "backend"``).

For each rule they read the newest records that its filter matches, as many as the rule could select; the search reads
those that match the query. Source: design, section 5; docs/search.md, docs/decisions/0166.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caliber.access.visibility import Readers
from caliber.config.injection import InjectionKind
from caliber.context import limits
from caliber.context.plan import AssemblyPlan, SectionPlan
from caliber.context.rules import RulePlan
from caliber.dsl.variables import variables_of
from caliber.model.access import Principal
from caliber.schema.predicate import Variable, all_of
from caliber.schema.validity import asked_us, validity
from caliber.search.filtering.filters import Where
from caliber.search.request import Asked
from caliber.storage.compile.codec import Row
from caliber.storage.compile.conditions import PAGE_ROWS, Listing
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store


class RuleRows:
    """The rules of one window, and its principal. Units: ``as_of_us`` is valid time, ``now_us`` the clock."""

    def __init__(
        self,
        plan: AssemblyPlan,
        trajectory_id: uuid.UUID,
        scope_id: uuid.UUID | None,
        principal: Principal,
        readers: Readers,
        as_of_us: int,
        now_us: int,
    ) -> None:
        self._plan = plan
        self._trajectory_id = trajectory_id
        self._scope_id = scope_id
        self._principal = principal.label
        self._as_of_us, self._now_us = as_of_us, now_us
        self._readers = readers

    def newest(self, store: Store, session: StatementSession, section: SectionPlan) -> list[Row]:
        """Return the newest notes, or records of a declared memory, that match a rule's filter."""
        rule, source = section.rule, section.source
        assert rule is not None
        relation = store.catalog.by_name[self._plan.records[source].name]
        met, age = all_of(validity(relation), rule.predicate), relation.column(relation.age)
        listing = Listing(relation, met, store.dialect, age, descending=True)
        most = self.limit(rule)
        rows = listing.rows(session, self._variables(source), page_rows=max(1, min(PAGE_ROWS, most)))
        return list(itertools.islice((row for row in rows if self._readers.allows_row(relation, row)), most))

    def question(self, section: SectionPlan, base: Asked) -> Asked:
        """Return the question that a rule asks a search."""
        rule, kind = section.rule, self._plan.records[section.source].name
        assert rule is not None
        most = rule.mode.count or limits.RELEVANT_LIMIT
        where = None if rule.predicate is None else Where({kind: rule.predicate}, self._variables(section.source))
        return replace(base, kinds=(kind,), limit=max(1, most), where=where)

    def limit(self, rule: RulePlan) -> int:
        """Return how many of the newest records a rule selects where nothing ranks them."""
        if rule.kind is InjectionKind.TOP_K:
            return rule.mode.count or 0
        return limits.RECENCY_FALLBACK_LIMIT if rule.kind is InjectionKind.RELEVANT else limits.RULE_LIMIT

    def _variables(self, source: int) -> Mapping[Variable, Any]:
        at = asked_us(self._plan.records[source], self._as_of_us, self._now_us)
        return variables_of(self._trajectory_id, self._scope_id, self._principal, at)
