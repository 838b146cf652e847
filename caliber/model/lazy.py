"""Class ``LazyTuple``: an immutable sequence of known length, built as a whole at the first access.

A window of a thousand candidates has a thousand decisions; most callers never look at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class LazyTuple(Sequence[T_co]):
    """A tuple of known length, made at the first access; equal to, and pickled as, that tuple."""

    __slots__ = ("_items", "_length", "_make")

    def __init__(self, length: int, make: Callable[[], tuple[T_co, ...]]) -> None:
        self._length = length
        self._make: Callable[[], tuple[T_co, ...]] | None = make
        self._items: tuple[T_co, ...] = ()

    def _all(self) -> tuple[T_co, ...]:
        # Two threads may both make the items, to the same effect; `_make` is dropped last.
        make = self._make
        if make is not None:
            self._items = make()
            self._make = None
        return self._items

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        return self._all()[index]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyTuple):
            return self._all() == other._all()
        return isinstance(other, tuple) and self._all() == other

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return (tuple, (self._all(),))
