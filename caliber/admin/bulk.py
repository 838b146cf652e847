"""Public bulk load and read of relations (``memory.storage``), with checks of arguments and embedding spaces.

Source: design section 4; C-195, D-005.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.deadline import check
from caliber.model.errors import InvalidRow, InvalidValue
from caliber.model.progress import Progress, unheard
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.memories import MemoryBinding
from caliber.schema.relation import Relation
from caliber.schema.relations import EMBEDDING_SPACE
from caliber.storage.bulk import arrow
from caliber.storage.bulk.checks import Maker
from caliber.storage.bulk.columns import rows_of
from caliber.storage.bulk.load import batches_of
from caliber.storage.bulk.protocol import Batch, BulkReport, OnExisting
from caliber.storage.compile.codec import codec_of
from caliber.storage.protocol import reading
from caliber.storage.sql.search_statements import kinds_of
from caliber.trajectory.summarizer import TurnSummarizer


def relation_named(name: str, catalog: Catalog = BUILT_IN) -> Relation:
    """Return a relation by its name or its plural, which is that of the memory for a declared one.

    Raises: InvalidValue, DTypeError, RequiredFieldMissing
    """
    arguments.as_text(name, "relation")
    found = (relation for relation in catalog.relations if name in (relation.name, relation.plural))
    relation = catalog.by_name.get(name) or next(found, None)
    if relation is None:
        raise InvalidValue(field="relation", reason=f"there is no {name}; there are {', '.join(catalog.by_name)}")
    return relation


def load(
    engine: Engine,
    name: str,
    data: Any,
    *,
    on_existing: OnExisting | str,
    progress: Progress | None,
    batch_rows: int,
) -> BulkReport:
    """Load an Arrow table or stream; see ``Tables.bulk_load``.

    Records without vectors get them later, as those of other processes do.
    """
    engine.check_open()
    arguments.as_whole(batch_rows, "batch_rows")
    relation = relation_named(name, engine.store.catalog)
    source = arrow.source_of(data, max(1, batch_rows))
    treatment = arguments.as_enum(on_existing, OnExisting, "on_existing")
    report_progress = arguments.as_callback(progress, "progress") or unheard
    loadable = engine.store.catalog.loadable
    if relation not in loadable:
        names = ", ".join(each.name for each in loadable)
        raise InvalidValue(field="relation", reason=f"{relation.name} is written by the store itself; load {names}")
    with reading(engine.store, relation):
        pass  # a dropped memory takes no records, though another one may have its name
    maker = Maker(engine.clock.now_us(), engine.estimator)
    owners = tuple(kinds_of(engine.store.catalog))
    batches = batches_of(relation, source, maker, _spaces(engine), owners, engine.store.catalog.kinds)

    def in_time(stage: str, done: int, total: int | None) -> None:
        check("rows were loaded; none was kept")
        report_progress(stage, done, total)

    memory = engine.store.catalog.declared.get(relation.name)
    if memory is not None and memory.type.key:
        batches = _at_keys(memory, batches)
    check("rows were about to be loaded")
    report = engine.store.bulk_load(relation, batches, treatment, in_time)
    embedder, summaries = engine.part(Embeddings).embedder, engine.find_part(TurnSummarizer)
    if report.loaded and relation.name in owners and embedder is not None:
        embedder.loaded()
    if report.loaded and summaries is not None and summaries.follows(relation):
        summaries.loaded()
    return report


def read(engine: Engine, relation: str, *, batch_rows: int) -> Any:
    """Return a ``pyarrow.RecordBatchReader``; see ``Tables.bulk_read``."""
    engine.check_open()
    arguments.as_whole(batch_rows, "batch_rows")
    source = relation_named(relation, engine.store.catalog)
    batches = engine.store.bulk_read(source, max(1, batch_rows))
    return arrow.load_pyarrow().RecordBatchReader.from_batches(arrow.schema_of(source), batches)


def _at_keys(memory: MemoryBinding, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches of records, each of which has the id of its key. Raises: InvalidRow."""
    from caliber.memories.keys import key_of

    relation, key = memory.relation, memory.type.key
    for batch in batches:
        for at, row in enumerate(rows_of(relation, batch.columns, batch.rows)):
            record = codec_of(relation).decode(row)
            if record.record_id != key_of(memory, {name: getattr(record, name) for name in key}):
                reason = f"does not follow from the key ({', '.join(key)}); write such records by put_many"
                raise InvalidRow(row=batch.first_row + at, field="record_id", reason=reason)
        yield batch


def _spaces(engine: Engine) -> dict[bytes, int]:
    plan = engine.store.plans[EMBEDDING_SPACE.name].page
    with engine.store.read() as session:
        rows = session.run(plan, (-1, 1_000_000))
    codec = engine.store.plans[EMBEDDING_SPACE.name].codec
    space, dimensions = codec.index("space_id"), codec.index("dimensions")
    return {row[space]: row[dimensions] for row in rows}
