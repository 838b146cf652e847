"""Checking a store: its database, what must hold in it, and that memory equals it.

Source: P-084; docs/decisions/0140.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

from caliber.config import CaliberConfig
from caliber.model.errors import CaliberError, SchemaMismatch
from caliber.runtime.engine import Engine
from caliber.runtime.full_text import check_full_text
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, CONFIG_DOCUMENT, EMBEDDING, NOTE, TRAJECTORY
from caliber.storage.care import Stages
from caliber.storage.outdated import check_current
from caliber.storage.paging import pages
from caliber.storage.protocol import Store
from caliber.storage.session import StatementSession
from caliber.storage.soundness import EXAMPLES, Finding, FindingKind, ask, key_text, out_of_numbers, questions

_PAGE: Final = 100
"""Rows read at once: contents may be large."""
_DAMAGED: Final = "restore a backup: copy the store away first, other rows may be newer in it"


def check_store(store: Store, config: CaliberConfig, progress: Stages) -> list[Finding]:
    """Return everything that does not hold in a store, by its database and by ours; writes nothing.

    Raises: Unavailable; SchemaMismatch when its memories were changed since it was opened
    """
    found = [
        Finding(FindingKind.DATABASE, "", 1, line, _DAMAGED)
        for line in store.integrity()
        if not line.startswith("dangling reference") and not line.endswith("is missing")  # counted below
    ]
    care = store.care
    asked = list(questions(care, store.catalog))
    with store.read() as session:
        check_current(session, store.statements, store.catalog)
        missing = care.missing(session)
        found += [
            Finding(FindingKind.SCHEMA, "", 1, f"{what} is missing", "run `caliber db migrate`, else restore a backup")
            for what in missing
        ]
        if any(what.startswith("column") for what in missing):
            return found  # nothing can be asked of what is not there
        for number, question in enumerate(asked):
            progress("checking rules", number, len(asked))
            finding = ask(session, question, care.table, number)
            found += [finding] if finding is not None else []
        found += out_of_numbers(session, care.table, care.ordinals(session), store.catalog)
        found += _strays(store, session)
        found += _hashes(store, session, progress)
    progress("checking rules", len(asked), len(asked))
    for line in check_full_text(store, config):
        found.append(Finding(FindingKind.FULL_TEXT, "", 1, line, "run `caliber db rebuild-search --full-text`"))
    return found


def check_memory(engine: Engine) -> list[Finding]:
    """Return in what memory and store disagree, a finding for each relation and way."""
    engine.check_open()
    grouped: dict[tuple[str, str], list[int]] = defaultdict(list)
    try:
        for item in engine.memory.verify():
            grouped[item.relation, item.what].append(item.ordinal)
    except SchemaMismatch as error:
        return [not_opened(error)]
    advice = "open the store anew; if that does not help, please report it"
    return [
        Finding(
            FindingKind.MEMORY,
            relation,
            len(ordinals),
            f"memory: {what}",
            advice,
            tuple(f"ordinal {ordinal}" for ordinal in ordinals[:EXAMPLES]),
        )
        for (relation, what), ordinals in grouped.items()
    ]


def not_opened(error: CaliberError) -> Finding:
    """Return the finding that records cannot be read into memory."""
    return Finding(FindingKind.MEMORY, "", 1, f"memory cannot be made of the store: {error.message}", _DAMAGED)


def _strays(store: Store, session: StatementSession) -> Iterator[Finding]:
    """Yield vectors of spaces that there are not: no statement of a relation's can tell them."""
    rows = session.run(store.statements["embedding.spaceless"], (-1, 1_000))
    if rows:
        names = tuple(f"ordinal {row[0]}" for row in rows[:EXAMPLES])
        what = "belongs to a space that is gone"
        yield Finding(FindingKind.EMBEDDING, EMBEDDING.name, len(rows), what, "run `caliber db sweep`", names)


# --- hashes ---------------------------------------------------------------------------------------


def _content(entity: Any) -> tuple[bytes, bytes] | None:
    content = entity.content if isinstance(entity.content, bytes) else entity.content.encode()
    return content, entity.content_hash


def _goal(entity: Any) -> tuple[bytes, bytes] | None:
    return None if entity.goal is None else (entity.goal.encode(), entity.goal_hash)


def _body(entity: Any) -> tuple[bytes, bytes] | None:
    return entity.body.encode(), entity.config_hash


_HASHED: Final[tuple[tuple[Relation, str, Callable[[Any], tuple[bytes, bytes] | None]], ...]] = (
    (ARTIFACT, "content", _content),
    (NOTE, "content", _content),
    (TRAJECTORY, "goal", _goal),
    (CONFIG_DOCUMENT, "body", _body),
)


def _hashes(store: Store, session: StatementSession, progress: Stages) -> Iterator[Finding]:
    """Yield what is no longer what its hash was made of: no database sees that."""
    total = sum(session.run(store.plans[relation.name].count, ())[0][0] for relation, *_ in _HASHED)
    done = 0
    for relation, column, parts_of in _HASHED:
        plans = store.plans[relation.name]
        damaged: list[str] = []
        for rows in pages(session, plans, _PAGE):
            for row in rows:
                parts = parts_of(plans.codec.decode(row))
                if parts is not None and hashlib.sha256(parts[0]).digest() != parts[1]:
                    damaged.append(key_text(plans.codec.key_of(row)))
            done += len(rows)
            progress("checking hashes", done, total)
        if damaged:
            what = f"{column} is not what its hash was made of"
            examples = tuple(damaged[:EXAMPLES])
            yield Finding(FindingKind.HASH, relation.name, len(damaged), what, _DAMAGED, examples)
