"""Every instruction set that kernels are tested on: those of this CPU, and those of ARM in an emulator.

In ``make test`` these are the scalar one and the best one of this CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from support.evidence import proving
from support.kernels import arm64

from caliber import kernels
from caliber.kernels.dispatch import running

LOCAL = list(kernels.available_paths())
if not proving():
    LOCAL = list(dict.fromkeys((LOCAL[0], kernels.active_path())))
EMULATED = arm64.PATHS if proving() else []
COMPILED = [*LOCAL, *EMULATED]
# For kernels that are the same code on every path: one path of each machine; and with every path of this one.
MACHINES = ["scalar", *EMULATED[:1]]
PORTABLE = [*LOCAL, *MACHINES[1:]]

_EMULATED_SHARE = 5  # an emulator and a pipe are about that much slower


@contextmanager
def running_on(path: str) -> Iterator[None]:
    """Run the whole process on one of ``COMPILED`` for a while."""
    if path.startswith(arm64.PREFIX):
        with running(arm64.kernels(path.removeprefix(arm64.PREFIX))):
            yield
    else:
        with kernels.forced_path(path):
            yield


def searched(*, examples: int | None = None, **strategies: SearchStrategy[Any]) -> Callable[..., Any]:
    """Be ``given`` for tests with a ``path``; where that is emulated, a fifth of the examples are tried."""
    most = settings.default.max_examples if examples is None else examples

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        full, few = (
            settings(max_examples=count)(given(**strategies)(test)) for count in (most, max(1, most // _EMULATED_SHARE))
        )

        @functools.wraps(full)
        def run(path: str, **arguments: Any) -> None:
            (few if path.startswith(arm64.PREFIX) else full)(path=path, **arguments)

        return run

    return decorate
