"""A writing program beside an adversary: signals, forks, a network that falls silent, damage, interrupts.

A run of each kind for each database in ``make prove``; 200 runs in ``make soak``, recorded in ``docs/evidence/``.
Source: design section 10.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crash.adversary import DSN, KINDS, Outcome, Run, drawn, order_of, verdict
from support.evidence import record, scale, seed
from support.folders import open_folder
from support.local_server import LocalServer

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 600),
]
GIVEN_UP_AFTER = 8
"""So many runs with faults show enough."""
RUNS = scale(sum(map(len, KINDS.values())) // 2, 200)
"""Each kind comes up as often at full scale; in a small run the seed draws half of them for each database."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with open_folder() as folder:
        settings = {"max_connections": 200}
        with LocalServer.start(folder / "server", fsync=False, settings=settings) as started:
            os.environ[DSN] = started.dsn
            yield started
            del os.environ[DSN]


def test_nothing_hangs_is_lost_or_doubled_beside_an_adversary(server: LocalServer, tmp_path: Path) -> None:
    began = time.monotonic()
    print(f"seed {seed()}")
    total: Counter[str] = Counter()
    failed: list[str] = []
    for order in drawn(RUNS, seed(), tmp_path):
        run = Run(order, server.dsn if order["adapter"] == "postgres" else None)
        outcome = run.result()
        run.discard()
        faults = verdict(outcome)
        if faults:
            failed.append(f"run {order['number']} of seed {seed()}: {order}\n" + "\n".join(faults[:10]))
            print(failed[-1], flush=True)
        assert len(failed) < GIVEN_UP_AFTER, "\n\n".join(failed)
        total[f"{order['kind']} on {order['adapter']}"] += 1
        total[order["durability"]] += 1
        total["acknowledged"] += outcome.count("ok")
        total["unanswered"] += outcome.count("try") - outcome.count("ok") - outcome.count("refused")
        total["refused"] += outcome.count("refused")
        for entry in outcome.entries:
            total.update(entry.get("figures", {}))
    assert not failed, "\n\n".join(failed)
    assert total["acknowledged"] > RUNS, "nobody got to write"
    record(
        "adversary",
        "A writing program beside an adversary",
        {
            "seed": seed(),
            "runs": RUNS,
            **{
                f"{kind}, on {adapter}": total[f"{kind} on {adapter}"]
                for adapter, kinds in KINDS.items()
                for kind in kinds
            },
            "runs at durability commit": total["commit"],
            "runs at durability group": total["group"],
            "acknowledged writes, each found once afterwards": total["acknowledged"],
            "writes that were interrupted or whose outcome was unknown, each found once at most": total["unanswered"],
            "writes that were refused with a typed error, none found unless tried again": total["refused"],
            "reads beside them": total["reads"],
            "signals sent": total["signals"],
            "exceptions that handlers raised": total["exceptions of handlers"],
            "children forked, which opened the store": total["children"],
            "of them killed": total["children killed"],
            "times that the network fell silent": total["silences"],
            "of them for ever": total["silent for ever"],
            "copies of stores that were damaged": total["damages"],
            "calls on a damaged store": total["calls on a damaged store"],
            "interrupts at a line": total["interrupts"],
            "comparisons of memory with the store": total["memory compared with the store"],
            "hangs, raw errors, lost or doubled writes": 0,
            "seconds": round(time.monotonic() - began),
        },
    )  # fmt: skip


def planted(tmp_path: Path, number: int, *faults: str) -> list[str]:
    order = order_of(number, seed(), "sqlite", "nothing", tmp_path, 0.1)
    return verdict(Run({**order, "plant": faults}).result())


def test_planted_faults_are_found(tmp_path: Path) -> None:
    found = planted(tmp_path, 0, "lost", "doubled", "raw")
    assert [fault.partition(":")[0] for fault in found] == ["raw", "lost", "doubled"], found
    assert "KeyError: 'planted'" in found[0]


def test_a_planted_hang_is_found_with_what_its_threads_do(tmp_path: Path) -> None:
    found = planted(tmp_path, 0, "hang")
    assert {fault.partition(":")[0] for fault in found} == {"hang"}, found
    assert "in nothing" in found[0]


def outcome(entries: list[dict[str, Any]], stored: dict[str, int], code: int | None = 0) -> Outcome:
    return Outcome({}, [*entries, {"end": True}], code, stored=Counter(stored))


WRITTEN = [{"try": "a"}, {"ok": "a"}]
VERDICTS: dict[str, tuple[Outcome, list[str]]] = {
    "sound": (outcome(WRITTEN, {"a": 1}), []),
    "sound: interrupted, and not stored": (outcome([{"try": "a"}], {}), []),
    "sound: interrupted, and stored": (outcome([{"try": "a"}], {"a": 1}), []),
    "sound: refused, and done again": (outcome([{"try": "a"}, {"refused": "a"}, *WRITTEN], {"a": 1}), []),
    "sound: interrupted, then refused": (outcome([{"try": "a"}, {"try": "a"}, {"refused": "a"}], {"a": 1}), []),
    "lost": (outcome(WRITTEN, {}), ["lost"]),
    "doubled": (outcome(WRITTEN, {"a": 2}), ["doubled"]),
    "doubled, never acknowledged": (outcome([{"try": "a"}], {"a": 2}), ["doubled"]),
    "refused, and stored": (outcome([{"try": "a"}, {"refused": "a"}], {"a": 1}), ["refused"]),
    "from nowhere": (outcome([], {"a": 1}), ["unknown"]),
    "hang": (outcome(WRITTEN, {"a": 1}, None), ["hang"]),
    "hang, told by the program": (Outcome({}, [*WRITTEN, {"hang": "w1"}], 0, stored=Counter(a=1)), ["hang"]),
    "hang of a thread": (outcome([*WRITTEN, {"hang": "w1"}], {"a": 1}), ["hang"]),
    "raw": (outcome([*WRITTEN, {"raw": "w1"}], {"a": 1}), ["raw"]),
    "late": (outcome([*WRITTEN, {"late": "note"}], {"a": 1}), ["late"]),
    "died": (outcome(WRITTEN, {"a": 1}, -11), ["the program ended with code -11"]),
    "silent end": (Outcome({}, WRITTEN, 0, stored=Counter(a=1)), ["the program did not say that it had ended"]),
    "damaged": (Outcome({}, [{"end": True}], 0, findings=["check: turn 1"]), ["check"]),
}


@pytest.mark.parametrize(("made", "expected"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdicts(made: Outcome, expected: list[str]) -> None:
    assert [fault.partition(":")[0] for fault in verdict(made)] == expected
