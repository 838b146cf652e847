"""A configuration read from a ``.caliber`` file: goal 50 ms of CPU for the reference profile, after import.

The same configuration as TOML stands beside it: its parser knows of no places, comments and names that were meant.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness.contest import ASIDE, CPU, OURS, Contender

from caliber.config import CaliberConfig, profiles
from caliber.config.manual.render import render_toml
from caliber.config.parsing import parse_toml
from caliber.dsl import compile_text
from caliber.dsl.writing import render_caliber

GOAL_S = 50e-3
FIRST = """
import sys, time
from caliber.dsl import compile_text
text = open(sys.argv[1], encoding="utf-8").read()
before = time.process_time()
compile_text(text)
print(time.process_time() - before)
"""


def test_compiling_the_reference_profile(contest: Callable[..., None]) -> None:
    config = profiles.reference("caliber.db")
    program, toml = render_caliber(config), render_toml(config)

    def ours() -> CaliberConfig:
        return compile_text(program)

    def other() -> CaliberConfig:
        return CaliberConfig.from_mapping(parse_toml(toml))

    assert ours() == other() == config
    aside = Contender(ASIDE, "the same as TOML", other, note="has no places to point at")
    contest("reference profile from its text", [Contender(OURS, "compiled", ours, at_most_s=GOAL_S), aside], clock=CPU)


def test_compiling_for_the_first_time(figure: Callable[..., None], quick: bool, tmp_path: Path) -> None:
    file = tmp_path / "agent.caliber"
    file.write_text(render_caliber(profiles.reference("caliber.db")), encoding="utf-8")
    command = [sys.executable, "-c", FIRST, str(file)]
    took = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(1 if quick else 15)
    ]
    at_most = GOAL_S * 1e3
    figure(
        "reference profile, the first text of a process", statistics.median(took) * 1e3, "ms of CPU", at_most=at_most
    )
