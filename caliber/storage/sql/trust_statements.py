"""SQL statements that lower a record's trust label to the least trusted of its parts (``Trust.least_of``).

One text serves both databases; the dialect writes parameters and locks.
"""

from __future__ import annotations

from collections.abc import Iterator

from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME, RELATIONS
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import quote, quote_all


def distrust_of(label: str) -> str:
    """Return the place of a label in the order of trust: 0 for the most trusted."""
    cases = " ".join(f"WHEN '{each}' THEN {each.distrust}" for each in TrustLabel)
    return f"CASE {label} {cases} END"


def trust_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each statement, by its name in ``IRREGULAR``."""
    return {
        name: sql
        for owner in RELATIONS
        if owner.trust is not None and owner.trust.least_of is not None
        for name, sql in _of(owner, owner.trust.column, BY_NAME[owner.trust.least_of], dialect)
    }


def _of(owner: Relation, label: str, parts: Relation, dialect: Dialect) -> Iterator[tuple[str, str]]:
    assert parts.trust is not None  # the least of their labels
    refers = next(key for key in parts.foreign_keys if key.relation == owner.name)
    one, two = dialect.placeholder(1), dialect.placeholder(2)
    table, trust, key = dialect.table(owner.name), quote(label), quote(refers.target)
    row = quote_all(codec_of(owner).names)
    lower = (
        f"UPDATE {table} SET {trust} = {one}, version = version + 1 WHERE {key} = {two}"
        f" AND {distrust_of(trust)} < {distrust_of(one)} RETURNING {row}"
    )
    yield f"{owner.name}.distrust", lower
    labels = " ".join(f"WHEN {each.distrust} THEN '{each}'" for each in TrustLabel)
    # Locked in the order of their keys, as by writers that share a transaction.
    lower_loaded = (
        f"WITH loaded AS (SELECT {quote(refers.column)} AS of_owner, max({distrust_of(quote(parts.trust.column))})"
        f" AS least FROM {dialect.table(parts.name)} WHERE ordinal > {one} GROUP BY {quote(refers.column)}),"
        f" fallen AS (SELECT of_owner, least FROM {table} AS mine JOIN loaded ON of_owner = mine.{key}"
        f" WHERE {distrust_of(f'mine.{trust}')} < least ORDER BY of_owner{dialect.update_lock})"
        f" UPDATE {table} SET {trust} = CASE least {labels} END, version = version + 1 FROM fallen"
        f" WHERE {key} = of_owner AND {distrust_of(trust)} < least RETURNING {row}"
    )
    yield f"{owner.name}.distrust_loaded", lower_loaded
