"""Compiler of a caller's filter text to one predicate per kind of record, with a cache.

The parser is imported with the first filter text, so callers without one do not wait for it.

Source: C-161 to C-165; docs/decisions/0147.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from caliber.dsl.variables import variables_of
from caliber.model.access import Principal
from caliber.model.errors import CaliberError, ConfigError, InvalidValue, MultipleErrors
from caliber.schema.memories import MemoryBinding
from caliber.schema.predicate import Predicate, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caliber.dsl import ast

_KEPT: Final = 256
_KEPT_CHARS: Final = 4_096
"""Longer texts are compiled each time, so that the cache stays small."""


class Filters:
    """The compiled filters of one store. ``memory_of`` gives the fields of a kind. Safe to share between threads."""

    def __init__(self, memory_of: Callable[[str], MemoryBinding]) -> None:
        self._memory_of = memory_of
        self._lock = threading.Lock()
        self.kept: dict[tuple[str, tuple[str, ...], bool], dict[str, Predicate]] = {}

    def clear(self) -> None:
        """Clear the cache: a filter text may name an erased subject."""
        with self._lock:
            self.kept.clear()

    def of(self, text: str, kinds: Sequence[str], *, named: bool) -> Mapping[str, Predicate]:
        """Return the condition of a filter text for each kind that it fits.

        ``named`` kinds, those that the caller listed, are never left out.

        Raises: InvalidValue, with all that is wrong in the text.
        """
        key = (text, tuple(kinds), named)
        with self._lock:
            cached = self.kept.get(key)
        if cached is None:
            cached = self._compiled(text, kinds, named)
            if len(text) <= _KEPT_CHARS:
                with self._lock:
                    if len(self.kept) >= _KEPT:
                        self.kept.clear()
                    self.kept[key] = cached
        return cached

    def _compiled(self, text: str, kinds: Sequence[str], named: bool) -> dict[str, Predicate]:
        from caliber.dsl.filters import compile_condition
        from caliber.dsl.parser import read_condition
        from caliber.dsl.source import Source, nearest

        source = Source(text, "<filter>")
        try:
            condition = read_condition(source)
        except MultipleErrors as error:
            raise _wrong(error.context["errors"]) from error
        if not kinds:
            return {}
        fields = dict.fromkeys(_fields(condition))
        lacking = {kind: [name for name in fields if not self._has(kind, name)] for kind in kinds}
        fitting = [kind for kind in kinds if not lacking[kind]]
        if named and fitting and len(fitting) < len(kinds):
            what = "; ".join(f"{kind} has no {', '.join(lacking[kind])}" for kind in kinds if lacking[kind])
            raise InvalidValue(field="filter", reason=f"{what}; search only {', '.join(fitting)}, or name no kinds")
        out: dict[str, Predicate] = {}
        faults: list[ConfigError] = []

        def distance(kind: str) -> tuple[int, int]:
            known = self._memory_of(kind).fields
            return len(lacking[kind]), sum(not nearest(name, known) for name in lacking[kind])

        # A filter that fits no kind is compiled for the nearest one, whose error explains the fault.
        for kind in fitting or [min(kinds, key=distance)]:
            predicate, found, _ = compile_condition(source, condition, self._memory_of(kind))
            faults += found
            if predicate is not None:
                out[kind] = predicate
        if faults and (named or not out):
            raise _wrong(faults)
        return out

    def _has(self, kind: str, name: str) -> bool:
        memory = self._memory_of(kind)
        return name in memory.vectors or memory.column(name) is not None


def _fields(condition: ast.Value) -> Iterator[str]:
    """Yield the fields that a condition compares."""
    from caliber.dsl import ast

    if isinstance(condition, ast.Joined):
        for part in condition.conditions:
            yield from _fields(part)
    elif isinstance(condition, ast.Compared) and isinstance(condition.left, ast.Word):
        yield condition.left.text


def _wrong(faults: Sequence[CaliberError]) -> InvalidValue:
    messages = dict.fromkeys(map(str, faults))
    return InvalidValue(field="filter", reason="\n".join(messages))


def variables(principal: Principal, now_us: int) -> Mapping[Variable, object]:
    """Return the variables of a filter outside a task: there is no trajectory and no scope."""
    return variables_of(None, None, principal.label, now_us)
