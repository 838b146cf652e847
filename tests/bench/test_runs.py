"""Every benchmark runs at a tiny size, without the packages compared with: answers are compared, no goal is judged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.prove

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
FILES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "bench").glob("test_*.py"))}
BENCHMARKS = [
    (file, name) for file, text in FILES.items() for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
]
NOT_HERE = ("left out by --quick", "the extra tokens has no wheel for this Python")
TEXTS: dict[str, Any] = {
    "failure": lambda child: child.text,
    "error": lambda child: child.text,
    "skipped": lambda child: child.get("message"),
}
PEER = re.compile(r'peer\("([\w.]+)"\)')
TALK: dict[str, Any] = {
    "speaker_a": "Ruth",
    "speaker_b": "Emil",
    "session_1_date_time": "4:10 pm on 2 March, 2023",
    "session_1": [
        {"speaker": "Ruth", "dia_id": "D1:1", "text": "My sister opened a bakery in Porto."},
        {"speaker": "Emil", "dia_id": "D1:2", "text": "What does she bake?"},
        {"speaker": "Ruth", "dia_id": "D1:3", "text": "Mostly rye bread."},
    ],
    "session_2_date_time": "9:30 am on 5 March, 2023",
    "session_2": [{"speaker": "Emil", "dia_id": "D2:1", "text": "I repaired the old accordion of my uncle."}],
    "qa": [
        {"question": "Where is the bakery of Ruth's sister?", "answer": "Porto", "evidence": ["D1:1"], "category": 4},
        {"question": "What did Emil repair?", "answer": "an accordion", "evidence": ["D2:1"], "category": 4},
    ],
}


@dataclass(frozen=True)
class Run:
    """A run of all benchmarks: how it ended, what it printed, its document, and the outcomes of each function."""

    code: int
    output: str
    document: dict[str, Any]
    outcomes: dict[tuple[str, str], list[tuple[str, str]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("bench")
    talks, report, cases = folder / "talks", folder / "report.json", folder / "cases.xml"
    talks.mkdir()
    (talks / "talk.json").write_text(json.dumps(TALK))
    # The data of benchmarks is the same in each run: a filter that matches nothing in it compares nothing.
    inherited = {
        name: value for name, value in os.environ.items() if name != "CALIBER_SEED" and not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "bench", "--quick", "--without-peers", "--benchmark-quiet", "-q"),
            *("-n0", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--basetemp={folder / 'scratch'}"),
            *(f"--report={report}", f"--junitxml={cases}"),
        ],
        cwd=ROOT,
        env=inherited | dict.fromkeys(ONE_THREAD, "1") | {"CALIBER_LOCOMO": str(talks)},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert report.exists(), output
    assert cases.exists(), output
    outcomes: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for case in ElementTree.parse(cases).iter("testcase"):
        key = case.get("classname", "").rpartition(".")[2], case.get("name", "").partition("[")[0]
        found = [(child.tag, TEXTS[child.tag](child)) for child in case if child.tag in TEXTS]
        outcomes.setdefault(key, []).extend(found or [("passed", "")])
    return Run(done.returncode, output, json.loads(report.read_text(encoding="utf-8")), outcomes)


@pytest.mark.parametrize(("file", "name"), BENCHMARKS, ids=[f"{file}-{name}" for file, name in BENCHMARKS])
def test_a_benchmark_runs(run: Run, file: str, name: str) -> None:
    outcomes = run.outcomes.get((file, name), [])
    failures = "\n".join(text for tag, text in outcomes if tag in ("failure", "error"))
    assert not failures, failures
    assert {text for tag, text in outcomes if tag == "skipped"} <= set(NOT_HERE)
    assert ("passed", "") in outcomes or ("skipped", NOT_HERE[1]) in outcomes, run.output


def test_all_benchmarks_run_to_the_end_without_a_peer(run: Run) -> None:
    assert run.code == 0, run.output
    assert run.document["quick"]
    sources = [*FILES.values(), *(path.read_text("utf-8") for path in (ROOT / "bench" / "harness").glob("*.py"))]
    asked = {name for text in sources for name in PEER.findall(text)}
    # pysqlite3 is for a Python whose own module loads no extensions.
    assert asked - {"pysqlite3"} <= set(run.document["absent"]) <= asked


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux' /proc")
def test_the_figures_of_scale_can_be_measured() -> None:
    done = subprocess.run(
        [sys.executable, "bench/scale.py", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^check PostgreSQL, without memory +\d", done.stdout, re.MULTILINE)
