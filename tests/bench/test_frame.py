"""The frame of the benchmarks: fair turns, one table, one document, one picture. Source: design section 9."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from harness import plot, reading
from harness.contest import ASIDE, LEAST_ROUND_S, OURS, PEER, READ, TWIN, Contender, measure
from harness.report import Figure, Measurement, cells, document, lines, table
from support.cli_runs import caliber, command

from caliber.cli import bench

ROOT = Path(__file__).resolve().parents[2]


def timed(task: str, kind: str, name: str, median_s: float, **more: float | str | None) -> Measurement:
    return Measurement(task, kind, name, median_s, median_s / 10, 15, 1, **more)  # type: ignore[arg-type]


# --- turns --------------------------------------------------------------------------------------


class Clock:
    """Time that passes only in calls, each at its price."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, price_s: float, kind: str = OURS) -> Contender:
        def call() -> None:
            self.now += price_s
            self.calls.append(name)

        return Contender(kind, name, call)


def test_rounds_alternate_and_the_first_changes() -> None:
    clock = Clock()
    contenders = [clock.contender(name, 30e-3) for name in "abc"]
    measure(contenders, rounds=15, budget_s=0.0, clock=clock)
    measured = "".join(clock.calls[-45:])
    assert measured == "abcbcacab" * 5


def test_short_calls_are_repeated_and_warmed_and_long_ones_are_not() -> None:
    clock = Clock()
    short, long = measure([clock.contender("a", 1e-6), clock.contender("b", 0.1)], rounds=15, budget_s=0.0, clock=clock)
    assert (short.warm_calls, long.warm_calls) == (16, 0)
    assert short.iterations * 1e-6 >= LEAST_ROUND_S
    assert long.iterations == 1
    assert len(short.rounds_s) == len(long.rounds_s) == 15
    assert short.rounds_s == pytest.approx([short.iterations * 1e-6] * 15)
    assert long.rounds_s == pytest.approx([0.1] * 15)


def test_rounds_fill_the_budget_but_end() -> None:
    def rounds(budget_s: float) -> int:
        clock = Clock()
        return len(measure([clock.contender("a", 1e-3)], rounds=15, budget_s=budget_s, clock=clock)[0].rounds_s)

    assert [rounds(0.01), rounds(0.1), rounds(1000.0)] == [15, 33, 200]


def test_every_round_runs_on_its_path_without_the_collector() -> None:
    state = {"path": "none"}
    seen: list[tuple[str, bool]] = []

    @contextmanager
    def on(path: str) -> Iterator[None]:
        state["path"] = path
        yield
        state["path"] = "none"

    clock = Clock()

    def call() -> None:
        clock.now += 1e-3
        seen.append((state["path"], gc.isenabled()))

    contenders = [Contender(OURS, "a", call, lambda: on("a")), Contender(OURS, "b", call, lambda: on("b"))]
    measure(contenders, rounds=3, budget_s=0.0, clock=clock)
    assert {path for path, _ in seen} == {"a", "b"}
    assert not any(collecting for _, collecting in seen[-6:])
    assert gc.isenabled()


def test_an_aside_says_why_it_decides_nothing() -> None:
    with pytest.raises(ValueError, match="recall or note"):
        Contender(ASIDE, "graph", lambda: None)
    with pytest.raises(ValueError, match="kind"):
        Contender("rival", "x", lambda: None)


# --- the table ----------------------------------------------------------------------------------


def test_the_best_peer_decides_and_asides_do_not() -> None:
    rows = table(
        [
            timed("t", OURS, "scalar", 4e-3),
            timed("t", OURS, "avx2", 1e-3, goal=3.0),
            timed("t", TWIN, "NumPy twin", 0.5e-3),
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


@pytest.mark.parametrize(
    ("limits", "ours_s", "met"),
    [
        ({"goal": 3.0}, 1.0, True),
        ({"goal": 3.0}, 1.001, False),
        ({"at_most": 0.5}, 1.5, True),
        ({"at_most": 0.5}, 1.501, False),
        ({"at_most_s": 2.0}, 2.0, True),
        ({"at_most_s": 2.0}, 2.001, False),
        ({"goal": 3.0, "at_most_s": 2.0}, 1.5, False),
        ({}, 1.0, None),
    ],
)
def test_goals(limits: dict[str, float], ours_s: float, met: bool | None) -> None:
    rows = table([timed("t", OURS, "avx2", ours_s, **limits), timed("t", PEER, "peer", 3.0)], [])
    assert rows[0].met is met
    assert cells(rows[0])[5] == {True: "met", False: "SHORT", None: ""}[met]


def test_without_a_peer_the_twin_is_compared_and_without_both_nothing() -> None:
    rows = table([timed("a", OURS, "numba", 1.0), timed("a", TWIN, "numpy", 3.0), timed("b", OURS, "avx2", 1.0)], [])
    assert [(row.peer_name, row.ratio) for row in rows] == [("numpy", 3.0), (None, None)]


def test_roofline_is_the_fastest_read_of_as_many_bytes() -> None:
    rows = table(
        [
            timed("t", OURS, "avx2", 2e-3, bytes_read=10_000_000),
            timed("t", READ, "plain read", 4e-3, bytes_read=10_000_000),
            timed("t", READ, "plain read, prefetching", 1e-3, bytes_read=10_000_000),
            timed("t", READ, "plain read", 1e-3, bytes_read=40_000_000),
        ],
        [],
    )
    assert rows[0].gb_s == pytest.approx(5.0)
    assert rows[0].of_plain_read == pytest.approx(0.5)
    assert cells(rows[0])[-1] == "50% (5 GB/s)"


def test_figures_have_lines_and_text_lines_up() -> None:
    rows = table([timed("t", OURS, "avx2", 3.2e-7)], [Figure("bytes", 1.7, "x", at_most=1.6), Figure("n", 9, "")])
    text = lines(rows)
    assert [row.met for row in rows] == [None, False, None]
    assert "320 ns" in text[1]
    assert text[2].split(" | ")[0].strip() == "bytes"
    assert text[2].endswith("SHORT")
    assert len({line.index("|") for line in text if "|" in line}) == 1


# --- the document -------------------------------------------------------------------------------


def test_document_is_json_and_its_fields_are_documented() -> None:
    measurements = [timed("t", OURS, "avx2", 1e-3, goal=3.0, bytes_read=8), timed("t", PEER, "peer", 2e-3)]
    out = json.loads(json.dumps(document(measurements, [Figure("f", 1.0, "x", at_least=2.0)], quick=True)))
    assert out["goals"] == {"met": 0, "short": ["t", "f"]}
    said = set(re.findall(r"`(\w+)`", (ROOT / "bench" / "README.md").read_text().split("## The document")[1]))
    fields = {*out, *out["machine"], *out["goals"], *out["table"][0], *out["measurements"][0], *out["figures"][0]}
    assert fields <= said


# --- the picture --------------------------------------------------------------------------------


def sweep() -> list[Measurement]:
    out = []
    for width in (128, 384):
        for rows in (1_000, 10_000, 100_000):
            of = {"rows": rows, "dimensions": width}
            codes, f32 = rows * (width + 8), rows * width * 4
            out += [
                timed("t", OURS, "scalar", rows * 40e-9, **of),
                timed("t", OURS, "avx2", rows * 6e-9, bytes_read=codes, **of),
                timed("t", TWIN, "NumPy twin", rows * 1e-6, **of),
                timed("t", PEER, "faiss", rows * 30e-9, bytes_read=f32, **of),
                timed("t", READ, "plain read", rows * 5e-9, bytes_read=codes, **of),
                timed("t", READ, "plain read, prefetching", rows * 3e-9, bytes_read=codes, **of),
                timed("t", READ, "plain read", rows * 20e-9, bytes_read=f32, **of),
            ]
    return [*out, timed("other", OURS, "avx2", 1.0)]


def test_panels_hold_lines_and_roofs() -> None:
    small, large = plot.panels(sweep())
    assert (small.dimensions, large.dimensions) == (128, 384)
    assert set(small.lines) == {"CALIBER (avx2)", "faiss"}
    assert [rows for rows, _ in small.lines["faiss"]] == [1_000, 10_000, 100_000]
    assert dict(small.roofs[plot.CODES])[1_000] == pytest.approx(3e-6)
    assert dict(small.roofs[plot.F32])[1_000] == pytest.approx(20e-6)


def test_nothing_to_draw_writes_nothing(tmp_path: Path) -> None:
    assert not plot.draw([timed("t", OURS, "avx2", 1.0)], tmp_path / "no.png")
    assert not list(tmp_path.iterdir())


def test_drawing_is_a_small_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="installed by make bench")
    path = tmp_path / "new" / "search.png"
    assert plot.draw(sweep(), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert len(data) < 200_000


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_plain_read_reads_every_word() -> None:
    words = np.random.default_rng(1).integers(0, 2**63, 8 * 1001 + 5).astype(np.uint64)
    expected = int(words[: 8 * 1001].sum())
    for ahead in reading.AHEAD_BYTES.values():
        assert reading.sum_of_words(words, ahead) == expected
    assert {item.bytes_read for item in reading.plain_reads(words)} == {words.nbytes}


# --- the command --------------------------------------------------------------------------------


def test_command_outside_of_a_checkout_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PACKAGE", tmp_path / "site-packages" / "caliber")
    result = caliber("bench", code=2)
    assert "from a checkout" in result.stderr
    assert "make bench" in result.stderr


@pytest.mark.parametrize("word", ["nonsense", "uuid7 or rank", ""])
def test_unknown_group_lists_what_there_is(word: str) -> None:
    result = caliber("bench", "--group", word, code=2)
    assert "rank_and_fill" in result.stderr


def test_a_group_runs_from_beginning_to_end(tmp_path: Path) -> None:
    """Another process, from another folder: one document, with answers compared and a goal judged."""
    done = subprocess.run(
        command("bench", "--group", "rank", "--quick", "--json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    out = json.loads(done.stdout)
    assert out["ok"]
    assert out["quick"]
    (row,) = [row for row in out["table"] if "10,000" in row["task"]]
    assert row["peer_name"] == "Python sort + loop"
    assert row["goal"] == ">= 50x"
    assert row["ratio"] > 1
    kinds = {item["kind"] for item in out["measurements"] if item["task"] == row["task"]}
    assert kinds == {OURS, TWIN, PEER}
