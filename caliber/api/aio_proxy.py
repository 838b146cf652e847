"""Asynchronous classes, made at run time of the synchronous ones: the same names, parameters and docstrings.

A class is made when its first object is met. Of each public member it has one of the same name: a property gives the
same value; a method that returns a facet stays a method; one that returns an iterator becomes an asynchronous
generator; any other becomes a coroutine, run on a thread. ``caliber/api/asynchronous.pyi`` states their types, and is
generated. Source: O-4.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import functools
import inspect
import itertools
import re
import types
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, ClassVar, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from caliber.api.caliber import Caliber
from caliber.config.knobs import Section
from caliber.model.errors import Unavailable
from caliber.model.joining import JOINED

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PAGE_ITEMS: Final = 256
"""Items of a stream that one call on a thread takes."""
SPECIAL: Final = ("__getattr__", "__iter__")
"""The special methods that an asynchronous class has too."""
_VALUES: Final = (enum.Enum, tuple, BaseException, Section)
STREAMED: Final = re.compile(r"(Iterator|Generator|Iterable)\[")


class CallThreads:
    """Runs calls of any event loop on at most ``workers`` threads; of each at most ``queue`` more wait for one."""

    def __init__(self, workers: int, queue: int) -> None:
        self.executor = ThreadPoolExecutor(workers, thread_name_prefix="caliber-aio")
        self._most = workers + queue
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._shut = False

    @property
    def room(self) -> asyncio.Semaphore:
        """The places for calls of the running loop."""
        return self._rooms.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most))

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` on a thread and return its result without blocking the loop. Raises: Unavailable when shut."""
        joined = JOINED.get()
        if joined is not None and joined.executor is not None and not joined.ended:
            run = contextvars.copy_context().run
            return await asyncio.get_running_loop().run_in_executor(joined.executor, run, call)
        async with self.room:
            if self._shut:  # also where it was shut while this call waited for room
                raise Unavailable("the handle is closed; open the store again", reason="closed", retryable=False)
            # The spans of the caller are in its context.
            run = contextvars.copy_context().run
            return await asyncio.get_running_loop().run_in_executor(self.executor, run, call)

    def shut(self) -> None:
        """Accept no more calls; running and queued calls are finished."""
        self._shut = True
        self.executor.shutdown(wait=False)


class AsyncFace:
    """An object of the synchronous API with ``async`` methods of the same names and meanings."""

    _sync: Any

    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)

    def __init_subclass__(cls, *, of: str | None = None) -> None:
        super().__init_subclass__()
        if of is not None:
            BY_HAND[of] = cls

    def __init__(self, sync: Any, calls: CallThreads) -> None:
        self._sync = sync
        self._calls = calls

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._sync!r})"

    async def _run(self, method: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        return await self._calls.run(functools.partial(method, *args, **options))

    async def _stream(
        self, method: Callable[P, Iterator[T]], /, *args: P.args, **options: P.kwargs
    ) -> AsyncIterator[T]:
        """Yield the items of a generator, one call on a thread per page; raise its error after the items before it."""
        source = await self._run(method, *args, **options)
        failed: Exception | None = None
        page: list[T] = []

        def read() -> None:
            nonlocal failed
            try:
                page.extend(itertools.islice(source, PAGE_ITEMS))
            except Exception as error:
                failed = error

        while failed is None:
            page.clear()
            await self._run(read)
            if not page:
                break
            for item in tuple(page):
                yield item
        if failed is not None:
            raise failed

    def _given(self, value: Any) -> Any:
        """Return a value of the synchronous object as it is; of a facet, its asynchronous face."""
        return face_of(type(value))(value, self._calls) if is_facet(type(value)) else value

    def _named(self, name: str) -> Any:
        """Return an attribute that the synchronous object finds by its name. Raises: AttributeError."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._sync, name)
        return self._given(value) if is_facet(type(value)) else functools.partial(self._run, value)


BY_HAND: Final[dict[str, type[AsyncFace]]] = {}
"""The classes written by hand, by the name of the synchronous class: bases of those made at run time."""


def is_facet(kind: type) -> bool:
    """Return whether an object of a class is a part of the API rather than a value that it gives."""
    ours = kind.__module__.startswith("caliber.")
    return ours and not dataclasses.is_dataclass(kind) and not issubclass(kind, _VALUES)


def returned_facet(function: FunctionType) -> type | None:
    """Return the facet that a method returns by its annotation; its module imports the class at run time."""
    name = re.match(r"\w+", function.__annotations__["return"])
    found = function.__globals__.get(name[0]) if name else None
    return found if isinstance(found, type) and is_facet(found) else None


def written_in(kind: type) -> Iterator[tuple[str, FunctionType | property]]:
    """Yield the public functions and properties that a class itself defines."""
    for name, value in vars(kind).items():
        if isinstance(value, FunctionType | property) and (not name.startswith("_") or name in SPECIAL):
            yield name, value


def plain_function(member: FunctionType | property) -> FunctionType:
    """Return the function of a member as it is written."""
    function: Any = inspect.unwrap(member.fget if isinstance(member, property) else member)  # type: ignore[arg-type]
    return function  # type: ignore[no-any-return]


def is_public(kind: type) -> bool:
    """Return whether a class is a public one of ours with something to call."""
    return kind.__module__.startswith("caliber.") and not kind.__name__.startswith("_") and any(written_in(kind))


def public_bases(kind: type) -> list[type]:
    """Return the nearest public bases of a class."""
    return [each for base in kind.__bases__ for each in ([base] if is_public(base) else public_bases(base))]


def own_members(kind: type) -> dict[str, FunctionType | property]:
    """Return the members that the asynchronous class has beyond those of its bases."""
    by_hand = BY_HAND.get(kind.__name__, AsyncFace)
    inherited = {
        (name, _shape(member))
        for base in public_bases(kind)
        for each in base.__mro__
        for name, member in written_in(each)
    }
    return {
        name: member
        for each in (*reversed([base for base in kind.__mro__[1:] if base.__name__.startswith("_")]), kind)
        for name, member in written_in(each)
        if not hasattr(by_hand, name) and (name, _shape(member)) not in inherited
    }


def _shape(member: FunctionType | property) -> str:
    function = plain_function(member)
    return f"{function.__annotations__} {function.__defaults__} {function.__kwdefaults__}"


_FACES: Final[dict[type, type[AsyncFace]]] = {}
PLACE: Final = f"{__package__}.asynchronous"
"""The module whose stub states the types."""


def face_of(kind: type) -> type[AsyncFace]:
    """Return the asynchronous class of a synchronous one, or of the nearest class that has one."""
    if (made := _FACES.get(kind)) is None:
        made = _FACES.setdefault(kind, _made(kind))  # two threads may both make it: the first one counts
    return made


def _made(kind: type) -> type[AsyncFace]:
    bases, by_hand = public_bases(kind), BY_HAND.get(kind.__name__)
    members = own_members(kind) if is_public(kind) else {}
    if bases and not members and by_hand is None:
        return face_of(bases[0])
    name, spoken = f"Async{kind.__name__}", spoken_of(kind)
    made = {each: _member(f"{name}.{each}", each, member, spoken) for each, member in members.items()}
    above = (*filter(None, [by_hand]), *map(face_of, bases)) or (AsyncFace,)
    about = {"__doc__": f"``{spoken}`` with ``async`` methods.", "__module__": PLACE}
    return type(name, above, {**about, **made})


def spoken_of(kind: type) -> str:
    """Return the name that documents use of a class: the bases of the handle are the handle."""
    return "Caliber" if issubclass(Caliber, kind) else kind.__name__


def first_sentence(function: Callable[..., Any]) -> str:
    """Return the first sentence of a docstring, without its full stop."""
    first = (inspect.getdoc(function) or "").split("\n\n")[0]
    return re.split(r"(?<=\.)\s", " ".join(first.split()))[0].rstrip(".;")


def _member(place: str, name: str, member: FunctionType | property, spoken: str) -> Any:
    """Return the asynchronous form of a public member."""
    if name == "__getattr__":
        return AsyncFace._named
    if name == "__iter__":
        return lambda self: iter(self._sync)
    function = plain_function(member)
    if isinstance(member, property):

        def read(self: AsyncFace) -> Any:
            return self._given(getattr(self._sync, name))

        return property(described(read, function, place, spoken))
    result = function.__annotations__["return"]
    if returned_facet(function) is not None:

        def give(self: AsyncFace, /, *args: Any, **options: Any) -> Any:
            return self._given(getattr(self._sync, name)(*args, **options))

        return described(give, function, place, spoken, f"Async{result}")
    if STREAMED.match(result):

        def stream(self: AsyncFace, /, *args: Any, **options: Any) -> AsyncIterator[Any]:
            return self._stream(getattr(self._sync, name), *args, **options)

        return described(stream, function, place, spoken, STREAMED.sub("AsyncIterator[", result))

    async def call(self: AsyncFace, /, *args: Any, **options: Any) -> Any:
        return await self._calls.run(functools.partial(getattr(self._sync, name), *args, **options))

    return described(call, function, place, spoken)


def described(made: F, function: FunctionType, place: str, spoken: str, returns: str | None = None) -> F:
    """Return an asynchronous function with the name, the signature and the first sentence of a synchronous one."""
    told: Any = made  # attributes that type checkers do not know of functions
    told.__name__, told.__qualname__, told.__module__ = function.__name__, place, PLACE
    told.__doc__ = f"{first_sentence(function)}. See ``{spoken}.{function.__name__}``."
    told.__wrapped__ = function
    if returns is not None:
        told.__signature__ = inspect.signature(function).replace(return_annotation=returns)
    return made
