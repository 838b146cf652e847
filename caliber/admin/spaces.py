"""Administration of embedding spaces (report, reembed, drop), orphaned vectors, rebuild of all search data.

Source: issue "Search in native memory", item 10; relations.md, rule 6 (integrity of polymorphic references).
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from caliber.admin.table import Table
from caliber.embedding import reembedding
from caliber.embedding.backfill import EmbeddedKinds
from caliber.embedding.embedder import Embedder
from caliber.embedding.embedding_target import embedded_text
from caliber.embedding.reembedding import FillStatus, Reembedded, build_index, in_use_of, space_event
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.events import event_log
from caliber.llm.cache import content_hash
from caliber.model import arguments
from caliber.model.embedding import Embedding, EmbeddingSpace, SpaceState
from caliber.model.errors import Conflict, ConstraintViolation, InvalidValue, NotFound, ProviderNotConfigured
from caliber.model.events import EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.progress import Progress, unheard
from caliber.schema.relations import EDGE, EMBEDDING, EMBEDDING_SPACE
from caliber.search.in_database.full_text import WordIndexer
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import dump_json, last_of
from caliber.storage.maintain.integrity import dangling_links
from caliber.storage.write.unit_of_work import UnitOfWork

_BATCH_ROWS = 2_000
"""Rows of one transaction: writers of the store wait for it."""

_ID_PREFIX = 8


@dataclass(frozen=True, slots=True)
class SpaceReport:
    """One space. Units: ``vectors`` rows; ``records`` that have some, ``pending`` that lack one; bytes.

    ``provider`` is the section of the configuration that embeds for it here, or None.
    """

    name: str
    space_id: uuid.UUID
    state: str
    model_id: str
    dimensions: int
    metric: str
    provider: str | None
    vectors: int
    records: int
    pending: int
    stored_bytes: int
    resident_bytes: int
    created_at: datetime
    index: str | None = None
    """The database's own index of it: its definition, and the progress of its build."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Orphaned vectors and links, counted; ``removed`` tells whether they were deleted. Units: rows."""

    owner_gone: int
    owner_out_of_use: int
    space_unknown: int
    empty_spaces: tuple[str, ...]
    links: int
    removed: bool

    @property
    def count(self) -> int:
        """All of them."""
        return self.owner_gone + self.owner_out_of_use + self.space_unknown + len(self.empty_spaces) + self.links


_STATES = {SpaceState.ACTIVE: "in use", SpaceState.BUILDING: "being filled", SpaceState.RETIRED: "retired"}


def kinds_embedded(engine: Engine) -> tuple[str, ...]:
    """Return the kinds of records that are to have vectors."""
    return EmbeddedKinds(engine.store.catalog, engine.config).wanted


def all_spaces(engine: Engine) -> list[EmbeddingSpace]:
    """Return every space of the store, oldest first."""
    plans = engine.store.plans[EMBEDDING_SPACE.name]
    with engine.store.read() as session:
        return [plans.codec.decode(row) for row in session.run(plans.lists["list_all"], ())]


class SpaceTable(Table, of=EMBEDDING_SPACE):
    """Embedding spaces."""

    def report(self) -> list[SpaceReport]:
        """Return a report of each space, oldest first: its contents and its use."""
        engine = self._engine
        engine.check_open()
        spaces = all_spaces(engine)
        active = in_use_of(spaces)
        kinds, held = kinds_embedded(engine), list(engine.memory.mirrors.indexes.items())
        out = []
        for space in spaces:
            with engine.store.read() as session:
                rows = session.run(engine.store.statements["embedding.of_space"], (space.space_id.bytes,))
            _, pending = reembedding.count(engine.store, space.space_id.bytes, kinds)
            vectors = sum(row[1] for row in rows)
            state = _STATES[space.state]
            if space.state is SpaceState.ACTIVE and space != active:
                state = _STATES[SpaceState.RETIRED]
            out.append(
                SpaceReport(
                    name=space.name,
                    space_id=space.space_id,
                    state=state,
                    model_id=space.model_id,
                    dimensions=space.dimensions,
                    metric=space.metric.value,
                    provider=_section_of(engine, space),
                    vectors=vectors,
                    records=sum(row[2] for row in rows),
                    pending=pending,
                    stored_bytes=vectors * space.dimensions * 4,
                    resident_bytes=sum(index.nbytes for key, index in held if key[1] == space.space_id),
                    created_at=space.created_at,
                    index=_index_of(engine, space),
                )
            )
        return out

    def _embedder(self) -> Embedder:
        embedder = self._engine.part(Embeddings).embedder
        if embedder is None:
            raise ProviderNotConfigured(capability="embedding")
        return embedder

    def progress(self) -> FillStatus:
        """Return how far the space of the configured model is. Raises: ProviderNotConfigured."""
        self._engine.check_open()
        return self._embedder().backfiller.progress()

    def reembed(self, *, accept_refused: bool = False, progress: Progress | None = None) -> Reembedded:
        """Give every record its vector of the configured model, and search with that from then on.

        ``progress`` hears of each batch. Whatever ends it, the next call goes on from there. A model
        that refused more than a tenth of the records takes over only with ``accept_refused``.

        Raises: ProviderNotConfigured, LlmError kinds of an outage, Conflict when another program retired the space.
        """
        self._engine.check_open()
        embedder = self._embedder()
        report = arguments.as_callback(progress, "progress") or unheard
        accepted = arguments.as_flag(accept_refused, "accept_refused")
        return embedder.backfiller.reembed(report, accept_refused=accepted)

    def find(self, name: str) -> EmbeddingSpace:
        """Return a space by its name, its model if that has one space, its id, or how its id begins.

        Raises: NotFound; InvalidValue for what several spaces answer to.
        """
        name_text = arguments.as_text(name, "name")
        spaces = all_spaces(self._engine)
        found = [space for space in spaces if name_text in (space.name, str(space.space_id))]
        if not found:
            by_id = len(name_text) >= _ID_PREFIX
            found = [
                space
                for space in spaces
                if space.model_id == name_text or (by_id and str(space.space_id).startswith(name_text.lower()))
            ]
        if len(found) > 1:
            reason = f"the name matches several spaces: {', '.join(space.name for space in found)}"
            raise InvalidValue(field="space", reason=reason)
        if not found:
            raise NotFound(entity_type="embedding_space", id=name)
        return found[0]

    def drop(self, name: str, *, progress: Progress | None = None) -> int:
        """Delete a space that is not searched, its vectors and its cached ones; return how many vectors.

        Each batch is a transaction of its own; what ends it leaves a retired space, which can be dropped again.

        Raises: NotFound; ConstraintViolation for the space in use, and for that of the configured model; Conflict when
            another program begins to fill it meanwhile.
        """
        engine = self._engine
        engine.check_open()
        report = arguments.as_callback(progress, "progress") or unheard
        space = self.find(name)
        self._check_droppable(space)
        engine.write(lambda uow: _retire(uow, space.space_id))
        if engine.store.vector_index is not None:
            engine.store.vector_index.drop(space.space_id)
        with engine.store.read() as session:
            rows = session.run(engine.store.statements["embedding.of_space"], (space.space_id.bytes,))
        total, dropped = sum(row[1] for row in rows), 0

        def drop_some(uow: UnitOfWork) -> int:
            return uow.execute("embedding.drop_some", _retired(uow, space).space_id.bytes, _BATCH_ROWS)

        while deleted := engine.write(drop_some):
            dropped += deleted
            report(space.name, dropped, max(total, dropped))
        cached = (space.model_id, space.dimensions, _BATCH_ROWS)
        while engine.write(lambda uow: uow.execute("embedding_cache.drop_some", *cached)):
            pass

        def finish(uow: UnitOfWork) -> None:
            found = _retired(uow, space)
            uow.delete(EMBEDDING_SPACE, found)
            event_log.audit(uow, space_event(engine, EventType.SPACE_DROP, found, {"vectors": dropped}))

        engine.write(finish)
        return dropped

    def _check_droppable(self, space: EmbeddingSpace) -> None:
        active = in_use_of(all_spaces(self._engine))
        if active is not None and active.space_id == space.space_id:
            raise ConstraintViolation(
                constraint="space in use",
                reason=f"{space.name} is the active search space; configure another model as embedding_provider, run "
                "`caliber db reembed`, and drop it then",
            )
        embedder = self._engine.part(Embeddings).embedder
        if embedder is not None and embedder.space.space_id == space.space_id:
            raise ConstraintViolation(
                constraint="space configured",
                reason=f"{space.name} is the space of embedding_provider and would be filled again; to stop using "
                "that model, configure the active one again, then drop the space",
            )


def _index_of(engine: Engine, space: EmbeddingSpace) -> str | None:
    found = None if engine.store.vector_index is None else engine.store.vector_index.of(space.space_id)
    if found is None:
        return None
    state = found.doing or ("" if found.usable else "not valid: run `caliber db rebuild-search`")
    return f"{found.method}, {state}" if state else found.method


def _section_of(engine: Engine, space: EmbeddingSpace) -> str | None:
    embedder = engine.part(Embeddings).embedder
    if embedder is None:
        return None
    if embedder.space.space_id == space.space_id:
        return "embedding_provider"
    return None if embedder.answering(space.space_id) is None else "previous_embedding_provider"


def _retire(uow: UnitOfWork, space_id: uuid.UUID) -> None:
    """Take a space out of every program's memory, so that its rows can go untold."""
    space: EmbeddingSpace = uow.get(EMBEDDING_SPACE, space_id.bytes)
    if space.state is not SpaceState.RETIRED:
        active = in_use_of(uow.select_path(EMBEDDING_SPACE, "list_all"))
        if active is not None and active.space_id == space_id:
            raise Conflict(entity_type="embedding_space", id=space.name, reason="the space became active meanwhile")
        uow.update(EMBEDDING_SPACE, dataclasses.replace(space, state=SpaceState.RETIRED))


def _retired(uow: UnitOfWork, space: EmbeddingSpace) -> EmbeddingSpace:
    found: EmbeddingSpace = uow.get(EMBEDDING_SPACE, space.space_id.bytes)
    if found.state is not SpaceState.RETIRED:
        raise Conflict(
            entity_type="embedding_space",
            id=space.name,
            reason="another program opened with this model is filling the space again",
        )
    return found


# --- strays ---------------------------------------------------------------------------------------


def sweep(engine: Engine, *, dry_run: bool) -> Sweep:
    """Find vectors and links of deleted records, vectors of inactive ones or unknown spaces, empty spaces; remove them.

    With ``dry_run`` they are counted only.
    """
    engine.check_open()
    deleted = out_of_use = 0
    for kind in EmbeddedKinds(engine.store.catalog, engine.config).all:
        for rows in _pages(engine, f"embedding.strays_{kind}", dry_run):
            orphans = sum(bool(row[1]) for row in rows)
            deleted += orphans
            out_of_use += len(rows) - orphans
    unknown = sum(len(rows) for rows in _pages(engine, "embedding.spaceless", dry_run))
    spaces, links = _empty_spaces(engine, dry_run), _dangling(engine, dry_run)
    return Sweep(deleted, out_of_use, unknown, spaces, links, not dry_run)


def _dangling(engine: Engine, dry_run: bool) -> int:
    """Return the number of links of which an end is gone, which are deleted page by page."""
    with engine.store.read() as session:
        keys = dangling_links(session, engine.store.dialect, engine.store.catalog)

    def work(start: int, uow: UnitOfWork) -> None:
        for key in keys[start : start + _BATCH_ROWS]:
            edge = uow.find(EDGE, key)
            if edge is not None:
                uow.delete(EDGE, edge)

    for start in () if dry_run else range(0, len(keys), _BATCH_ROWS):
        engine.write(functools.partial(work, start))
    return len(keys)


def _pages(engine: Engine, statement: str, dry_run: bool) -> Any:
    """Yield pages of orphaned vectors, each deleted in the transaction that finds it."""
    last = -1

    def work(uow: UnitOfWork) -> list[Any]:
        rows = uow.select(statement, last, _BATCH_ROWS)
        if rows:
            uow.remove(EMBEDDING, "embedding.drop_many", dump_json([row[0] for row in rows]))
        return rows

    while True:
        if dry_run:
            with engine.store.read() as session:
                rows = session.run(engine.store.statements[statement], (last, _BATCH_ROWS))
        else:
            rows = engine.write(work)
        if not rows:
            return
        yield rows
        last = last_of(rows, last)


def _empty_spaces(engine: Engine, dry_run: bool) -> tuple[str, ...]:
    embedder = engine.part(Embeddings).embedder
    open_space_id = None if embedder is None else embedder.space.space_id

    def find(uow: UnitOfWork) -> list[EmbeddingSpace]:
        spaces: list[EmbeddingSpace] = uow.select_path(EMBEDDING_SPACE, "list_all")
        empty = [
            space
            for space in spaces
            if space.state is SpaceState.RETIRED
            and space.space_id != open_space_id
            and not uow.select("embedding.of_space", space.space_id.bytes)
        ]
        for space in () if dry_run else empty:
            uow.delete(EMBEDDING_SPACE, space)
        return empty

    found: list[EmbeddingSpace] = engine.write(find)
    if engine.store.vector_index is not None and not dry_run:
        for space in found:
            engine.store.vector_index.drop(space.space_id)
    return tuple(space.name for space in found)


# --- rebuilding derived data -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Rebuilt search structures. Units: ``outdated``, ``vectors``, ``texts``: records; ``full_text``: rows, or None
    where the store keeps none. ``differences`` is what is wrong even so.
    """

    swept: Sweep
    outdated: int
    vectors: int
    full_text: int | None
    texts: int
    differences: tuple[str, ...]


def rebuild_search(
    engine: Engine, verify: Callable[[], Sequence[str]], progress: Progress, *, full_text: bool
) -> Rebuilt:
    """Rebuild everything that search reads, and verify it; ``progress`` is called as each stage begins.

    Orphaned vectors are removed; vectors of changed texts are dropped, and missing ones are made; the store's own full
    text, where there is one, is rewritten; memory and its keyword index are reloaded.

    Raises: LlmError kinds of an outage.
    """
    engine.check_open()
    progress("removing strays", 0, None)
    swept = sweep(engine, dry_run=False)
    outdated = made = 0
    embedder = engine.part(Embeddings).embedder
    if embedder is not None:
        progress("making vectors that are missing or outdated", 0, None)
        for target in embedder.targets:
            outdated += _drop_outdated(engine, target.key)
        before = _vectors(engine)
        embedder.drain()
        made = _vectors(engine) - before
    rows = None
    kept = engine.store.full_text if full_text else None
    if kept is not None and kept.state() is not None:
        progress("writing full text anew", 0, None)
        rows = kept.rebuild(WordIndexer(engine.config.search.keyword.language))
    if engine.store.vector_index is not None:
        progress("indexing vectors", 0, None)
        build_index(engine.store, engine.config)
    progress("reading memory anew", 0, None)
    engine.memory.reload()
    texts = 0
    if engine.part(SearchEngine).stored is None:
        snapshot = engine.snapshot()
        for kind in engine.part(SearchEngine).searcher.kinds:
            engine.part(SearchEngine).searcher.keywords.of(snapshot[kind])
            texts += snapshot[kind].count()
    progress("verifying", 0, None)
    return Rebuilt(swept, outdated, made, rows, texts, tuple(verify()))


def _vectors(engine: Engine) -> int:
    with engine.store.read() as session:
        total: int = session.run(engine.store.plans[EMBEDDING.name].count, ())[0][0]
    return total


def _drop_outdated(engine: Engine, space_id: bytes) -> int:
    """Drop the vectors of records whose text has changed; return the number of records."""
    dropped = 0
    for kind in kinds_embedded(engine):
        last = -1
        while True:
            with engine.store.read() as session:
                rows = session.run(engine.store.statements[f"embedding.hashes_{kind}"], (space_id, last, _BATCH_ROWS))
            if not rows:
                break
            last = last_of(rows, last)
            outdated = [row[1] for row in rows if _hash(row[2], row[3]) != row[4]]
            if outdated:
                dropped += engine.write(functools.partial(_drop_vectors, space_id, outdated))
    return dropped


def _hash(head: str | None, raw: str | bytes) -> bytes:
    return content_hash(embedded_text(head, raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw))


def _drop_vectors(space_id: bytes, owners: Sequence[bytes], uow: UnitOfWork) -> int:
    for owner in owners:
        rows: list[Embedding] = uow.select_path(EMBEDDING, "list_by_owner", owner)
        for row in rows:
            if row.space_id.bytes == space_id:
                uow.delete(EMBEDDING, row)
    return len(owners)


# --- saying where things are ----------------------------------------------------------------------------


def in_short(engine: Engine) -> dict[str, Any] | None:
    """Return the active space, whether its provider answers, and the space that is being filled.

    None without an embedding provider. From memory alone.
    """
    embedder = engine.part(Embeddings).embedder
    if embedder is None:
        return None
    snapshot = engine.memory.snapshot
    active = engine.part(Embeddings).searched(snapshot)
    filling = embedder.backfiller.is_filling
    return {
        "in_use": None if active is None else active.name,
        "answering": active is not None and embedder.answering(active.space_id) is not None,
        "filling": embedder.space.name if filling else None,
        "filled_by": engine.config.embedding.reembed if filling else None,
    }
