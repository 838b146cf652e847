"""A pytest plugin of the fixtures that tests of a handle and of a store share.

Every run loads it; ``databases`` is imported when the first test asks for a database, because unit tests need none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.drawn import NAMES, needs

if TYPE_CHECKING:
    import caliber
    from support.databases import Agent, Backend, PostgresBackend
    from support.local_server import LocalServer


@pytest.fixture(scope="session", autouse=True)
def _watched() -> None:
    from support.storage import locks_held

    locks_held.watch()


@pytest.fixture(autouse=True)
def _open_stores_keep_their_locks() -> Iterator[None]:
    """Fail a test in which the package opened a file of an open store: closing it drops the store's locks."""
    from support.storage.locks_held import dangerous

    yield
    found = dangerous[:]
    dangerous.clear()
    assert not found, found


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of the suite's server: the one that CALIBER_TEST_DSN names, or a private one for this run."""
    from support import databases

    with databases.suite_server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def second_postgres(postgres: str) -> Iterator[LocalServer]:
    """Another cluster, whose logins have passwords."""
    from support import databases

    with databases.second_server() as server:
        yield server


def _make(name: str, request: pytest.FixtureRequest, folder: Path) -> Backend:
    """Return a database of a kind; the caller closes it."""
    from support.databases import BACKENDS

    if name == "postgres":
        request.getfixturevalue("postgres")
    return BACKENDS[name](folder)


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = _make(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=NAMES, scope="module")
def module_backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """One database under test for all tests of a module that ask for it: they must leave nothing behind."""
    made = _make(request.param, request, tmp_path_factory.mktemp("module"))
    yield made
    made.close()


@pytest.fixture
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Backend]]:
    """Make one more database of a kind, empty, beside that of the test."""
    made: list[Backend] = []

    def make(name: str) -> Backend:
        folder = tmp_path / f"another-{len(made)}"
        folder.mkdir()
        made.append(_make(name, request, folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def file_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """SQLite in a file, for what only files have: their modes, their neighbours, their size."""
    made = _make("sqlite", request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def pg(postgres: str) -> Iterator[PostgresBackend]:
    """PostgreSQL, for tests of what it alone has; nothing is created yet."""
    from support.databases import PostgresBackend

    made = PostgresBackend()
    yield made
    made.close()


@pytest.fixture
@needs("bulk")
def bulk() -> None:
    """Leave a module to the databases that load whole relations."""


@pytest.fixture
@needs("full text")
def full_text() -> None:
    """Leave a module to the databases that find texts by words."""


@pytest.fixture
def memory(backend: Backend) -> caliber.Caliber:
    """An open store with the default test configuration."""
    return backend.open()


@pytest.fixture
def agent(start: Callable[..., Agent], memory: caliber.Caliber) -> Agent:
    return start(memory)


@pytest.fixture(scope="module")
def module_agent(start: Callable[..., Agent], module_backend: Backend) -> Agent:
    """An agent of all tests of a module that ask for it: what they call must be refused, and write nothing."""
    return start(module_backend.open())


@pytest.fixture(scope="session")
def start() -> Callable[..., Agent]:
    """Return a function that starts a trajectory on a handle."""
    from support.databases import Agent

    return Agent


@pytest.fixture(scope="session")
def _begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and an empty store, for copies."""
    from support.cli_runs import caliber

    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        caliber("init")
        caliber("create")
    return folder


@pytest.fixture
def here(_begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run: with a configuration and an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBER_CONFIG", raising=False)
    return shutil.copytree(_begun, tmp_path, dirs_exist_ok=True)
