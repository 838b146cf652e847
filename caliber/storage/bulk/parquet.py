"""Reader and writer of Parquet files of records, one record batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from caliber.model.errors import InvalidValue, Unavailable
from caliber.model.process.files import refuse_in_use
from caliber.model.process.interrupts import let_through, managed, suppress
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.bulk.arrow import default_array, load_pyarrow, schema_of

if TYPE_CHECKING:
    from pathlib import Path


class ParquetFile(NamedTuple):
    """An open Parquet file: a ``pyarrow.RecordBatchReader``, the number of rows, and the relation that it names."""

    reader: Any
    rows: int
    relation: str | None


@managed
def open_parquet(path: Path, *, batch_rows: int) -> Iterator[ParquetFile]:
    """Open a Parquet file whose rows are read a batch at a time.

    Raises: ExtraNotInstalled, Unavailable, InvalidValue
    """
    pa = load_pyarrow()
    import pyarrow.parquet as parquet

    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise InvalidValue(field=str(path), reason="is not a file, but a folder, a pipe or the like")
    try:
        refuse_in_use(path)
        file = parquet.ParquetFile(path)
    except OSError as error:
        let_through(error)
        if error.errno is None:  # an error about the content, not about the disk
            raise InvalidValue(field=str(path), reason="not a Parquet file") from error
        reason = "it is not there" if isinstance(error, FileNotFoundError) else error.strerror or "the disk said no"
        raise Unavailable(f"{path} cannot be read: {reason}", reason="cannot open", retryable=False) from error
    except pa.ArrowInvalid as error:
        raise InvalidValue(field=str(path), reason="not a Parquet file") from error
    with file:
        schema = file.schema_arrow
        named = (schema.metadata or {}).get(b"relation")
        reader = pa.RecordBatchReader.from_batches(
            schema, _decoded(file.iter_batches(batch_size=batch_rows), str(path))
        )
        yield ParquetFile(reader, file.metadata.num_rows, None if named is None else named.decode("utf-8", "replace"))


def write_parquet(path: Path, reader: Any, progress: Progress) -> int:
    """Write the batches of a reader to a Parquet file; return the number of rows.

    The file appears once it is complete; ``progress`` is called with the number of rows written.

    Raises: ExtraNotInstalled, Unavailable
    """
    import pyarrow.parquet as parquet

    unfinished = path.with_name(f".{path.name}.part")
    rows = 0
    try:
        try:
            refuse_in_use(path)
            with parquet.ParquetWriter(unfinished, reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)
                    rows += batch.num_rows
                    progress(path.name, rows, None)
            unfinished.replace(path)
        except OSError as error:
            let_through(error)
            reason = error.strerror or "the disk said no"
            raise Unavailable(f"{path} cannot be written: {reason}", reason="cannot write", retryable=False) from error
    finally:
        with suppress(OSError):  # a complete file has been renamed
            unfinished.unlink()
    return rows


def parquet_writer(sink: Any, relation: Relation) -> Any:
    """Return a writer of a relation's record batches to a file object, one row group per batch."""
    load_pyarrow()
    import pyarrow.parquet as parquet

    return parquet.ParquetWriter(sink, schema_of(relation), compression="zstd")


def _decoded(batches: Iterator[Any], field: str) -> Iterator[Any]:
    """Yield a file's content. Raises: InvalidValue for a file that is no Parquet."""
    pa = load_pyarrow()
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            let_through(error)
            raise InvalidValue(
                field=field, reason="is damaged, or not a Parquet file that this version reads"
            ) from error
        if batch is None:
            return
        yield batch


def parquet_names(source: Any) -> set[str]:
    """Return the names of the columns of a Parquet file object. Raises: InvalidValue."""
    pa = load_pyarrow()
    import pyarrow.parquet as parquet

    try:
        return set(parquet.read_schema(source).names)
    except (pa.ArrowException, OSError) as error:
        let_through(error)
        raise InvalidValue(field="archive", reason="holds a file that is no Parquet file") from error


def parquet_batches(source: Any, relation: Relation, batch_rows: int) -> Iterator[Any]:
    """Yield the rows of a Parquet file object, one row group in memory at a time; missing columns get their defaults.

    Raises: InvalidValue for a file that is no Parquet, or has other columns than the relation
    """
    pa = load_pyarrow()
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(source)
    except (pa.ArrowInvalid, OSError) as error:
        let_through(error)
        raise InvalidValue(field=relation.name, reason="not a Parquet file") from error
    with file:
        schema, names = schema_of(relation), set(file.schema_arrow.names)
        unknown = sorted(names - set(schema.names))
        absent = {column.name: column for column in relation.columns if column.name not in names}
        lacking = [column.name for column in absent.values() if not column.nullable and column.default is None]
        if len(names) < len(file.schema_arrow.names):
            raise InvalidValue(field=relation.name, reason="has two columns of one name")
        if unknown or lacking:
            reason = f"has columns this version does not know: {', '.join(unknown)}" if unknown else "lacks "
            raise InvalidValue(field=relation.name, reason=reason + ("" if unknown else ", ".join(lacking)))
        for group in range(file.num_row_groups):
            for batch in _decoded(file.iter_batches(batch_size=batch_rows, row_groups=[group]), relation.name):
                arrays = [
                    default_array(absent[field.name], batch.num_rows)
                    if field.name in absent
                    else batch.column(field.name)
                    for field in schema
                ]
                yield pa.record_batch(arrays, names=schema.names)
