"""Damaged stores and archives: typed errors that name what is damaged, and ``check`` that never raises.

Source: issue, Damage; P-083, P-084.
"""

from __future__ import annotations

import io
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from support import evidence
from support.admin import damage
from support.api import hostile
from support.api.doors import Doors
from support.cli_runs import caliber as command
from support.configs import AGENT
from support.inspection import inspect

import caliber
from caliber.admin.backup import backup
from caliber.backends import bare_store
from caliber.config.manual.render import render_toml
from caliber.dump.archive import Archive
from caliber.dump.dumped_relations import dump_relations
from caliber.model.deadline import within
from caliber.model.errors import CaliberError, InternalError, InvalidValue, StorageError
from caliber.model.progress import unheard
from caliber.schema.catalog import BUILT_IN
from caliber.storage.bulk.parquet import open_parquet, parquet_batches

Sound = tuple[Path, SimpleNamespace]
Step = tuple[str, Callable[[], object]]
READ = (
    "admin.check", "admin.verify", "explain", "replay", "assemble_context", "pcp.recover", "learning.undo", "forget",
)  # fmt: skip
"""Calls that read most of a store: each damaged one meets them."""
SAMPLE = 30
WAIT_S = 30.0


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A store with something of everything, and a window of it."""
    path = tmp_path_factory.mktemp("sound") / "store.db"
    return path, damage.filled(path)


def _calls(memory: caliber.Caliber, ids: SimpleNamespace, folder: Path, chance: random.Random) -> Iterator[Step]:
    """Yield a part of the public calls of a handle, at full scale all, and those that read most of a store."""
    doors = Doors(memory, ids, folder)
    all_calls = doors.calls()
    known = {call.name: call for call in all_calls}
    drawn = chance.sample(all_calls, len(all_calls) if evidence.soaking() else SAMPLE)
    for call in [known[name] for name in READ] + drawn:
        yield call.name, call.made
    for name in ("note", "turn", "embedding"):
        yield f"bulk_read {name}", lambda name=name: memory.storage.bulk_read(name).read_all()  # type: ignore[misc]
    yield "close", memory.close


def _attempt(what: str, name: str, step: Callable[[], Any], wrong: list[str]) -> Any:
    try:
        with within(WAIT_S):
            return step()
    except InternalError as error:
        wrong.append(f"{what}: {name}: {error}")
    except CaliberError as error:
        return None if name != "admin.check" else wrong.append(f"{what}: check raises {error}")
    except Exception as error:
        wrong.append(f"{what}: {name}: {hostile.failed(error)}")
    return None


def _use(path: Path, ids: SimpleNamespace, what: str) -> list[str]:
    """Do with a damaged store what programs do; return what ended in another error than one of ours."""
    settings = damage.settings(path)
    wrong: list[str] = []

    def backed_up() -> None:
        with bare_store(settings) as store:
            backup(store, path.with_name("copy.zip"), replace=True, progress=unheard)

    _attempt(what, "backup", backed_up, wrong)
    memory = _attempt(what, "open", lambda: caliber.open(settings), wrong)
    if memory is not None:
        for name, step in _calls(memory, ids, path.parent, random.Random(f"{evidence.seed()} {what}")):
            _attempt(what, name, step, wrong)
    return wrong


def _fresh(sound: Path, folder: Path) -> Path:
    for left in folder.glob("store.db*"):
        left.unlink()
    return Path(shutil.copy(sound, folder / "store.db"))


def test_values_that_are_none_are_typed_errors(sound: Sound, tmp_path: Path) -> None:
    path, ids = sound
    statements = damage.wrong_values(path)
    random.Random(evidence.seed()).shuffle(statements)
    wrong: list[str] = []
    done = 0
    for statement in statements:
        if done >= evidence.scale(8, len(statements)):
            break
        copied = _fresh(path, tmp_path)
        if damage.tell_wrong(copied, statement):
            done += 1
            wrong += _use(copied, ids, statement)
    assert not wrong, "\n".join(wrong)


def test_bytes_that_changed_are_typed_errors(sound: Sound, tmp_path: Path) -> None:
    path, ids = sound
    wrong: list[str] = []
    for at in range(evidence.scale(6, 600)):
        copied = _fresh(path, tmp_path)
        how = damage.damage_bytes(copied, random.Random(f"{evidence.seed()} {at}"))
        wrong += _use(copied, ids, f"{how} {at}")
    assert not wrong, "\n".join(wrong)


NAMED = {
    "an enum": ("UPDATE note SET note_type = 'nobody'", "note", "note_type"),
    "JSON": ("UPDATE turn SET tool_calls = '{'", "turn", "tool_calls"),
    "an id": ("UPDATE scope SET scope_id = x'00' WHERE ordinal = 1", "scope", "scope_id"),
    "an instant": ("UPDATE artifact SET created_at = 9223372036854775807", "artifact", "created_at"),
    "a list": ("UPDATE note SET tags = '5'", "note", "tags"),
}


@pytest.mark.parametrize(("statement", "relation", "column"), NAMED.values(), ids=NAMED.keys())
def test_what_is_damaged_is_named(sound: Sound, tmp_path: Path, statement: str, relation: str, column: str) -> None:
    path, _ = sound
    copied = _fresh(path, tmp_path)
    assert damage.tell_wrong(copied, statement)
    with pytest.raises(StorageError) as caught, caliber.open(damage.settings(copied)) as memory:
        list(memory.storage.table_of(relation).all())
    assert caught.value.context["relation"] == relation
    assert caught.value.context["columns"] == (column,)
    assert "caliber db check" in str(caught.value)
    settings = tmp_path / "caliber.toml"
    settings.write_text(render_toml(damage.settings(copied)))
    said = command("db", "check", "-c", settings, code=1).stdout
    assert f"{relation}: " in said
    assert column in said


_LAST = 9_223_372_036_854_775_807


def _append(memory: caliber.Caliber, scope: uuid.UUID, _: uuid.UUID) -> None:
    memory.append_turn(scope, role="user", content="again")


def _recall(memory: caliber.Caliber, _: uuid.UUID, task: uuid.UUID) -> None:
    memory.assemble_context(task, query="where is the fault in the cellar")


RAW = {
    "a label, under an open handle": ("UPDATE scope SET trust = 'nobody'", _append, True),
    "an instant after any day": (f"UPDATE turn SET created_at = {_LAST}, occurred_at = {_LAST}", _recall, False),
    "an instant before any day": (f"UPDATE turn SET created_at = -{_LAST}, occurred_at = -{_LAST}", _recall, False),
}


@pytest.mark.parametrize(("statement", "call", "is_open"), RAW.values(), ids=RAW.keys())
def test_values_that_no_codec_reads_are_typed_errors(
    sound: Sound,
    tmp_path: Path,
    statement: str,
    call: Callable[[caliber.Caliber, uuid.UUID, uuid.UUID], None],
    is_open: bool,
) -> None:
    """Appending reads fields of a row, and recall the times in memory, without making records of them."""
    path, _ = sound
    copied = _fresh(path, tmp_path)
    with caliber.open(damage.settings(copied)) as memory:
        scope = next(each.scope_id for each in memory.storage.scopes.all() if each.closed_at is None)
        task = memory.start_trajectory("look again", initiator=AGENT).trajectory_id
        if is_open:
            assert damage.tell_wrong(copied, statement)
            _assert_damaged(lambda: call(memory, scope, task))
    if not is_open:
        assert damage.tell_wrong(copied, statement)
        with caliber.open(damage.settings(copied)) as memory:
            _assert_damaged(lambda: call(memory, scope, task))


def _assert_damaged(call: Callable[[], None]) -> None:
    with pytest.raises(StorageError, match="caliber db check") as caught:
        call()
    assert caught.value.context["reason"] == "damaged"


def test_text_that_is_not_utf8_is_named(sound: Sound, tmp_path: Path) -> None:
    path, ids = sound
    copied = _fresh(path, tmp_path)
    assert damage.tell_wrong(copied, "UPDATE event SET payload = CAST(x'7bff7d' AS TEXT)")
    with caliber.open(damage.settings(copied)) as memory:
        found = memory.admin.check()
        assert "event" in {finding.relation for finding in found if finding.kind == "database"}
        assert memory.search("fault").hits
        assert memory.explain(ids.window.window_id)


def test_damaged_archives_are_typed_errors_and_nothing_is_made(sound: Sound, tmp_path: Path) -> None:
    path, _ = sound
    target = tmp_path / "new.db"
    with caliber.open(damage.settings(_fresh(path, tmp_path))) as memory:
        for suffix in (".zip", ".db"):
            memory.admin.backup(tmp_path / f"good{suffix}")
    wrong: list[str] = []
    for at in range(evidence.scale(8, 300)):
        for suffix in (".zip", ".db"):
            damaged = Path(shutil.copy(tmp_path / f"good{suffix}", tmp_path / f"bad{suffix}"))
            how = damage.damage_bytes(damaged, random.Random(f"{evidence.seed()} {at} {suffix}"))
            before = len(wrong)
            settings = damage.settings(target)
            done = _attempt(
                f"{how} {at}{suffix}", "restore", lambda b=damaged, s=settings: caliber.restore(s, b), wrong
            )
            assert target.exists() == (done is not None) or len(wrong) > before
            for left in tmp_path.glob("new.db*"):
                left.unlink()
    assert not wrong, "\n".join(wrong)


def test_an_archive_whose_directory_lies_is_a_typed_error(sound: Sound, tmp_path: Path) -> None:
    path, _ = sound
    with caliber.open(damage.settings(_fresh(path, tmp_path))) as memory:
        memory.admin.backup(tmp_path / "good.zip")
    good = (tmp_path / "good.zip").read_bytes()
    wrong: list[str] = []
    for place in range(1, 23):  # where the directory of the archive is said to be
        for value in (0x00, 0x80, 0xFF):
            raw = bytearray(good)
            raw[-place] = value
            (tmp_path / "bad.zip").write_bytes(raw)
            # Not all that stands there matters.
            _attempt(f"{place}", "read", lambda: Archive(tmp_path / "bad.zip").close(), wrong)
    assert not wrong, "\n".join(wrong)


def test_a_value_that_memory_cannot_hold_is_a_difference(sound: Sound, tmp_path: Path) -> None:
    path, _ = sound
    copied = _fresh(path, tmp_path)
    with caliber.open(damage.settings(copied)) as memory:
        assert memory.admin.verify() == []
        assert damage.tell_wrong(copied, "UPDATE note SET note_type = 'nobody'")
        assert any("column note_type differs" in difference for difference in memory.admin.verify())


def test_rows_that_come_again_end_the_reading(sound: Sound, tmp_path: Path) -> None:
    """A damaged tree may give the same page for ever: here one that points to itself."""
    path, _ = sound
    with caliber.open(damage.settings(_fresh(path, tmp_path))) as memory:
        engine = inspect(memory).engine

        class Endless:
            def run(self, plan: Any, parameters: Any) -> list[Any]:
                with engine.store.read() as session:
                    rows = session.run(plan, (-1, *parameters[1:]))
                return (rows * parameters[1])[: parameters[1]]  # a short page would be the last

        mirrors = inspect(engine).mirrors
        plans = engine.store.plans["embedding"]
        with pytest.raises(StorageError, match="order of their ordinals"):
            mirrors.indexes.load(Endless(), plans, mirrors.spaces, mirrors.generations)  # type: ignore[arg-type]


# --- Parquet ---------------------------------------------------------------------------------------


CONFIG_DOCUMENT = next(relation for relation in dump_relations(BUILT_IN) if relation.name == "config_document")


def written(table: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


@pytest.mark.parametrize("part", ["pages", "footer"])
def test_damage_is_an_error_of_ours(part: str, tmp_path: Path) -> None:
    column = CONFIG_DOCUMENT.columns[0].name
    raw = bytearray(written(pa.table({column: ["a text that is long enough to be packed " * 9] * 999})))
    places = range(4, 60) if part == "pages" else range(len(raw) - 40, len(raw) - 8)
    for place in places:
        raw[place] ^= 0xFF
    path = tmp_path / "damaged.parquet"
    path.write_bytes(raw)
    with pytest.raises(InvalidValue), open_parquet(path, batch_rows=100) as file:
        list(file.reader)


def test_pages_of_an_archive_that_cannot_be_unpacked_are_damaged() -> None:
    columns = {each.name: pa.nulls(9, pa.string()) for each in CONFIG_DOCUMENT.columns}
    raw = bytearray(written(pa.table(columns)))
    raw[4:40] = bytes(36)
    with pytest.raises(InvalidValue, match="damaged"):
        list(parquet_batches(io.BytesIO(raw), CONFIG_DOCUMENT, 100))


def test_two_columns_of_one_name_are_refused() -> None:
    names = [each.name for each in CONFIG_DOCUMENT.columns]
    table = pa.Table.from_arrays([pa.nulls(3, pa.string())] * (len(names) + 1), names=[*names, names[0]])
    with pytest.raises(InvalidValue, match="two columns of one name"):
        list(parquet_batches(io.BytesIO(written(table)), CONFIG_DOCUMENT, 100))
