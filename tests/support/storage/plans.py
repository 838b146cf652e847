"""Every statement of our databases as one text, as the plan compiler makes it of declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.statements import holding, irregular, own, reserving
from caliber.backends.sqlite.dialect import DIALECT as SQLITE
from caliber.backends.sqlite.statements import STATEMENTS as SQLITE_STATEMENTS
from caliber.schema.catalog import BUILT_IN
from caliber.schema.relation import Relation
from caliber.storage.compile.plan import Dialect, Plan, compile_relation

POSTGRES = PostgresDialect("tenant_a", "extensions")
DIALECTS: dict[str, tuple[Dialect, dict[str, Plan]]] = {
    "sqlite": (SQLITE, SQLITE_STATEMENTS),
    "postgres": (
        POSTGRES,
        {
            **irregular(POSTGRES),
            **own(POSTGRES),
            "erase.hold": holding(POSTGRES, BUILT_IN),
            **{plan.name: plan for plan in reserving(POSTGRES, BUILT_IN).values()},
        },
    ),
}
"""The dialect of each database, and its irregular statements."""


def regular(relation: Relation, dialect: Dialect) -> Iterator[Plan]:
    """Give the statements that are compiled from a declaration, but for those that create its table."""
    plans = compile_relation(relation, dialect)
    single = (plans.insert, plans.insert_or_ignore, plans.upsert, plans.get, plans.update, plans.delete)
    single += (plans.count, plans.page, plans.get_many, plans.find_many, plans.delete_many, plans.lock)
    groups = (plans.lists, plans.references, plans.unique)
    ends = (plans.drawn_from, plans.lapsed, plans.expired, plans.stale, plans.surplus, plans.surplus_by_trajectory)
    for plan in (*single, *(plan for group in groups for plan in group.values()), *ends):
        if plan is not None:
            yield plan


def _shown(plan: Plan) -> list[str]:
    lines = [f"-- {plan.name}", f"--   takes: {', '.join(plan.binds) or 'nothing'}"]
    if plan.results:
        lines.append(f"--   gives: {', '.join(plan.results)}")
    return [*lines, f"{plan.sql};", ""]


def rendered(database: str, relations: Iterable[Relation]) -> str:
    """Return the statements of some relations and every irregular one."""
    dialect, irregular = DIALECTS[database]
    out = []
    for relation in relations:
        out += [f"-- ===== {relation.name}", ""]
        for statement in compile_relation(relation, dialect).create:
            out += [f"{statement};", ""]
        for plan in regular(relation, dialect):
            out += _shown(plan)
    out += ["-- ===== irregular", ""]
    for name in sorted(irregular):
        out += _shown(irregular[name])
    return "\n".join(out)
