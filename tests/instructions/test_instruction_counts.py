"""Instructions of the hot kernels, within 5 % of those committed. Issue 3, item 8."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.kernels import instructions, native_builds
from support.kernels.instructions import Counts

pytestmark = pytest.mark.prove

# .ci/run sets it: there, what is missing is an error.
REQUIRED = bool(os.environ.get("CALIBER_REQUIRE_GUARD"))


def missing(reason: str) -> None:
    if REQUIRED:
        pytest.fail(f"CALIBER_REQUIRE_GUARD is set, and {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if native_builds.COMPILER is None:
        missing("there is no C compiler")
    if instructions.VALGRIND is None:
        missing("there is no valgrind (Debian: apt-get install valgrind)")
    folder = tmp_path_factory.mktemp("instructions")
    instructions.build_driver(folder)
    return folder


@pytest.fixture(scope="module")
def counts(built: Path) -> Counts:
    return instructions.count(built / "driver", built)


def test_counts_are_those_committed(counts: Counts) -> None:
    expected = instructions.committed()
    if expected is None:
        missing(f"no counts are committed for {instructions.baseline_file().stem}: make guard-update")
        return
    found = instructions.differences(expected, counts)
    assert not found, "\n".join([*found, "If this is meant: make guard-update, and commit what it writes."])


def test_a_second_run_counts_the_same(built: Path, counts: Counts, tmp_path: Path) -> None:
    again = instructions.count(built / "driver", tmp_path)
    for path, by_kernel in counts.items():
        for name, number in by_kernel.items():
            assert abs(again[path][name] - number) <= number // 1000, (path, name)


# Slower ways to the same answers, and the kernels whose counts must tell.
SLOWDOWNS = {
    "every row is scored": (
        ("vectors/topk.c", "#define CAL_SCAN_SHARE 8", "#define CAL_SCAN_SHARE 1000"),
        "topk_codes",
    ),
    "smaller digits": (("rank/rank.c", "#define MOST_BITS 11", "#define MOST_BITS 6"), "rank_and_fill"),
}


@pytest.mark.parametrize("slowdown", SLOWDOWNS)
def test_a_planted_slowdown_is_reported(slowdown: str, built: Path, counts: Counts, tmp_path: Path) -> None:
    change, kernel = SLOWDOWNS[slowdown]
    slower = instructions.count(instructions.build_driver(tmp_path, [change], unchanged=built), tmp_path)
    found = instructions.differences(counts, slower)
    assert any(f" {kernel}: " in line and "(+" in line for line in found), found


def test_five_percent_is_the_limit_both_ways() -> None:
    before = {"scalar": {"a": 1000, "b": 1000, "c": 1000, "d": 1000}}
    assert not instructions.differences(before, {"scalar": {"a": 1050, "b": 950, "c": 1000, "d": 1001}})
    found = instructions.differences(before, {"scalar": {"a": 1051, "b": 949, "d": 1000, "e": 5}})
    assert [line.split(":")[0] for line in found] == ["scalar a", "scalar b", "scalar c", "scalar e"]
    assert instructions.differences(before, {"avx2": {}})
    assert not instructions.differences({**before, "avx2": {"a": 1}}, before)  # a machine without AVX2
