"""Full check of a store: database integrity, rules between rows, and equality of resident memory with the database.

It also rebuilds, completes, drops and checks the full-text index of the database.

Source: P-084; docs/decisions/0139.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final

from caliber.backends import bare_store
from caliber.config import CaliberConfig
from caliber.engine.engine import Engine
from caliber.model.errors import CaliberError, SchemaMismatch, StorageError, Unavailable
from caliber.model.progress import Progress, unheard
from caliber.schema.derived import Derived, Sha256
from caliber.schema.relations import EMBEDDING, RELATIONS
from caliber.search.in_database.full_text import WordIndexer, indexer_of
from caliber.search.in_database.stored import full_text_of
from caliber.storage.compile.codec import UNREADABLE, faults, key_of, key_text
from caliber.storage.compile.derived import hashed, wrong_hash
from caliber.storage.compile.paging import pages
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.maintain.integrity import (
    EXAMPLES,
    Finding,
    FindingKind,
    IntegrityCheck,
    ask,
    out_of_numbers,
    questions,
)
from caliber.storage.protocol import Store
from caliber.storage.stored_memories import check_current

_PAGE: Final = 100
"""Rows read at once: contents may be large."""
_DAMAGED: Final = "restore a backup: copy the store away first, other rows may be newer in it"


Part = tuple[str, Callable[[StatementSession], Iterable[Finding]]]
"""Something to ask of a store, and the relation it is about, if it is one."""


def check_store(store: Store, config: CaliberConfig, progress: Progress) -> list[Finding]:
    """Return all violations in a store, of the database's rules and of ours; it writes nothing.

    A part that is too damaged to be checked is a finding too, and all others are checked nevertheless.

    Raises: SchemaMismatch when its memories were changed since it was opened; Unavailable when it cannot be used now
    """
    found = [
        Finding(FindingKind.DATABASE, "", 1, line, _DAMAGED)
        for line in _lines(store.integrity)
        if not line.startswith("dangling reference") and not line.endswith("is missing")  # counted below
    ]
    missing: list[Finding] = []
    found += _asked(store, [("", functools.partial(_schema, store, missing))])
    if any(finding.what.startswith("column") for finding in missing):
        return found  # a missing store cannot be checked
    every, asked = list(store.plans.values()), list(questions(store.dialect, store.catalog))
    steps = len(every) + len(asked)
    found += _asked(
        store,
        [
            (plans.relation.name, functools.partial(_unreadable, plans, progress, number, steps))
            for number, plans in enumerate(every)
        ],
    )
    damaged = {finding.relation for finding in found if finding.kind is FindingKind.VALUE}
    parts: list[Part] = [
        (question.relation.name, functools.partial(_answer, store, progress, question, number, steps))
        for number, question in enumerate(asked, len(every))
    ]
    parts += [
        (
            "",
            lambda session: out_of_numbers(
                session, store.dialect.table, store.maintenance.ordinals(session), store.catalog
            ),
        ),
        (EMBEDDING.name, functools.partial(_strays, store)),
        ("", functools.partial(_hashes, store, progress, damaged)),
    ]
    found += _asked(store, parts)
    progress("checking rules", steps, steps)
    for line in _lines(lambda: check_full_text(store, config)):
        found.append(Finding(FindingKind.FULL_TEXT, "", 1, line, "run `caliber db rebuild-search --full-text`"))
    return found


def _lines(ask_for: Callable[[], list[str]]) -> list[str]:
    """Return the findings of a check, or a finding that it could not run."""
    try:
        return ask_for()
    except UNREADABLE as error:
        return [f"could not be checked ({type(error).__name__})"]
    except CaliberError as error:
        if not _is_damage(error):
            raise
        return [error.message]


def _is_damage(error: CaliberError) -> bool:
    """Return whether an error is caused by stored data, and not by a temporary failure."""
    if isinstance(error, Unavailable):
        return error.context.get("reason") == "input/output"
    return isinstance(error, StorageError) and not isinstance(error, SchemaMismatch)


def _asked(store: Store, parts: Sequence[Part]) -> list[Finding]:
    """Return the findings of the parts; after a part that fails, the next one gets a new session."""
    found: list[Finding] = []
    remaining = list(parts)
    while remaining:
        relation, before = remaining[0][0], len(remaining)
        try:
            with store.read() as session:
                while remaining:
                    relation, part = remaining.pop(0)
                    found += part(session)
            break
        except UNREADABLE as error:
            what = f"could not be read ({type(error).__name__})"
        except CaliberError as error:
            if not _is_damage(error):
                raise
            what = error.message
        if len(remaining) == before:
            remaining.pop(0)  # there was no session to ask it in
        finding = Finding(FindingKind.DATABASE, relation, 1, what, _DAMAGED)
        found += [] if finding in found else [finding]
    return found


def _schema(store: Store, missing: list[Finding], session: StatementSession) -> list[Finding]:
    """Find missing parts of the schema, and collect them in ``missing``."""
    check_current(session, store.statements, store.catalog)
    missing += [
        Finding(FindingKind.SCHEMA, "", 1, f"{what} is missing", "run `caliber db migrate`, else restore a backup")
        for what in store.maintenance.missing(session)
    ]
    return missing


def _answer(
    store: Store, progress: Progress, question: IntegrityCheck, number: int, total: int, session: StatementSession
) -> list[Finding]:
    progress("checking rules", number, total)
    finding = ask(session, question, store.dialect.table, number)
    return [] if finding is None else [finding]


def _unreadable(
    plans: RelationPlans, progress: Progress, number: int, total: int, session: StatementSession
) -> Iterator[Finding]:
    """Yield the columns of a relation with values that no entity can be built from."""
    progress("checking rules", number, total)
    relation = plans.relation
    by_columns: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for rows in pages(session, plans, _PAGE):
        for row in rows:
            wrong = faults(relation, row, plans.codec.names)
            if wrong:
                by_columns[tuple(wrong)].append(key_of(relation, row))
    for columns, keys in by_columns.items():
        what = f"holds what is no value of its column: {', '.join(columns)}"
        yield Finding(FindingKind.VALUE, relation.name, len(keys), what, _DAMAGED, tuple(keys[:EXAMPLES]))


def check_memory(engine: Engine) -> list[Finding]:
    """Return the differences between memory and store, a finding for each relation and kind."""
    engine.check_open()
    grouped: dict[tuple[str, str], list[int]] = defaultdict(list)
    try:
        for item in engine.memory.verify():
            grouped[item.relation, item.what].append(item.ordinal)
    except UNREADABLE as error:
        return [not_opened(error)]
    except CaliberError as error:
        if not isinstance(error, SchemaMismatch) and not _is_damage(error):
            raise
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


def not_opened(error: Exception) -> Finding:
    """Return the finding that records cannot be read into memory."""
    message = error.message if isinstance(error, CaliberError) else type(error).__name__
    return Finding(FindingKind.MEMORY, "", 1, f"memory cannot be made of the store: {message}", _DAMAGED)


def _strays(store: Store, session: StatementSession) -> Iterator[Finding]:
    """Yield vectors of unknown spaces, which no statement per relation can find."""
    rows = session.run(store.statements["embedding.spaceless"], (-1, 1_000))
    if rows:
        names = tuple(f"ordinal {row[0]}" for row in rows[:EXAMPLES])
        what = "belongs to a space that is gone"
        yield Finding(FindingKind.EMBEDDING, EMBEDDING.name, len(rows), what, "run `caliber db sweep`", names)


# --- hashes ---------------------------------------------------------------------------------------


def check_hashes(store: Store) -> list[Finding]:
    """Return the records whose content no longer matches its hash: SQLite cannot detect that."""
    return _asked(store, [("", functools.partial(_hashes, store, unheard, ()))])


_HASHED: Final = hashed(RELATIONS)


def _hashes(
    store: Store, progress: Progress, unreadable: Container[str], session: StatementSession
) -> Iterator[Finding]:
    """Yield hashes that no longer match their content, which no database checks."""
    total = sum(session.run(store.plans[relation.name].count, ())[0][0] for relation in _HASHED)
    done = 0
    for relation in _HASHED:
        plans = store.plans[relation.name]
        damaged: dict[Derived, list[str]] = defaultdict(list)
        for rows in pages(session, plans, _PAGE):
            for row in rows:
                if relation.name in unreadable and faults(relation, row, plans.codec.names):
                    continue  # reported already
                wrong = wrong_hash(relation, dict(zip(plans.codec.names, row, strict=True)), Sha256)
                if wrong is not None:
                    damaged[wrong].append(key_text(plans.codec.key_of(row)))
            done += len(rows)
            progress("checking hashes", done, total)
        for rule, keys in damaged.items():
            what = f"{rule.of[0]} is not what its hash was made of"
            yield Finding(FindingKind.HASH, relation.name, len(keys), what, _DAMAGED, tuple(keys[:EXAMPLES]))


def rebuild_full_text(config: CaliberConfig, progress: Progress | None = None) -> int:
    """Rebuild the full text of a store; return the number of texts. Writers wait meanwhile.

    Raises: Unavailable, SchemaMismatch; InvalidConfigValue for a database that has no full text
    """
    with bare_store(config) as store:
        return full_text_of(store).rebuild(WordIndexer(config.search.keyword.language), progress or unheard)


def complete_full_text(config: CaliberConfig, progress: Progress | None = None) -> int | None:
    """Rebuild the full text of a store if it is incomplete, as after a migration that changed searched fields.

    Return how many texts it holds; None for a store that has none, or a complete one.
    """
    with bare_store(config) as store:
        state = None if store.full_text is None else store.full_text.state()
        if store.full_text is None or state is None or state.complete:
            return None
        indexer = indexer_of(state.analyzer) or WordIndexer(config.search.keyword.language)
        return store.full_text.rebuild(indexer, progress or unheard)


def drop_full_text(config: CaliberConfig) -> bool:
    """Remove the full text of a store, which writes pay for; return whether there was one."""
    with bare_store(config) as store:
        return store.full_text is not None and store.full_text.drop()


def check_full_text(store: Store, config: CaliberConfig) -> list[str]:
    """Return in what full text and records disagree; empty when sound, or when there is none."""
    full_text = store.full_text
    state = None if full_text is None else full_text.state()
    if full_text is None or state is None:
        return []
    indexer = indexer_of(state.analyzer)
    return full_text.check(WordIndexer(config.search.keyword.language) if indexer is None else indexer)
