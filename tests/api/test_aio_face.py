"""The asynchronous face has every member of the synchronous one, with the same parameters, and is what generates it."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest
from support.configs import ADMIN, HASH_PROVIDER

import caliber
import caliber.aio
from caliber.admin.tables import Tables
from caliber.aio import AsyncCaliber
from caliber.api.aio_proxy import AsyncFace, face_of, is_facet
from caliber.config import CaliberConfig
from caliber.model.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ("create", "migrate", "open", "purge", "restore")
AT_ONCE = {
    "LockService.hold", "Messages.listen", "Values.watch", "acting_as", "as_user", "as_agent", "records", "transaction",
    "table_of", "Tables.get", "Agents.view", "subscribe",
}  # fmt: skip
"""Methods that wait for nothing: they return a facet, or belong to the event loop."""
CALL: dict[str, Any] = {
    "name": "call",
    "type": "procedural",
    "fields": [{"name": "number", "type": "int"}, {"name": "method", "type": "text", "optional": True}],
    "retention": {"kind": "persistent"},
}


@pytest.fixture
def config(tmp_path: Path) -> CaliberConfig:
    settings = caliber.profiles.reference(
        tmp_path / "a.db",
        principal=ADMIN,
        embedding_provider=HASH_PROVIDER,
        **{"vector.dimensions": 32},
        memories=[CALL],
    )
    caliber.create(settings)
    return settings


def facets(own: Any, sync: Any) -> Iterator[tuple[Any, Any]]:
    """Yield an object of the asynchronous face beside its synchronous one, and those that it gives likewise."""
    yield own, sync
    for name in members(type(sync)):
        if isinstance(inspect.getattr_static(type(sync), name), property):
            one, other = getattr(own, name), getattr(sync, name)
            if isinstance(one, AsyncFace):
                assert type(one) is face_of(type(other))
                yield from facets(one, other)
            else:
                assert one == other, f"{type(sync).__name__}.{name}"
    if isinstance(sync, caliber.Caliber):
        for name in ("note", "turn_buffer", "call"):
            yield from facets(own.records(name), sync.records(name))
    if isinstance(sync, Tables):
        assert list(own) == list(sync)
        for name in sync:
            yield from facets(getattr(own, name), sync.get(name))


def members(kind: type) -> list[str]:
    """Return the public functions and properties of a class; class methods make objects, and are no part of one."""
    there = ((name, inspect.getattr_static(kind, name)) for name in dir(kind) if not name.startswith("_"))
    return [name for name, value in there if inspect.isfunction(value) or isinstance(value, property)]


def returned(written: str, declared: Any) -> str:
    """Return the annotation of an asynchronous function for that of its namesake."""
    kind = get_origin(declared) or declared
    if isinstance(kind, type) and is_facet(kind) and not issubclass(kind, Iterator):
        return f"Async{written}"
    if isinstance(kind, type) and issubclass(kind, Iterator) and kind.__module__.startswith("caliber."):
        return f"AsyncIterator[{inspect.signature(kind.__next__).return_annotation}]"
    return re.sub(r"^Iterator\[", "AsyncIterator[", written)


def lazy(function: Any) -> dict[str, Any]:
    """Return the names of ours that a function's module imports, also for type checkers alone."""
    return imported(inspect.unwrap(function).__module__)


@functools.cache
def imported(module: str) -> dict[str, Any]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        alias.name: getattr(importlib.import_module(node.module), alias.name, None)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("caliber.")
        for alias in node.names
    }


def compared(name: str, own: Callable[..., Any], sync: Callable[..., Any], *, waits: bool = True) -> None:
    """Assert that two functions take the same and return the same; a property is as it is written."""
    one, other = (inspect.signature(each) for each in (own, sync))
    assert list(one.parameters.values()) == list(other.parameters.values()), name
    declared = inspect.signature(sync, eval_str=True, locals=lazy(sync)).return_annotation
    assert one.return_annotation == (returned(other.return_annotation, declared) if waits else other.return_annotation)
    assert own.__doc__, name
    assert f"See ``{name}``." in own.__doc__.replace("\n", " "), name


def test_each_member_has_its_asynchronous_form(config: CaliberConfig) -> None:
    async def run() -> int:
        count = 0
        async with await caliber.aio.open(config) as memory:
            for own, sync in facets(memory, memory.sync):
                for name in members(type(sync)):
                    one, other = (inspect.getattr_static(type(each), name) for each in (own, sync))
                    label = f"{type(sync).__name__}.{name}"
                    assert isinstance(one, property) == isinstance(other, property), label
                    member = other
                    if isinstance(other, property):
                        one, other = one.fget, other.fget
                    elif not ({name, label} & AT_ONCE) and name != "all":
                        assert inspect.iscoroutinefunction(one), label
                    spoken = one.__doc__.rpartition("See ``")[2].partition(".")[0]
                    assert spoken in {each.__name__ for each in type(sync).__mro__}, label
                    compared(f"{spoken}.{name}", one, other, waits=not isinstance(member, property))
                    count += 1
        return count

    assert asyncio.run(run()) > 200


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_has_its_asynchronous_form(name: str) -> None:
    own = getattr(caliber.aio, name)
    assert inspect.iscoroutinefunction(own)
    compared(f"caliber.{name}", own, getattr(caliber, name))


def test_functions_of_the_package_about_stores_are_all_there() -> None:
    functions = {name for name in caliber.__all__ if inspect.isfunction(getattr(caliber, name))}
    assert functions - {"deadline", "load_config"} == set(FUNCTIONS)
    assert dir(caliber.aio) == ["AsyncCaliber", "Tenants", *sorted({"of", *FUNCTIONS})]


@pytest.mark.prove
def test_what_is_generated_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import gen_aio

    try:
        assert gen_aio.STUB.read_text("utf-8") == gen_aio.stub(), "run make gen"
    finally:
        del sys.modules["gen_aio"]


TYPED = """
from typing import assert_type
import caliber
from caliber.aio import AsyncCaliber, open
from caliber.model.agents import Lock
from caliber.model.knowledge import Note

async def main() -> None:
    async with await open("caliber.toml") as memory:
        assert_type(memory, AsyncCaliber)
        assert_type(memory.acting_as(caliber.Principal.admin()), AsyncCaliber)
        assert_type(await memory.agents.locks.acquire("r", holder="h"), Lock)
        for found in await memory.records("note").find():
            assert_type(found, Note)
        async for turn in memory.storage.turns.all():
            print(turn)
        memory.nothing
        await memory.flush(1)
"""


@pytest.mark.prove
def test_type_checkers_see_the_types_of_the_stub(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "typed.py")]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "Found 2 errors in 1 file" in output, output
    assert '"AsyncCaliber" has no attribute "nothing"' in output
    assert 'Too many arguments for "flush"' in output


def test_a_closed_handle_refuses_each_call_of_each_facet(config: CaliberConfig) -> None:
    memory: AsyncCaliber | None = None

    def calls(own: Any, sync: Any) -> Iterator[Callable[[], Awaitable[Any]]]:
        for name in members(type(sync)):
            method = inspect.getattr_static(type(own), name)
            if name == "all":
                yield lambda: anext(own.all())
            elif inspect.iscoroutinefunction(method) and (name, own) != ("close", memory):
                needed = inspect.signature(method).parameters.values()
                given = dict.fromkeys(
                    each.name for each in needed if each.default is each.empty and each.kind in (1, 3)
                )
                yield functools.partial(method, own, **{name: None for name in given if name != "self"})

    async def run() -> int:
        nonlocal memory
        memory = await caliber.aio.open(config)
        waiting = [call for pair in facets(memory, memory.sync) for call in calls(*pair)]
        waiting.append(lambda turns=memory.storage.turns: turns.list_by_scope(None))
        waiting.append(functools.partial(memory.acting_as(memory.sync.principal).search, "late"))
        await memory.close()
        for call in waiting:
            with pytest.raises(Unavailable, match="the handle is closed; open the store again") as caught:
                await call()
            assert (caught.value.reason, caught.value.retryable) == ("closed", False)
        return len(waiting)

    assert asyncio.run(run()) > 150


def test_calls_under_way_when_the_handle_closes_end_or_are_refused(config: CaliberConfig) -> None:
    async def run() -> list[Any]:
        memory = await caliber.aio.open(config)
        notes = memory.storage.notes
        async with asyncio.timeout(60):
            return await asyncio.gather(
                *(notes.count() for _ in range(50)),
                memory.close(),
                *(notes.count() for _ in range(50)),
                return_exceptions=True,
            )

    outcomes = asyncio.run(run())
    assert {0 if outcome in (0, None) else type(outcome) for outcome in outcomes} <= {0, Unavailable}


def test_a_stream_is_read_by_pages_and_fails_where_its_source_does(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            made = await memory.records("call").insert_many({"number": at} for at in range(3_000))
            read = [each async for each in memory.storage.call.all()]
            assert read == made == list(memory.sync.storage.call.all())
            before: list[Any] = []

            async def closing_after_the_first() -> None:
                async for each in memory.storage.call.all():
                    before.append(each)
                    memory.sync.close()

            with pytest.raises(Unavailable):
                await closing_after_the_first()
            assert before == read[:1_000]  # a page of the database, and a part of one of the stream

    asyncio.run(run())


def test_what_a_bulk_read_returns_is_read_on_another_thread(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            await memory.records("call").insert_many({"number": at} for at in range(50))
            reader = await memory.storage.bulk_read("call", batch_rows=20)
            table = await asyncio.to_thread(reader.read_all)
            assert table.column("number").to_pylist() == list(range(50))
            assert (await memory.storage.bulk_load("call", table, on_existing="skip")).loaded == 0

    asyncio.run(run())


def test_a_field_may_be_called_as_a_parameter_of_the_face_is(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            calls = memory.records("call")
            made = await calls.insert(number=1, method="POST")
            assert (await calls.find(method="POST")) == [made]
            assert (await memory.storage.call.update(made.record_id, method="GET")).method == "GET"

    asyncio.run(run())


def test_a_subscriber_is_called_in_the_event_loop_or_refused(config: CaliberConfig) -> None:
    async def run() -> None:
        async with await caliber.aio.open(config) as memory:
            heard: list[Any] = []
            subscribe = memory.events.subscribe
            stop = subscribe(lambda event: heard.append((event, asyncio.get_running_loop())))
            await memory.start_trajectory("Listen", initiator=caliber.EntityRef.user("maria"))
            while not heard:
                await asyncio.sleep(0)
            assert heard[0][1] is asyncio.get_running_loop()
            stop()
            for wrong in (run, None, 5):
                with pytest.raises(caliber.model.errors.DTypeError):
                    subscribe(wrong)

    asyncio.run(run())
