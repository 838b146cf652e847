"""The frame of the benchmarks: fair turns, one table, one document, one picture. Source: design section 9."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.contest import ASIDE, OURS, PEER, TWIN
from harness.report import Figure, Measurement, cells, document, table

ROOT = Path(__file__).resolve().parents[2]


def timed(task: str, kind: str, name: str, median_s: float, **more: float | str | None) -> Measurement:
    return Measurement(task, kind, name, median_s, median_s / 10, 15, 1, **more)  # type: ignore[arg-type]


# --- the table ----------------------------------------------------------------------------------


def test_the_best_peer_decides_and_asides_do_not() -> None:
    rows = table(
        [
            timed("t", OURS, "scalar", 4e-3),
            timed("t", OURS, "avx2", 1e-3, goal=3.0),
            timed("t", TWIN, "NumPy", 0.5e-3),
            timed("t", PEER, "slow", 9e-3),
            timed("t", PEER, "quick", 2e-3),
            timed("t", ASIDE, "graph", 0.5e-3, recall=0.8),
        ],
        [],
    )
    first, beside = rows
    assert (first.ours, first.ours_name, first.peer_name, first.met) == ("1 ms", "avx2", "quick", False)
    assert first.ratio == pytest.approx(2.0)
    assert beside.aside
    assert beside.met is None
    assert beside.ratio == pytest.approx(0.5)
    assert "recall 0.80" in (beside.peer_name or "")


@pytest.mark.parametrize(("limits", "ours_s", "met"), [
    ({"goal": 3.0}, 1.0, True),
    ({"goal": 3.0}, 1.001, False),
    ({"at_most": 0.5}, 1.5, True),
    ({"at_most": 0.5}, 1.501, False),
    ({"at_most_s": 2.0}, 2.0, True),
    ({"at_most_s": 2.0}, 2.001, False),
    ({"goal": 3.0, "at_most_s": 2.0}, 1.5, False),
    ({}, 1.0, None),
])  # fmt: skip
def test_goals(limits: dict[str, float], ours_s: float, met: bool | None) -> None:
    rows = table([timed("t", OURS, "avx2", ours_s, **limits), timed("t", PEER, "peer", 3.0)], [])
    assert rows[0].met is met
    assert cells(rows[0])[5] == {True: "met", False: "SHORT", None: ""}[met]


# --- the document -------------------------------------------------------------------------------


def test_document_is_json_and_its_fields_are_documented() -> None:
    measurements = [timed("t", OURS, "avx2", 1e-3, goal=3.0, bytes_read=8), timed("t", PEER, "peer", 2e-3)]
    out = json.loads(json.dumps(document(measurements, [Figure("f", 1.0, "x", at_least=2.0)], quick=True)))
    assert out["goals"] == {"met": 0, "short": ["t", "f"]}
    said = set(re.findall(r"`(\w+)`", (ROOT / "bench" / "README.md").read_text().split("## The document")[1]))
    fields = {*out, *out["machine"], *out["goals"], *out["table"][0], *out["measurements"][0], *out["figures"][0]}
    assert fields <= said


# --- a run -------------------------------------------------------------------------------------


def test_a_group_runs_from_beginning_to_end(tmp_path: Path) -> None:
    """Another process: one document, with answers compared and a goal judged."""
    report = tmp_path / "report.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "bench", "-k", "rank", "--quick", "--benchmark-quiet", "-q", "-n0"),
            *("-p", "no:cacheprovider", f"--report={report}"),
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=True,
    )
    out = json.loads(report.read_text(encoding="utf-8"))
    assert out["quick"]
    (row,) = [row for row in out["table"] if "10,000" in row["task"]]
    assert row["peer_name"] == "Python sort + loop"
    assert row["goal"] == ">= 50x"
    assert row["ratio"] > 1
    kinds = {item["kind"] for item in out["measurements"] if item["task"] == row["task"]}
    assert kinds == {OURS, PEER}
