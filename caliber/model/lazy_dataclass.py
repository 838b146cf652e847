"""Decorator ``dataclass`` whose frozen classes with slots compile each method at its first use.

The standard decorator compiles six functions for each class, half a millisecond: a process has three hundred such
classes, makes instances of a third of them, and compares few. Here a class gets its fields and slots at once, from the
standard library, and its methods when they are looked up.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Decorate as ``dataclasses.dataclass`` does; with ``frozen`` and ``slots`` alone, compile methods later."""
        return _frozen_with_slots if cls is None and options == _LAZY else dataclasses.dataclass(cls, **options)


_LAZY: Final = {"frozen": True, "slots": True}


class _Uncompiled:
    """A method of a class that is compiled when it is looked up, and then takes the place of this object."""

    __slots__ = ("_cls", "_name")

    def __init__(self, cls: type, name: str) -> None:
        self._cls = cls
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return _compile(self._cls, self._name).__get__(instance, owner)


def _compile(cls: type, name: str) -> Any:
    """Give a class its method, and return it."""
    # Two threads may both come here: they compile the same.
    method = _METHODS[name](cls, dataclasses.fields(cls))
    setattr(cls, name, method)
    return method


def _compiled_by_call(cls: type, name: str) -> Any:
    """Return a method that is compiled when it is called, as its look-up drops what a signal's handler raises."""

    def method(*arguments: Any) -> Any:
        return _compile(cls, name)(*arguments)

    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


def _frozen_with_slots(cls: type) -> Any:
    own = {name for name in _METHODS if name in vars(cls)}
    if own - {"__repr__"} or any(map(dataclasses.is_dataclass, cls.__bases__)):
        return dataclasses.dataclass(frozen=True, slots=True)(cls)
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library writes a signature, which takes a millisecond
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__dataclass_params__.frozen = True  # what a class that inherits from it must be too
    made.__getstate__, made.__setstate__ = _state, _set_state
    for name in _METHODS.keys() - own:
        setattr(made, name, (_compiled_by_call if name in _DROPPING else _Uncompiled)(made, name))
    return made


# --- methods, as those of the standard library -------------------------------------------------

_Fields = tuple[dataclasses.Field[Any], ...]


class _Unset:
    """The default of a parameter whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_UNSET: Final = _Unset()


def _compiled(of: type, name: str, parameters: str, body: list[str], **names: Any) -> Any:
    lines = [f"def make({', '.join(names)}):", f" def {name}({parameters}):", *(f"  {line}" for line in body)]
    scope: dict[str, Any] = {}
    exec("\n".join([*lines, f" return {name}"]), vars(sys.modules[of.__module__]), scope)  # noqa: S102
    method = scope["make"](**names)
    method.__qualname__ = f"{of.__qualname__}.{name}"
    return method


def _init(cls: type, fields: _Fields) -> Any:
    unset, names, body = dataclasses.MISSING, dict[str, Any](unset_=_UNSET), list[str]()
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    for item in fields:
        name, value = item.name, item.name
        names[f"set_{name}"] = getattr(cls, name).__set__
        if item.default_factory is not unset:
            names[f"make_{name}"] = item.default_factory
            value = f"make_{name}() if {name} is unset_ else {name}" if item.init else f"make_{name}()"
        elif item.default is not unset:
            names[f"default_{name}"] = item.default
            value = name if item.init else f"default_{name}"
        elif not item.init:
            continue
        body.append(f"set_{name}(self, {value})")
        if item.init:
            default = "=unset_" if f"make_{name}" in names else f"=default_{name}" if f"default_{name}" in names else ""
            parameters[bool(item.kw_only)].append(name + default)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    both = [*parameters[False], *(["*", *parameters[True]] if parameters[True] else [])]
    method = _compiled(cls, "__init__", ", ".join(both), body or ["pass"], **names)
    method.__annotations__ = {item.name: item.type for item in fields if item.init} | {"return": None}
    return method


def _repr(cls: type, fields: _Fields) -> Any:
    shown = ", ".join(f"{item.name}={{self.{item.name}!r}}" for item in fields if item.repr)
    return recursive_repr()(_compiled(cls, "__repr__", "self", [f"return f'{{self.__class__.__qualname__}}({shown})'"]))


def _values(of: str, fields: list[dataclasses.Field[Any]]) -> str:
    return f"({''.join(f'{of}.{item.name}, ' for item in fields)})"


def _eq(cls: type, fields: _Fields) -> Any:
    compared = [item for item in fields if item.compare]
    same = f"{_values('self', compared)} == {_values('other', compared)}"
    body = [f"return {same} if other.__class__ is self.__class__ else NotImplemented"]
    return _compiled(cls, "__eq__", "self, other", body)


def _hash(cls: type, fields: _Fields) -> Any:
    hashed = [item for item in fields if (item.compare if item.hash is None else item.hash)]
    return _compiled(cls, "__hash__", "self", [f"return hash({_values('self', hashed)})"])


def _refusal(name: str, parameters: str, verb: str) -> Callable[[type, _Fields], Any]:
    def method(cls: type, fields: _Fields) -> Any:
        body = [
            f"if type(self) is cls or name in {tuple(item.name for item in fields)}:",
            f" raise error(f'cannot {verb} field {{name!r}}')",
            f"super(cls, self).{name}({parameters})",
        ]
        return _compiled(cls, name, f"self, {parameters}", body, cls=cls, error=dataclasses.FrozenInstanceError)

    return method


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for item, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)


_DROPPING: Final = frozenset(("__repr__", "__eq__", "__hash__"))
"""Methods whose look-up drops errors."""
_METHODS: Final[dict[str, Callable[[Any, _Fields], Any]]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _refusal("__setattr__", "name, value", "assign to"),
    "__delattr__": _refusal("__delattr__", "name", "delete"),
}
