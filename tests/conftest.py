"""Settings of every test: the depth of Hypothesis's search, and a report about the machine."""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# Collection makes a million objects and no garbage.
gc.disable()

# A shell that starts a run in the background ignores SIGINT, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# NumPy's library starts a thread for each core, which spins for 50 ms, in each of a thousand processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# ``support`` holds what several rooms of tests share; it is not part of the package.
sys.path.insert(0, str(Path(__file__).resolve().parent))
pytest_plugins = ["support.tiers", "support.drawn", "support.fixtures", "support.prepared", "support.prices"]


def _work_in_memory() -> None:
    """Let pytest keep the files of tests in memory: a store in a file takes four times as long on a disk.

    Nothing here has to survive the machine: crash tests kill processes, or lose power in a file system of their own.
    ``make soak`` works on the disk, and so does a run that is given ``--basetemp``.
    """
    from support.folders import memory_folder

    place = None if os.environ.get("CALIBER_SOAK") else memory_folder()
    if place is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(place))


_work_in_memory()

# No deadline: a busy machine is not a bug. `make test SEED=random` draws other examples, `make soak` many more.
for _name, _examples in (("daily", 12), ("prove", 40), ("soak", 5000)):
    settings.register_profile(_name, deadline=None, print_blob=True, max_examples=_examples)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    from support.tiers import tier

    settings.load_profile(tier())


def _use_native(path: str) -> None:
    """Put another build of the kernels in the place of the installed one; tools/sanitize.py has one."""
    import caliber

    specification = importlib.util.spec_from_file_location("caliber._native", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    sys.modules["caliber._native"] = module
    caliber._native = module  # type: ignore[attr-defined]


if os.environ.get("CALIBER_TEST_NATIVE"):
    _use_native(os.environ["CALIBER_TEST_NATIVE"])


def pytest_report_header() -> str:
    from caliber.kernels import active_path, available_paths

    native = os.environ.get("CALIBER_TEST_NATIVE", "as installed")
    return f"caliber: kernels {active_path()} of {', '.join(available_paths())}, {native}; {platform.platform()}"


def pytest_collection_finish() -> None:
    # Hypothesis draws literals of whatever is imported by then, so what a seed draws would depend on the tests that
    # its worker happened to run before: what collection imported, the same in every worker, is all there is.
    literals = providers._get_local_constants()  # noqa: SLF001
    providers._get_local_constants = lambda: literals  # noqa: SLF001
    # Collections of garbage need not look at 13,000 tests and the modules they are in.
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def compiled_code(request: pytest.FixtureRequest) -> Path:
    """The folder in which test runs keep what Numba compiled. Skips without the extra ``jit``."""
    pytest.importorskip("numba", reason="the extra jit is not installed")
    return Path(request.config.cache.mkdir("compiled"))


@pytest.fixture(scope="session")
def known_types(request: pytest.FixtureRequest) -> Path:
    """The folder in which mypy keeps what it knows of the package: reading it all takes several seconds."""
    return Path(request.config.cache.mkdir("types"))


@pytest.fixture(scope="session")
def numba(compiled_code: Path) -> Any:
    """The compiled evaluator of this process."""
    from caliber.kernels import open_evaluator

    return open_evaluator("numba", compiled_code)
