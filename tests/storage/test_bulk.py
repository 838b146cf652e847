"""Loading and reading whole relations: what goes in, what comes out, what is refused, what others see of it.

# D-005, C-195, C-041; design section 4
"""

from __future__ import annotations

import hashlib
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contract.entities import plain
from pyarrow.cffi import ffi
from support.configs import DIMENSIONS, config
from support.drawn import needs
from support.inspection import inspect
from support.waits import until

import caliber
from caliber.access.owners import author_of
from caliber.admin.checking import check_full_text, rebuild_full_text
from caliber.model import EntityRef, EntityType, TurnRole
from caliber.model.errors import Conflict, DTypeError, ExtraNotInstalled, InvalidRow, InvalidValue, PermissionDenied
from caliber.schema.catalog import BUILT_IN
from caliber.schema.relations import BY_NAME, RELATIONS
from caliber.storage.bulk.load import row_of_loaded

pytestmark = pytest.mark.usefixtures("bulk")

NOTES = 2_500
WHEN = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)


def notes(count: int, **columns: Any) -> pa.Table:
    """Return the columns that a load of notes needs."""
    values: dict[str, Any] = {
        "entity": [f"thing {number % 7}" for number in range(count)],
        "entity_type": ["topic"] * count,
        "note_type": ["fact"] * count,
        "content": [f"note {number} says é" for number in range(count)],
        "confidence": pa.array(np.linspace(0, 1, count)),
    }
    values.update(columns)
    return pa.table({name: value for name, value in values.items() if value is not None})


@pytest.fixture
def store(backend: Any) -> Any:
    return backend.open(backend.config(embedding_provider=None))


@pytest.fixture(scope="module")
def empty_store(module_backend: Any) -> Any:
    """A store that stays empty: whatever is loaded is refused."""
    return module_backend.open(module_backend.config(embedding_provider=None))


@pytest.fixture
def other() -> Iterator[Any]:
    """Another, empty store."""
    memory = caliber.open(config(":memory:", embedding_provider=None))
    yield memory
    memory.close()


def test_what_is_loaded_is_what_add_note_would_have_made(store: Any) -> None:
    me = author_of(store.principal)
    given = notes(
        3,
        valid_from=pa.array([None, WHEN, WHEN], pa.timestamp("us", "UTC")),
        namespace=["a", None, "b"],
        visible_to=pa.array([None, ["agent:y", "agent:x"], ["agent:x"]], pa.list_(pa.string())),
        created_by=[me] * 3,
        occurred_at=pa.array([None, None, WHEN], pa.timestamp("us", "UTC")),
    )
    report = store.storage.bulk_load("notes", given)
    assert (report.rows, report.loaded, report.skipped, report.change_records) == (3, 3, 0, 1)
    loaded = {note.content: note for note in store.storage.notes.all()}
    said = (
        "entity", "entity_type", "note_type", "content", "confidence", "valid_from", "namespace", "visible_to",
        "occurred_at",
    )  # fmt: skip
    for row in given.to_pylist():
        note = loaded[row["content"]]
        content = row["content"].encode()
        assert note.content_hash == hashlib.sha256(content).digest()
        assert note.token_count == inspect(store).engine.estimator.tokens_of_bytes(content)
        assert (note.version, note.tags, note.importance) == (1, (), None)
        assert note.note_id.version == 7
        # The same statement again is the same note; what came without a label is trusted least.
        assert store.add_note(**{name: row[name] for name in said}, trust="web").note_id == note.note_id
        assert store.get(note.note_id) == note
    assert store.admin.verify() == []


@pytest.fixture
def filled(backend: Any, start: Callable[..., Any]) -> Any:
    """A store with something in every relation that can be loaded."""
    agent = start(backend.open(embedding__embed__turn="commit", embedding__embed__note="commit"))
    memory = agent.memory
    session = memory.start_session(initiator=EntityRef(EntityType.USER, uuid.UUID(int=5)))
    child = memory.start_trajectory(
        "sub",
        initiator=EntityRef(EntityType.AGENT, uuid.UUID(int=7)),
        parent=agent.trajectory_id,
        session=session.session_id,
    )
    agent.say("héllo", name="Ines")
    agent.say(b"\xff\x00raw", role="tool", tool_call_id="c1")
    memory.append_turn(
        agent.scope_id, role=TurnRole.ASSISTANT, content="calls", tool_calls=(caliber.model.ToolCall("c2", "f", "{}"),)
    )
    first = agent.keep("artifact \0 one", confidence=0.5)
    agent.keep("artifact two", ttl=caliber.model.TTL(caliber.model.TTLKind.DURATION, 60_000))
    one, two = agent.note("lakes", tags=("a", "b\0")), agent.note("rivers", visible_to=("agent:x",))
    memory.storage.edges.insert(
        plain(
            BY_NAME["edge"],
            source=EntityRef(EntityType.NOTE, one.note_id),
            target=EntityRef(EntityType.NOTE, two.note_id),
        )
    )
    memory.complete_trajectory(child.trajectory_id, status="success", summary="done")
    assert first.content
    memory.flush()
    return memory


def test_every_relation_comes_back_as_it_went_out(filled: Any, other: Any) -> None:
    for relation in BUILT_IN.loadable:
        table = filled.storage.bulk_read(relation.name, batch_rows=2).read_all()
        assert table.num_rows == filled.storage.get(relation.plural).count()
        report = other.storage.bulk_load(relation.name, table)
        assert report.loaded == table.num_rows
        assert other.storage.bulk_read(relation.plural).read_all().equals(table)
        assert list(other.storage.get(relation.plural).all() if relation.ordinal else ()) == list(
            filled.storage.get(relation.plural).all() if relation.ordinal else ()
        )
    assert other.admin.verify() == []
    for trajectory in filled.storage.trajectories.all():
        assert other.get(trajectory.trajectory_id) == trajectory


def test_every_relation_can_be_read(filled: Any) -> None:
    for relation in RELATIONS:
        table = filled.storage.bulk_read(relation.name).read_all()
        assert table.column_names == [column.name for column in relation.columns]
        assert table.num_rows == filled.storage.get(relation.plural).count()
    with pytest.raises(InvalidValue, match="there is no nothing"):
        filled.storage.bulk_read("nothing")


def test_only_records_can_be_loaded(store: Any) -> None:
    for name in ("change", "schema_migration", "lock", "event"):
        with pytest.raises(InvalidValue, match="written by the store itself"):
            store.storage.bulk_load(name, pa.table({}))


def test_rows_that_are_there_are_refused_or_passed_over(store: Any) -> None:
    store.storage.bulk_load("note", notes(5))
    given = pa.concat_tables([notes(8).slice(5, 2), notes(8).slice(1, 2), notes(8).slice(7, 1)])
    with pytest.raises(Conflict, match="row 2, fingerprint") as caught:
        store.storage.bulk_load("note", given, batch_rows=3)
    assert caught.value.row == 2
    assert store.storage.notes.count() == 5
    report = store.storage.bulk_load("note", given, on_existing="skip", batch_rows=3)
    assert (report.rows, report.loaded, report.skipped, report.skipped_rows.tolist()) == (5, 3, 2, [2, 3])
    assert store.storage.notes.count() == 8
    assert store.admin.verify() == []
    cached = pa.table(
        {"content_hash": [bytes(32)] * 2, "model_id": ["m"] * 2, "dimensions": [2] * 2, "vector": [[0.5, 1.0]] * 2}
    )
    report = store.storage.bulk_load("embedding_cache", cached, on_existing="skip")
    assert (report.loaded, report.skipped_rows.tolist(), report.change_records) == (1, [1], 0)


def test_which_row_a_loaded_one_was() -> None:
    kept = [row for row in range(10) if row not in (0, 3, 4, 9)]
    skipped = np.array([0, 3, 4, 9])
    assert [row_of_loaded(number, skipped) for number in range(6)] == kept


def test_a_change_record_holds_a_thousand_keys_and_others_follow_at_once(backend: Any) -> None:
    store = backend.open(backend.config(embedding_provider=None))
    seen: list[int] = []
    report = store.storage.bulk_load(
        "note", notes(NOTES), progress=lambda _, rows, __: seen.append(rows), batch_rows=700
    )
    assert (report.loaded, report.change_records) == (NOTES, 3)
    assert seen == [700, 1_400, 2_100, NOTES]
    assert store.admin.stats()["resident"]["reloads"] == 0
    assert len(store.search("says", limit=10).hits) == 10
    assert store.admin.verify() == []


@needs("sharing")
def test_another_handle_sees_a_load_whole(backend: Any) -> None:
    writer, reader = (backend.open(backend.config(embedding_provider=None)) for _ in range(2))
    writer.storage.bulk_load("note", notes(NOTES), batch_rows=400)
    note = next(writer.storage.notes.all())
    assert reader.search("says", limit=5, consistency="latest").position == writer.search("says", limit=5).position
    assert reader.get(note.note_id) == note
    assert reader.admin.verify() == []
    # Writing goes on where the load ended.
    again = reader.add_note(entity="e", entity_type="t", note_type="fact", content="a zebra", confidence=1.0)
    assert writer.search("zebra", limit=1, consistency="latest").hits[0].id == again.note_id


def test_no_more_than_a_batch_is_read_ahead(store: Any) -> None:
    made, done = [0], [0]

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1_000, 100):
            # Asked for only when all before it, or all but one, is written.
            assert made[0] == start
            assert start - done[0] <= 100
            made[0] += 100
            yield notes(1_000).slice(start, 100).combine_chunks().to_batches()[0]

    stream = pa.RecordBatchReader.from_batches(notes(1).schema, batches())
    report = store.storage.bulk_load("note", stream, progress=lambda _, rows, __: done.__setitem__(0, rows))
    assert report.loaded == made[0] == 1_000


def test_a_source_that_fails_leaves_nothing(store: Any) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield notes(50).combine_chunks().to_batches()[0]
        raise OSError("the file ends here")

    with pytest.raises(OSError, match="the file ends here"):
        store.storage.bulk_load("note", pa.RecordBatchReader.from_batches(notes(1).schema, batches()))
    assert store.storage.notes.count() == 0
    store.add_note(entity="e", entity_type="t", note_type="fact", content="a zebra", confidence=1.0)
    assert store.admin.verify() == []


def instants(*values: int | None) -> pa.Array:
    return pa.array(values, pa.timestamp("us", "UTC"))


def at(row: int, bad: Any, good: Any) -> list[Any]:
    return [bad if number == row else good for number in range(6)]


# Columns of six notes of which row 4 is bad, the column that is named, and what is said of it.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no content": ({"content": at(4, None, "x")}, "content", "a value is required"),
    "a type that is none": ({"note_type": at(4, "rumour", "fact")}, "note_type", "must be one of"),
    "too sure": ({"confidence": at(4, 1.5, 1.0)}, "confidence", "between 0 and 1"),
    "not a number": ({"confidence": at(4, float("nan"), 1.0)}, "confidence", "NaN"),
    "unimportant": ({"importance": at(4, 0.5, None)}, "importance", "between 1 and 10"),
    "a negative count": ({"token_count": at(4, -1, 1)}, "token_count", "0 or more"),
    "a version of 0": ({"version": at(4, 0, 1)}, "version", "1 or more"),
    "before the year 1": ({"created_at": instants(*at(4, -62_135_596_800_000_001, 0))}, "created_at",
                          "years 1 to 9999"),
    "ends before it begins": ({"valid_from": instants(*[5] * 6), "valid_until": instants(5, None, 6, 5, 4, 7)},
                              "valid_until", "must not be before"),
    "a short hash": ({"content_hash": at(4, bytes(31), None)}, "content_hash", "32 bytes"),
    "another's hash": (
        {"content": ["x"] * 6, "entity": [*"abcdef"], "content_hash": at(4, bytes(32), hashlib.sha256(b"x").digest())},
        "content_hash",
        "not the SHA-256",
    ),
    "another's fingerprint": ({"fingerprint": [bytes(32)] * 6}, "fingerprint", "not that of what the note says"),
    "a tag that is missing": ({"tags": at(4, ["a", None], ["b"])}, "tags", "an element is missing"),
    "a count that is too large": ({"token_count": pa.array(at(4, 2**63, 1), pa.uint64())}, "token_count", "int64"),
    "more exact than microseconds": ({"created_at": pa.array(at(4, 1_001, 1_000), pa.timestamp("ns", "UTC"))},
                                     "created_at", "no value of type timestamp"),
    "no id": ({"note_id": pa.array([bytes([row]) * (15 if row == 4 else 16) for row in range(6)], pa.binary())},
              "note_id", "no value of type"),
    "a reference to nothing": ({"superseded_by": pa.array(at(4, bytes(16), None), pa.binary(16))}, "superseded_by",
                               "refers to no note"),
}  # fmt: skip
FIRST_ROW = {"another's fingerprint": 0}


@pytest.mark.parametrize("batch_rows", [100, 3])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_and_nothing_is_loaded(case: str, batch_rows: int, empty_store: Any) -> None:
    columns, field, reason = BAD[case]
    if case == "a short hash":
        good = [hashlib.sha256(f"note {row} says é".encode()).digest() for row in range(6)]
        columns = {"content_hash": [bytes(31) if row == 4 else digest for row, digest in enumerate(good)]}
    with pytest.raises(InvalidRow, match=reason) as caught:
        empty_store.storage.bulk_load("note", notes(6, **columns), batch_rows=batch_rows)
    assert (caught.value.row, caught.value.field) == (FIRST_ROW.get(case, 4), field)
    assert empty_store.storage.notes.count() == 0


def test_text_that_is_not_utf8_is_named(store: Any) -> None:
    raw = pa.array([b"good", b"\xed\xa0\x80", b"good"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    with pytest.raises(InvalidRow, match="not UTF-8") as caught:
        store.storage.bulk_load("note", notes(3, content=text))
    assert (caught.value.row, caught.value.field) == (1, "content")


def test_codes_and_views_that_leave_their_buffers_are_named(store: Any) -> None:
    """A conversion trusts codes and views: a bad code raises an error of Arrow's, a bad view ends the process."""
    views = np.tile(np.array([100, 0, 77, 10**8], np.int32), (3, 1))
    views[0] = (1, ord("x"), 0, 0)
    bad_text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(bytes([0] * 4 + [1] + [0] * 3 + [2] + [0] * 3)), pa.py_buffer(b"a\xff")]
    )
    codes = pa.array([0, 1, 0], pa.int32())
    for content, reason in (
        (pa.DictionaryArray.from_arrays(codes, pa.array(["x"]), safe=False), "offsets exceed its buffers"),
        (pa.DictionaryArray.from_arrays(codes, bad_text), "not UTF-8"),
        (
            pa.Array.from_buffers(pa.string_view(), 3, [None, pa.py_buffer(views.tobytes())]),
            "offsets exceed its buffers",
        ),
    ):
        with pytest.raises(InvalidRow, match=reason) as caught:
            store.storage.bulk_load("note", notes(3, content=content))
        assert (caught.value.row, caught.value.field) == (1, "content")
    assert store.storage.notes.count() == 0


def test_a_record_batch_that_is_not_what_its_stream_says_is_refused(store: Any) -> None:
    lacking = notes(3).drop_columns(["content"]).combine_chunks().to_batches()[0]
    with pytest.raises(InvalidValue, match="a record batch has other columns"):
        store.storage.bulk_load("note", pa.RecordBatchReader.from_batches(notes(3).schema, iter([lacking])))
    short = pa.RecordBatch.from_arrays([pa.array(["x"] * 3)], names=["content"])
    exported, schema = ffi.new("struct ArrowArray*"), ffi.new("struct ArrowSchema*")
    places = [int(ffi.cast("uintptr_t", each)) for each in (exported, schema)]
    short._export_to_c(*places)
    exported.children[0].length = 1
    lying = pa.RecordBatch._import_from_c(*places)
    for data in (lying, pa.RecordBatchReader.from_batches(lying.schema, iter([lying]))):
        with pytest.raises(InvalidValue, match="columns"):
            store.storage.bulk_load("note", data)
    assert store.storage.notes.count() == 0


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"colour": ["red"] * 6}, "note has no colour"),
        ({"content": None, "confidence": None}, "note also needs content, confidence"),
    ],
)
def test_columns_that_are_unknown_or_lacking_are_named(columns: dict[str, Any], said: str, store: Any) -> None:
    with pytest.raises(InvalidValue, match=said):
        store.storage.bulk_load("note", notes(6, **columns))
    with pytest.raises(DTypeError, match="table, record batch or stream"):
        store.storage.bulk_load("note", [{"content": "x"}])
    with pytest.raises(DTypeError, match="give it a time zone"):
        store.storage.bulk_load("note", notes(6, created_at=pa.array([0] * 6, pa.timestamp("us"))))
    with pytest.raises(DTypeError, match="expected double, got string"):
        store.storage.bulk_load("note", notes(6, confidence=["1"] * 6))
    with pytest.raises(InvalidValue, match="a column comes twice"):
        store.storage.bulk_load("note", notes(6).append_column("content", notes(6).column("content")))
    assert store.storage.notes.count() == 0


def test_what_says_the_same_in_another_type_is_taken(store: Any) -> None:
    given = notes(
        6,
        entity=pa.chunked_array([["a", "b"], ["c"], ["d", "e", "f"]]),
        note_type=pa.array(["fact"] * 6).dictionary_encode(),
        content=pa.array([f"text {row}" for row in range(6)], pa.large_string()),
        confidence=pa.array([1, 0, 1, 0, 1, 0], pa.int8()),
        token_count=pa.array(range(6), pa.uint16()),
        created_at=pa.array([WHEN] * 6, pa.timestamp("ms", "Europe/Berlin")).cast(pa.timestamp("ms", "Europe/Berlin")),
        tags=pa.array([["x"], [], ["y", "z"], [], [], ["é"]], pa.large_list(pa.large_string())),
        entity_type=pa.array(["t"] * 6, pa.string_view()),
        namespace=pa.nulls(6),
        source_trajectory_ids=pa.array([[bytes(16)], [], [], [], [], []], pa.list_(pa.binary())),
    )
    store.storage.bulk_load("note", given.slice(1, 4), batch_rows=3)
    loaded = sorted(store.storage.notes.all(), key=lambda note: note.content)
    assert [note.content for note in loaded] == ["text 1", "text 2", "text 3", "text 4"]
    assert [note.entity for note in loaded] == ["b", "c", "d", "e"]
    assert [note.tags for note in loaded] == [(), ("y", "z"), (), ()]
    assert [note.token_count for note in loaded] == [1, 2, 3, 4]
    assert loaded[0].created_at == WHEN.replace(microsecond=890_000)


def test_references_may_point_forward(store: Any) -> None:
    ids = [uuid.uuid4().bytes for _ in range(3)]
    later = pa.array([ids[1], ids[2], None], pa.binary(16))
    store.storage.bulk_load("note", notes(3, note_id=pa.array(ids, pa.binary(16)), superseded_by=later), batch_rows=1)
    assert [note.superseded_by and note.superseded_by.bytes for note in store.storage.notes.all()] == [*ids[1:], None]
    assert store.admin.verify() == []


def spaces_and_vectors(store: Any, count: int, dimensions: int = 3) -> tuple[pa.Table, pa.Table]:
    store.storage.bulk_load("note", notes(count))
    owners = [note.note_id.bytes for note in store.storage.notes.all()]
    space = uuid.uuid4().bytes
    spaces = pa.table(
        {"space_id": pa.array([space], pa.binary(16)), "model_id": ["m"], "dimensions": [dimensions],
         "metric": ["cosine"], "state": ["active"]}
    )  # fmt: skip
    vectors = pa.table(
        {
            "space_id": pa.array([space] * count, pa.binary(16)),
            "owner_type": ["note"] * count,
            "owner_id": pa.array(owners, pa.binary(16)),
            "chunk_index": [0] * count,
            "content_hash": pa.array([bytes(32)] * count, pa.binary(32)),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array(np.arange(count * dimensions, dtype=np.float32) + 1), dimensions
            ),
        }
    )
    return spaces, vectors


def test_vectors_are_loaded_into_their_space(store: Any) -> None:
    spaces, vectors = spaces_and_vectors(store, 10)
    with pytest.raises(InvalidRow, match="refers to no embedding_space"):
        store.storage.bulk_load("embedding", vectors)
    store.storage.bulk_load("embedding_space", spaces)
    report = store.storage.bulk_load("embedding", vectors.slice(2), batch_rows=3)
    assert report.loaded == 8
    back = store.storage.bulk_read("embedding").read_all()
    assert back.column("vector").to_pylist() == vectors.slice(2).column("vector").to_pylist()
    assert store.admin.verify() == []
    rest = vectors.slice(0, 2)
    for column, bad, reason in (
        ("vector", [[1.0, 2.0, 3.0], [1.0, 2.0]], "dimensions"),
        ("vector", [[1.0, 2.0, 3.0], [1.0, float("inf"), 2.0]], "NaN or infinity"),
        ("vector", [[1.0, 2.0, 3.0], [1.0, None, 2.0]], "element is missing"),
        ("vector", [[1.0, 2.0, 3.0], [0.0, 0.0, -0.0]], "zeros"),  # C-025
        ("owner_type", ["note", "agent"], "has no vectors"),
        ("owner_id", [rest["owner_id"][0].as_py(), uuid.uuid4().bytes], "refers to no note"),  # M-024
    ):
        number = rest.schema.get_field_index(column)
        kind = {"vector": pa.list_(pa.float32()), "owner_id": pa.binary(16)}.get(column, pa.string())
        with pytest.raises(InvalidRow, match=reason) as caught:
            store.storage.bulk_load("embedding", rest.set_column(number, column, pa.array(bad, kind)))
        assert (caught.value.row, caught.value.field) == (1, column)
    assert store.admin.verify() == []


def test_turns_stand_where_their_scope_counts_them(filled: Any, other: Any) -> None:
    tables = {relation.name: filled.storage.bulk_read(relation.name).read_all() for relation in BUILT_IN.loadable}
    for name in ("session", "trajectory", "scope"):
        other.storage.bulk_load(name, tables[name])
    turns = tables["turn"]

    def changed(column: str, row: int, value: Any) -> pa.Table:
        values = turns.column(column).to_pylist()
        values[row] = value
        number = turns.schema.get_field_index(column)
        return turns.set_column(number, turns.schema.field(column), pa.array(values, turns.schema.field(column).type))

    child = tables["trajectory"].column("trajectory_id").to_pylist()[1]
    cases = {
        "beyond what its scope counts": ("sequence", 1, 50),
        "beyond what its trajectory counts": ("turn_number", 2, 50),
        "refers to a scope of another trajectory": ("trajectory_id", 1, child),
        "refers to no scope": ("scope_id", 0, bytes(16)),
        "not JSON of the form": ("tool_calls", 2, '{"a": 1}'),
    }
    for reason, (column, row, value) in cases.items():
        with pytest.raises(InvalidRow, match=reason) as caught:
            other.storage.bulk_load("turn", changed(column, row, value))
        assert caught.value.row == row, reason
    assert other.storage.turns.count() == 0
    other.storage.bulk_load("turn", changed("tool_calls", 0, ' [ ["a","b" , "c"] ] '))
    assert next(other.storage.turns.all()).tool_calls == (caliber.model.ToolCall("a", "b", "c"),)
    scope = next(iter(other.storage.scopes.all()))
    other.append_turn(scope.scope_id, role="user", content="goes on")
    assert other.admin.verify() == []


def test_a_lifetime_goes_with_its_kind(filled: Any, other: Any) -> None:
    for name in ("session", "trajectory", "scope"):
        other.storage.bulk_load(name, filled.storage.bulk_read(name).read_all())
    artifacts = filled.storage.bulk_read("artifact").read_all()
    number = artifacts.schema.get_field_index("ttl_ms")
    with pytest.raises(InvalidRow, match="goes with the kind duration") as caught:
        other.storage.bulk_load("artifact", artifacts.set_column(number, "ttl_ms", pa.array([5, None], pa.int64())))
    assert (caught.value.row, caught.value.field) == (0, "ttl_ms")


def test_loaded_records_get_their_vectors(backend: Any) -> None:
    memory = backend.open(embedding__embed__note="behind")
    memory.storage.bulk_load("note", notes(30))
    until(lambda: memory.storage.embeddings.count() == 30, "they are filled behind")
    assert len(memory.storage.bulk_read("embedding").read_all().column("vector")[0]) == DIMENSIONS
    assert memory.admin.verify() == []


@needs("reopen", "full text")
def test_full_text_is_kept_through_a_load(backend: Any) -> None:
    settings = backend.config(embedding_provider=None)
    memory = backend.open(settings)
    rebuild_full_text(settings)
    memory.storage.bulk_load("note", notes(NOTES), batch_rows=900)
    assert inspect(memory).store.full_text.state().complete
    assert check_full_text(inspect(memory).store, settings) == []


def test_storage_is_for_the_system_only(store: Any) -> None:
    someone = store.acting_as(caliber.Principal(caliber.model.PrincipalKind.AGENT, "x"))
    with pytest.raises(PermissionDenied):
        someone.storage.bulk_load("note", notes(1))


def test_without_the_extra_it_says_what_to_install(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = notes(1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (lambda: store.storage.bulk_load("note", given), lambda: store.storage.bulk_read("note")):
        with pytest.raises(ExtraNotInstalled, match=r"caliber-memory\[arrow\]"):
            use()


def test_a_schema_is_what_the_relation_declares() -> None:
    from caliber.storage.bulk.arrow import schema_of

    schema = schema_of(BY_NAME["note"])
    assert schema.field("note_id").type == pa.binary(16)
    assert schema.field("created_at").type == pa.timestamp("us", "UTC")
    assert (schema.field("namespace").nullable, schema.field("content").nullable) == (True, False)
