"""A failed test is run again alone: one that then passes is named as flaky, everything else stays red.

With workers, the plugin that hands them whole files is there as well, as in ``make prove``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.prove

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ("-n", "2", "--dist", "loadfile")

# Each planted test counts its runs in a file, and so knows whether it is run again.
PLANTED = """
import os, pathlib, pytest

def runs(name):
    path = pathlib.Path(__file__).with_name(f"{name}.runs")
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(number))
    return number

def test_sound():
    pass
"""

FAILS_ONCE = """
def test_fails_once():
    assert runs("once") > 1, "the first run fails"
"""

FAILS_ALWAYS = """
@pytest.mark.parametrize("value", ["a b", "x::y[1]", "é"])
def test_fails_always(value):
    assert value == "é", f"run {runs(value[0])}"
"""

SKIPS_WHEN_RUN_AGAIN = """
def test_skips_when_run_again():
    if runs("skips") > 1:
        pytest.skip("not this time")
    raise AssertionError
"""

FAILS_ONCE_IN_SETUP = """
@pytest.fixture
def needed():
    assert runs("needed") > 1, "the first setup fails"

def test_needs(needed):
    pass
"""


class Run:
    """The exit code of a run of pytest with the plugin, and the lines of its output that count."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output
        lines = output.rstrip().splitlines()
        self.closing = lines[-1]
        self.flaky = [line for line in lines if line.startswith("flaky: ")]
        self.before_closing = lines[-1 - len(self.flaky) : -1]
        self.rescan = self._tests("running again, alone")
        self.failed_again = self._tests("failed again, alone")

    def _tests(self, what: str) -> list[str]:
        return re.findall(rf"^{what}: test_\w+\.py::(.*)$", self.output, re.MULTILINE)


Runner = Callable[..., Run]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run pytest on planted modules, in a folder that stays the same within a test."""

    def run(*options: str, **modules: str) -> Run:
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -ra\n")
        for name, content in modules.items():
            (tmp_path / f"{name}.py").write_text(PLANTED + content, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTHONPATH": str(ROOT), "CALIBER_SEED": "41", "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin,_hypothesis_pytestplugin,tests.support.files_to_workers",
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.support.flaky", "-q", *options],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
            encoding="utf-8",
        )  # fmt: skip
        return Run(done.returncode, done.stdout)

    return run


@pytest.mark.parametrize("workers", [(), WORKERS], ids=["one process", "workers"])
def test_test_that_fails_once_is_named_and_the_run_is_green(run: Runner, workers: tuple[str, ...]) -> None:
    # issue 12, First, item 2
    done = run(*workers, test_one=FAILS_ONCE, test_two=FAILS_ONCE_IN_SETUP)
    assert done.code == 0, done.output
    assert sorted(done.rescan) == ["test_fails_once", "test_needs"]
    assert sorted(done.flaky) == [
        "flaky: test_one.py::test_fails_once failed in this run and passed alone (seed 41); mend it",
        "flaky: test_two.py::test_needs failed in this run and passed alone (seed 41); mend it",
    ]
    assert done.before_closing == done.flaky
    assert re.fullmatch(r"2 passed, 2 flaky in .*s", done.closing)
    assert "AssertionError: the first run fails" in done.output, "the failure itself is shown"
    assert "AssertionError: the first setup fails" in done.output
    assert "FAILED" not in done.output

    again = run(*workers)  # now both pass, whatever the cache of pytest holds of the first run
    assert (again.code, again.rescan, again.flaky) == (0, [], []), again.output
    assert re.fullmatch(r"4 passed in .*s", again.closing)


def test_test_that_does_not_pass_alone_is_red(run: Runner, tmp_path: Path) -> None:
    # issue 12, First, item 2
    done = run(*WORKERS, test_one=FAILS_ONCE + FAILS_ALWAYS, test_two=SKIPS_WHEN_RUN_AGAIN)
    assert done.code == 1, done.output
    assert len(done.rescan) == 4
    assert sorted(done.failed_again) == [
        "test_fails_always[a b]",
        "test_fails_always[x::y[1]]",
        "test_skips_when_run_again",
    ]
    assert [line.split()[1] for line in done.flaky] == ["test_one.py::test_fails_once"]
    assert "run 2" in done.output, "the output of the second run is shown"
    assert re.fullmatch(r"3 failed, 3 passed, 1 flaky in .*s", done.closing)

    (tmp_path / "test_two.py").unlink()
    (tmp_path / "once.runs").unlink()
    assert "test_fails_always" in (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text()
    later = run(test_one=FAILS_ONCE)
    assert later.rescan == ["test_fails_once"], "failures of an earlier run are no business of this one"
    assert later.code == 0, later.output


ELEVEN = '@pytest.mark.parametrize("number", range(11))\ndef test_fails_once(number):\n    assert runs(number) > 1\n'
TEARDOWN = """
@pytest.fixture(scope="session")
def shared():
    yield
    assert runs("teardown") > 1

def test_first(shared):
    pass
"""


@pytest.mark.parametrize(
    ("options", "content", "why"),
    [
        # The test that it is reported with need not be the one that caused it, and passes alone.
        ((), FAILS_ONCE + TEARDOWN, r"test_one\.py::test_first failed in a teardown"),
        (("-x",), FAILS_ONCE + "\ndef test_never_run():\n    pass\n", "the run stopped after 2 of 3 tests"),
        ((), ELEVEN, "11 tests failed, which is no coincidence"),
        (
            WORKERS,
            FAILS_ONCE + "\nif runs(f'import-{os.getpid()}') < 9:\n    raise RuntimeError\n",
            "could not be collected",
        ),
    ],
    ids=["teardown", "stopped", "too many", "import"],
)
def test_what_a_test_alone_cannot_disprove_stays_red(
    run: Runner, options: tuple[str, ...], content: str, why: str
) -> None:
    done = run(*options, test_one=content)
    assert done.code in (1, 2), done.output
    assert (done.rescan, done.flaky) == ([], [])
    assert re.search(why, done.output)


# --- workers that die ---------------------------------------------------------------------------------

DIES = """
def test_dies():
    if runs("dies") <= {times}:
        os._exit(3)

def test_later():
    pass
"""


def test_run_ends_with_all_tests_when_a_worker_dies_after_whole_files(run: Runner, tmp_path: Path) -> None:
    # Without the plugin the new worker waits for ever: for the file that the dead one was done with, or for a second
    # test; or the run ends with an internal error, when a dead worker is sent a file.
    done = run(
        *WORKERS,
        test_one='@pytest.mark.parametrize("number", range(6))\ndef test_many(number):\n    pass\n',
        test_two=DIES.format(times=9),
        test_three="",
    )  # fmt: skip
    assert (done.code, done.rescan, done.failed_again) == (1, ["test_dies"], ["test_dies"]), done.output
    assert re.fullmatch(r"1 failed, 10 passed in .*s", done.closing)
    assert (tmp_path / "dies.runs").read_text() == "2", "once by a worker and once alone: it would kill every worker"
