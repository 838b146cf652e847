"""The tests that a run takes, those of its tier, and the databases that the seed draws for each."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.drawn import ALIKE, LACKS, NAMES, drawn
from support.evidence import share

TESTS = Path(__file__).resolve().parents[1]
Collected = Callable[..., Counter[tuple[str, str]]]

FIXTURES = """
import pytest
from support.drawn import NAMES, needs

@pytest.fixture(params=NAMES)
def backend(request):
    return request.param

@pytest.fixture(params=NAMES, scope="module")
def module_backend(request):
    return request.param

@pytest.fixture
@needs("reopen")
def filled(backend):
    return backend

@pytest.fixture
def more(filled):
    return filled

@pytest.mark.parametrize("value", range(40))
def test_plain(value, backend):
    pass

@pytest.mark.databases("all")
def test_all(backend):
    pass

@pytest.mark.databases("one")
@pytest.mark.parametrize("value", range(40))
def test_one(backend, value):
    pass

@needs("sharing", "gapless")
def test_needing(backend):
    pass

@pytest.mark.databases("all")
def test_of_a_fixture_that_needs(more):
    pass

@pytest.mark.parametrize("backend", ["sqlite-memory"], indirect=True)
def test_of_one(backend):
    pass

@pytest.mark.parametrize("value", range(20))
def test_of_a_module(value, module_backend):
    pass

@pytest.mark.prove
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_dear(backend):
    pass

@pytest.mark.soak
@pytest.mark.prove
@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_long(backend):
    pass
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Return a function that counts what pytest selects of planted modules, by test and database."""
    root = tmp_path_factory.mktemp("planted")
    for folder in ("storage", "search"):
        (root / folder).mkdir()
        (root / folder / "test_planted.py").write_text(FIXTURES)
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    databases\n    prove\n    soak\n")

    @functools.cache
    def collected(path: str = "search", *options: str, **environment: str) -> Counter[tuple[str, str]]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CALIBER_"))}
        environment = {"CALIBER_SEED": "5", **environment}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "support.tiers", "-p", "support.drawn", "--collect-only", "-q",
             path, *options],
            cwd=root,
            env={**kept, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        lines = [line.partition("::")[2].partition("[") for line in done.stdout.splitlines() if "::" in line]
        databases = sorted(NAMES, key=len, reverse=True)
        return Counter(
            (test, next(each for each in databases if f"-{each}-" in f"-{values[:-1]}-")) for test, _, values in lines
        )

    return collected


@pytest.mark.parametrize("extreme", ["0", str(2**64)])
def test_every_seed_draws_and_over_seeds_each_test_meets_each_database(
    monkeypatch: pytest.MonkeyPatch, extreme: str
) -> None:
    names = [f"tests/search/test_x.py::test_{at}" for at in range(200)]
    met: dict[str, set[str]] = {name: set() for name in names}
    for seed in (*map(str, range(20)), extreme):
        monkeypatch.setenv("CALIBER_SEED", seed)
        chosen = [drawn(name, NAMES) for name in names]
        assert chosen == [drawn(name, NAMES[::-1]) for name in names], "whatever the order"
        assert all("postgres" in each and len(each) == len(NAMES) - 1 for each in chosen)
        assert 60 < sum("sqlite" in each for each in chosen) < 140
        for name, each in zip(names, chosen, strict=True):
            met[name] |= each
        share = Counter(next(iter(drawn(name, NAMES, one=True))) for name in names)
        assert set(share) == set(NAMES)
        assert min(share.values()) > 35
    assert all(each == set(NAMES) for each in met.values())


def test_seeds_in_a_row_share_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    for number in range(41, 44):
        monkeypatch.setenv("CALIBER_SEED", str(number))
        assert len(share(range(10), 3)) in (3, 4)
        met += share(range(10), 3)
    assert sorted(met) == list(range(10))
    monkeypatch.setenv("CALIBER_SOAK", "1")
    assert share(range(10), 3) == list(range(10))


def test_what_is_not_alike_is_not_drawn() -> None:
    assert set(ALIKE) < set(NAMES)
    for databases in (("postgres",), ("postgres", "sqlite"), ("sqlite-memory",)):
        assert drawn("a test", databases) == set(databases)
    assert len(drawn("a test", ("postgres", "sqlite"), one=True)) == 1


def test_each_change_runs_a_test_on_one_database_and_leaves_out_what_is_dear(collected: Collected) -> None:
    found = collected()
    each = Counter(test for test, _ in found.elements())
    assert each == {
        "test_plain": 40, "test_all": 1, "test_one": 40, "test_needing": 1, "test_of_a_fixture_that_needs": 1,
        "test_of_one": 1, "test_of_a_module": 20,
    }  # fmt: skip
    assert all(found[("test_plain", name)] > 4 for name in NAMES)
    assert 20 in {found[("test_of_a_module", name)] for name in NAMES}, "a module makes one store"
    assert collected("search", CALIBER_SEED="6") != found


@pytest.mark.prove
def test_a_night_takes_postgresql_and_one_of_those_that_are_alike(collected: Collected) -> None:
    found = collected("search", "--tier", "prove")
    files, memories = found[("test_plain", "sqlite")], found[("test_plain", "sqlite-memory")]
    assert found[("test_plain", "postgres")] == files + memories == 40
    assert min(files, memories) > 8
    assert {found[("test_all", name)] for name in NAMES} == {1}
    ones = [found[("test_one", name)] for name in NAMES]
    assert sum(ones) == 40
    assert min(ones) > 4
    having = {name for name in NAMES if not {"sharing", "gapless"} & set(LACKS[name])}
    assert {name for test, name in found if test == "test_needing"} == having == {"sqlite"}
    assert {name for test, name in found if test == "test_of_a_fixture_that_needs"} == {"postgres", "sqlite"}
    assert found[("test_of_one", "sqlite-memory")] == 1
    assert found[("test_of_a_module", "postgres")] == 20
    assert sorted(found[("test_of_a_module", name)] for name in ALIKE) == [0, 20], "a module makes one store"
    assert (found[("test_dear", "postgres")], found[("test_long", "postgres")]) == (1, 0)
