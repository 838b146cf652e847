"""Exceptions of signal handlers are told from errors of the work, and let through. Source: design section 10."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import caliber
from caliber.model.process.interrupts import is_of_handler, let_through, suppress

PACKAGE = Path(caliber.__file__).parent
BROAD = {"Exception", "BaseException", "OSError", "RuntimeError", "TimeoutError"}
"""Classes of which programs raise something in handlers."""
OURS = {
    "api/aio_base.py": "a loop that has ended",
    "api/aio_proxy.py": "a worker of the asynchronous face",
    "backends/postgres/connecting/cancelling.py": "a thread of its own",
    "backends/postgres/connecting/dialling.py": "a thread of its own; its error is raised to the caller",
    "backends/postgres/searching/vector_index.py": "a thread of its own; its error is raised to the caller",
    "backends/postgres/writing/listener.py": "a thread of its own",
    "backends/postgres/writing/writer.py": "kept as the error of the calling thread's request",
    "backends/sqlite/writer.py": "kept as the error of the calling thread's request",
    "embedding/embedder.py": "the worker",
    "engine/background.py": "a thread of its own",
    "engine/transaction.py": "a thread of its own; its error is raised to the caller",
    "jobs/runner.py": "a worker",
    "llm/local/minilm.py": "apart",
    "llm/local/static.py": "apart",
    "storage/waiting.py": "a thread of its own; its error is raised to the caller",
    "tenancy/pool.py": "a thread of its own",
}
"""Files with a clause in which no exception of a handler is lost, and why."""
OTHERS = ("cli/", "importing/")
"""A program, which is ended by its signals."""


class Late(TimeoutError):
    """A time limit that passed."""


def _classes(node: ast.expr | None) -> set[str]:
    if node is None:
        return BROAD
    return {ast.unparse(each) for each in (node.elts if isinstance(node, ast.Tuple) else [node])}


def _dropping(source: str) -> Iterator[int]:
    """Yield the lines of clauses that may drop or translate what a handler raised."""
    tree = ast.parse(source)
    safe = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "caliber.model.process.interrupts"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _classes(node.type) & BROAD:
            calls = {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
            raises = any(isinstance(each, ast.Raise) and each.exc is None for each in node.body)
            if not raises and not ("let_through" in calls and "let_through" in safe):
                yield node.lineno
        if not isinstance(node, ast.Call) or not {ast.unparse(each) for each in node.args} & BROAD:
            continue
        name = ast.unparse(node.func)
        if name == "contextlib.suppress" or (name == "suppress" and name not in safe):
            yield node.lineno


def test_blocks_give_back_what_they_hold_when_they_are_interrupted() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = [name for name, source in sources.items() if re.search(r"(import .*|@|\.)\bcontextmanager\b", source)]
    assert [name for name in found if not name.startswith((*OTHERS, "model/process/interrupts.py"))] == [], (
        "use managed"
    )


def test_every_broad_clause_lets_exceptions_of_handlers_through() -> None:
    found: dict[str, list[int]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(OTHERS) and (lines := list(_dropping(path.read_text(encoding="utf-8")))):
            found[name] = lines
    assert sorted(found) == sorted(OURS), "call let_through(error) first, of caliber.model.process.interrupts"


@pytest.mark.parametrize("source", [
    "try:\n f()\nexcept OSError:\n pass",
    "try:\n f()\nexcept (ValueError, RuntimeError) as error:\n raise Ours from error",
    "try:\n f()\nexcept Exception as error:\n let_through(error)",
    "with contextlib.suppress(OSError):\n f()",
    "from contextlib import suppress\nwith suppress(KeyError, Exception):\n f()",
])  # fmt: skip
def test_planted_clauses_are_found(source: str) -> None:
    assert list(_dropping(source))


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals")
@pytest.mark.parametrize("raised", [Late, TimeoutError, OSError, RuntimeError, KeyboardInterrupt])
def test_what_a_handler_raised_goes_on(raised: type[BaseException]) -> None:
    def handler(*_: Any) -> None:
        raise raised

    def interrupted() -> None:
        signal.raise_signal(signal.SIGUSR1)

    def by_a_library() -> None:
        try:
            interrupted()
        except BaseException as error:
            raise ConnectionError from error

    def translated(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            let_through(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for work in (interrupted, by_a_library):
            with pytest.raises(raised):
                translated(work)
        with pytest.raises(raised), suppress(raised):
            interrupted()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_error_of_the_work_is_left_to_the_clause() -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        Path("/no such file").read_bytes()
    let_through(caught.value)
    assert not is_of_handler(caught.value)
    with suppress(OSError):
        raise caught.value
