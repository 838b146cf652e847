"""Functions that call a tracer around another function, and the ids and counts that spans have of its arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, TypeVar

from caliber.model.process.interrupts import managed
from caliber.model.process.tracing import Fact, Facts, SpanKind, TracedStore
from caliber.model.progress import Tracer
from caliber.model.windows import ContextWindow, SearchResult

R = TypeVar("R")

_ID: Final = re.compile(r"\bId\b")
_NAMES: Final = {"task": "trajectory_id", "id": "record_id"}
"""Names of facts that differ from those of the parameters."""
_TASK: Final = ("trajectory_id", "scope_id")
_NO_FACTS: Final[Facts] = {}
_inside: ContextVar[bool] = ContextVar("caliber_inside_operation", default=False)


class Tracing:
    """The tracer of one open store."""

    def __init__(self, tracer: Tracer, store: TracedStore) -> None:
        self.tracer = tracer
        self.store = store

    def run(
        self,
        kind: SpanKind,
        name: str,
        facts: Facts,
        function: Callable[..., R],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> R:
        """Call a function inside a span, and return its result."""
        span = self.tracer.start(self.store, kind, name, facts)
        token = _inside.set(True)
        try:
            result = function(*args, **options)
        except BaseException as error:
            span.end(_NO_FACTS, error)
            raise
        finally:
            _inside.reset(token)
        span.end(facts_of(result), None)
        return result

    def around(self, function: Callable[..., R], kind: SpanKind, name: str, facts: Facts) -> Callable[..., R]:
        """Return ``function`` with a span around each call that is part of an operation under way."""

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> R:
            if not _inside.get():
                return function(*args, **options)
            return self.run(kind, name, facts, function, args, options)

        return call

    def around_block(
        self, function: Callable[..., AbstractContextManager[R]], kind: SpanKind, name: str, facts: Facts
    ) -> Callable[..., AbstractContextManager[R]]:
        """As ``around``, of a function that returns a context manager: the span lasts as long as the block."""

        @managed
        def spanned(*args: Any, **options: Any) -> Iterator[R]:
            span = self.tracer.start(self.store, kind, name, facts)
            try:
                with function(*args, **options) as value:
                    yield value
            except BaseException as error:
                span.end(_NO_FACTS, error)
                raise
            span.end(_NO_FACTS, None)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> AbstractContextManager[R]:
            return (spanned if _inside.get() else function)(*args, **options)

        return call


def ids_of(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Facts]:
    """Return a function that finds the ids among the arguments of a public method, after ``self``."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    named = {
        parameter.name: (_NAMES.get(parameter.name, parameter.name), place)
        for place, parameter in enumerate(parameters)
        if _ID.search(str(parameter.annotation))
    }
    if not named:
        return lambda _, __: _NO_FACTS

    def found(args: tuple[Any, ...], options: Mapping[str, Any]) -> Facts:
        facts: dict[str, Fact] = {}
        for parameter, (name, place) in named.items():
            key = id_text(args[place] if place < len(args) else options.get(parameter))
            if key is not None:
                facts[name] = key
        return facts

    return found


def id_text(value: Any) -> str | None:
    """Return an id as text; None for any other value, which may be content."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        try:
            return str(uuid.UUID(value))
        except ValueError:
            return None
    return None


def facts_of(result: Any) -> Facts:
    """Return ids, counts and states of the result of an operation."""
    if isinstance(result, ContextWindow):
        facts: dict[str, Fact] = {"window_id": str(result.window_id), "status": result.status.value}
        facts["used_tokens"], facts["max_tokens"] = result.used_tokens, result.max_tokens
        facts["record_count"] = sum(len(section.sources) for section in result.sections)
        return facts
    if isinstance(result, SearchResult):
        return {"status": result.status.value, "record_count": len(result.hits)}
    if isinstance(result, list):
        counts = [len(item.hits) for item in result if isinstance(item, SearchResult)]
        return {"record_count": sum(counts) if counts else len(result)}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return _facts_of_record(result)
    if isinstance(result, int) and not isinstance(result, bool | Enum):
        return {"record_count": int(result)}
    return _NO_FACTS


def _facts_of_record(record: Any) -> Facts:
    facts: dict[str, Fact] = {}
    first = dataclasses.fields(record)[0].name
    for name in (first, *_TASK):
        key = getattr(record, name, None)
        if isinstance(key, uuid.UUID) and name.endswith("_id"):
            facts[name] = str(key)
            if name == first and name not in _TASK:
                facts["record_id"] = str(key)
    return facts
