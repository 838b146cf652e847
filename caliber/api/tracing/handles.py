"""Traced handles: objects of the API whose public methods have spans, made beside the untraced ones.

A traced object is of a subclass of its class; its methods run on the untraced object, so that a public method which
calls another one is one span. What a method or property returns of the API is traced as well.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from enum import Enum
from types import FunctionType
from typing import Any, Final, TypeVar

from caliber.api.tracing.spans import Tracing, ids_of
from caliber.config.knobs import Section
from caliber.model.process.tracing import SpanKind

T = TypeVar("T")

_NO_OPERATIONS: Final = frozenset(("acting_as", "as_user", "as_agent", "records", "view", "table_of", "subscribe"))
"""Public methods that only return a part of the API, or a function."""
_VALUES: Final = (Section, Enum, tuple, BaseException)


def traced(handle: T, tracing: Tracing) -> T:
    """Return an object of the API with spans around its operations."""
    kind: Any = type(handle)
    made: T = object.__new__(_traced_class(kind))
    vars(made).update(vars(handle))
    vars(made).update(_untraced=handle, _tracing=tracing)
    return made


def is_part(value: object) -> bool:
    """Return whether an object is a part of the API rather than a value that it returns."""
    kind = type(value)
    if not kind.__module__.startswith("caliber.") or isinstance(value, _VALUES) or dataclasses.is_dataclass(kind):
        return False
    return hasattr(value, "__dict__") and not hasattr(value, "_untraced") and not hasattr(kind, "__next__")


@functools.cache
def _traced_class(kind: type[Any]) -> type[Any]:
    """Return the subclass of a class whose operations have spans."""
    members: dict[str, Any] = {}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            members[name] = _property(name, member.__doc__)
        elif isinstance(member, FunctionType) and not inspect.isgeneratorfunction(inspect.unwrap(member)):
            members[name] = _method(name, member)
    if hasattr(kind, "__getattr__"):
        members["__getattr__"] = _named
    # Nobody else's subclass: caliber/api/aio_proxy.py leaves out names that begin with an underscore.
    return type(f"_Traced{kind.__name__}", (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **members})


def _part(value: Any, tracing: Tracing) -> Any:
    return traced(value, tracing) if is_part(value) else value


def _property(name: str, doc: str | None) -> property:
    def read(self: Any) -> Any:
        return _part(getattr(self._untraced, name), self._tracing)

    return property(read, doc=doc)


def _named(self: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    value = getattr(self._untraced, name)
    if not isinstance(value, FunctionType):
        return _part(value, self._tracing)
    tracing = self._tracing

    @functools.wraps(value)
    def call(*args: Any, **options: Any) -> Any:
        return tracing.run(SpanKind.OPERATION, name, {}, value, args, options)

    return call


def _method(name: str, function: FunctionType) -> Callable[..., Any]:
    if name in _NO_OPERATIONS:

        @functools.wraps(function)
        def plain(self: Any, *args: Any, **options: Any) -> Any:
            return _part(function(self._untraced, *args, **options), self._tracing)

        return plain

    ids = ids_of(inspect.unwrap(function))

    @functools.wraps(function)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        facts = ids(args, options)
        return self._tracing.run(SpanKind.OPERATION, name, facts, function, (self._untraced, *args), options)

    return call
