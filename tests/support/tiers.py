"""A pytest plugin of the three tiers of tests: what each change runs, what a night runs, what a week runs.

``daily`` is ``make test``: what runs unless somebody asks for more. ``--tier prove`` adds the tests that carry the mark
``prove``, on a module, a class or a test, and the databases that ``daily`` did not draw (``support.drawn``). ``soak``
is ``make soak`` (CALIBER_SOAK=1): all of these at full scale, and the tests that carry the mark ``soak``. A file that
is named as an argument is meant: unless a tier is named as well, it runs whole.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

TIERS = ("daily", "prove", "soak")
_TIER = "CALIBER_TIER"
_ALL_OF_IT = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.prove\b", re.MULTILINE)


def tier() -> str:
    """Return the tier of this run, which its child processes inherit."""
    return "soak" if os.environ.get("CALIBER_SOAK") else os.environ.get(_TIER, "daily")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS[:2], help="daily, which is the default, or prove: the rest too")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[_TIER] = config.getoption("tier") or tier()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files of later tiers without importing them: that takes as long as to run many a file."""
    if tier() != "daily" or not collection_path.name.startswith("test_") or not collection_path.is_file():
        return None
    if not config.getoption("tier") and collection_path in _named(config):
        return None
    return True if _ALL_OF_IT.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of later tiers, except of files that were named."""
    later = TIERS[TIERS.index(tier()) + 1 :]
    named = set() if config.getoption("tier") else _named(config)
    left_out = {
        item
        for item in items
        if any(item.get_closest_marker(mark) for mark in later)
        and (item.path not in named or item.get_closest_marker("soak"))
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _named(config: pytest.Config) -> set[Path]:
    paths = [argument.partition("::")[0] for argument in config.args]
    places = (config.invocation_params.dir, config.rootpath)
    return {file for path in paths for place in places if (file := (place / path).resolve()).is_file()}
