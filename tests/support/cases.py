"""Many cheap cases in one test: pytest takes ten times as long to run a test as such a case does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any


def each(names: str | tuple[str, ...], cases: Collection[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Be ``pytest.mark.parametrize`` in one test, which runs every case and names each one that failed.

    For functions of values alone: what a fixture gives is the same in every case.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        given = (names,) if isinstance(names, str) else names

        @functools.wraps(function)
        def run(**fixtures: Any) -> None:
            failed: list[tuple[Any, Exception]] = []
            for case in cases:
                values = (case,) if isinstance(names, str) else case
                try:
                    function(**fixtures, **dict(zip(given, values, strict=True)))
                except Exception as error:
                    failed.append((case, error))
            if failed:
                told = "\n".join(f"{case!r:.200}: {type(error).__name__}: {error!s:.300}" for case, error in failed)
                raise AssertionError(f"{len(failed)} of {len(cases)} cases failed\n{told}") from failed[0][1]

        signature = inspect.signature(function)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
