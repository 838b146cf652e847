"""From measurements to one table and one JSON document, whose fields bench/README.md lists."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.contest import ASIDE, OURS, PEER, READ, TWIN, WALL

FORMAT = 1
HEADINGS = ("task", "ours", "best peer", "ratio", "goal", "", "of a plain read")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True)
class Measurement:
    """The rounds of one implementation of a task, summed up. Seconds and bytes are those of one call."""

    task: str
    kind: str
    name: str
    median_s: float
    iqr_s: float
    rounds: int
    iterations: int
    clock: str = WALL
    goal: float | None = None
    at_most: float | None = None
    at_most_s: float | None = None
    bytes_read: int | None = None
    recall: float | None = None
    note: str | None = None
    rows: int | None = None
    dimensions: int | None = None

    @property
    def gb_s(self) -> float | None:
        """Bytes that had to be read, by the time taken."""
        return None if self.bytes_read is None else self.bytes_read / self.median_s / 1e9


@dataclass(frozen=True)
class Figure:
    """A measured number that is not the time of a call, with what it must reach."""

    task: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """True if it reaches the goal; None without one."""
        if self.at_least is None and self.at_most is None:
            return None
        reached = (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )
        return bool(reached)  # a figure of numpy answers with a bool that JSON has no form for


@dataclass(frozen=True)
class Row:
    """A line of the table: one of ours against the best of those it is compared with, or a figure."""

    task: str
    ours: str
    ours_name: str | None
    peer: str | None
    peer_name: str | None
    ratio: float | None
    ratio_is: str | None  # faster: peer / ours; time: ours / peer
    goal: str | None
    met: bool | None
    gb_s: float | None = None
    of_plain_read: float | None = None
    aside: bool = False


def measurement_of(benchmark: Any) -> Measurement:
    """Return pytest-benchmark's data of one row; ``extra_info`` names the row."""
    info, stats = benchmark.extra_info, benchmark.stats
    label, peer = info.get("label"), info.get("peer")
    kind = info.get("kind") or (PEER if peer is not None else OURS)
    known = ("goal", "at_most", "at_most_s", "bytes_read", "recall", "note", "rows", "dimensions")
    return Measurement(
        task=benchmark.group or benchmark.name,
        kind=kind,
        name=peer if peer is not None else label or "caliber",
        median_s=stats.median,
        iqr_s=stats.iqr,
        rounds=stats.rounds,
        iterations=benchmark.iterations,
        clock=info.get("clock", WALL),
        **{name: info.get(name) for name in known},
    )


def plain_read_gb_s(measurements: Iterable[Measurement], bytes_read: int) -> float | None:
    """Return the speed of the fastest plain read of a buffer of that size, if there was one."""
    reads = [item.gb_s for item in measurements if item.kind == READ and item.bytes_read == bytes_read]
    return max((speed for speed in reads if speed is not None), default=None)


def _rows_of_task(members: Sequence[Measurement]) -> list[Row]:
    def of(kind: str) -> list[Measurement]:
        return sorted((item for item in members if item.kind == kind), key=lambda item: item.median_s)

    ours, peers, asides = of(OURS), of(PEER) or of(TWIN), of(ASIDE)
    wanted = [item for item in ours if item.goal is not None or item.at_most is not None or item.at_most_s is not None]
    shown = wanted or ours[:1]
    out = [_row(item, peers[0] if peers else None, members) for item in shown]
    if len(shown) > 1:
        out = [replace(row, task=f"{row.task} [{row.ours_name}]") for row in out]
    return out + [_aside(shown[0], aside) for aside in asides if shown]


def _row(ours: Measurement, peer: Measurement | None, members: Sequence[Measurement]) -> Row:
    ratio, ratio_is, goal, met = None, None, None, None
    if peer is not None and ours.at_most is not None:
        ratio, ratio_is = ours.median_s / peer.median_s, "time"
        goal, met = f"<= {ours.at_most:g}x", ratio <= ours.at_most
    elif peer is not None:
        ratio, ratio_is = peer.median_s / ours.median_s, "faster"
        if ours.goal is not None:
            goal, met = f">= {ours.goal:g}x", ratio >= ours.goal
    if ours.at_most_s is not None:
        goal, met = f"<= {seconds(ours.at_most_s)}", met is not False and ours.median_s <= ours.at_most_s
    roof = None if ours.bytes_read is None else plain_read_gb_s(members, ours.bytes_read)
    return Row(
        task=ours.task,
        ours=seconds(ours.median_s),
        ours_name=ours.name,
        peer=None if peer is None else seconds(peer.median_s),
        peer_name=None if peer is None else peer.name,
        ratio=ratio,
        ratio_is=ratio_is,
        goal=goal,
        met=met,
        gb_s=ours.gb_s,
        of_plain_read=None if roof is None or ours.gb_s is None else ours.gb_s / roof,
    )


def _aside(ours: Measurement, aside: Measurement) -> Row:
    parts = [] if aside.recall is None else [f"recall {aside.recall:.2f}"]
    parts += [] if aside.note is None else [aside.note]
    return Row(
        task=ours.task,
        ours=seconds(ours.median_s),
        ours_name=ours.name,
        peer=seconds(aside.median_s),
        peer_name=f"{aside.name} ({', '.join(parts)})",
        ratio=aside.median_s / ours.median_s,
        ratio_is="faster",
        goal=None,
        met=None,
        aside=True,
    )


def table(measurements: Sequence[Measurement], figures: Sequence[Figure]) -> list[Row]:
    """Return every line: tasks in the order they were measured, then figures."""
    tasks: dict[str, list[Measurement]] = {}
    for item in measurements:
        tasks.setdefault(item.task, []).append(item)
    out = [row for members in tasks.values() for row in _rows_of_task(members)]
    for item in figures:
        goal = None if item.at_least is None else f">= {item.at_least:g}"
        goal = goal if item.at_most is None else f"<= {item.at_most:g}"
        value = f"{item.value:.4g} {item.unit}".rstrip()
        out.append(Row(item.task, value, None, None, None, None, None, goal, item.met))
    return out


def cells(row: Row) -> tuple[str, ...]:
    """Return a line of the table as text."""
    peer = "" if row.peer is None else f"{row.peer} {row.peer_name}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x {row.ratio_is}"
    met = "" if row.met is None else "met" if row.met else "SHORT"
    read = "" if row.of_plain_read is None else f"{row.of_plain_read:.0%} ({row.gb_s:.3g} GB/s)"
    if row.aside:
        return "  beside it", "", peer, ratio, "", "", ""
    return row.task, row.ours, peer, ratio, row.goal or "", met, read


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table as lines of text, headings first."""
    texts = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in texts) for column in range(len(HEADINGS))]
    return [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(" |") for line in texts
    ]


def seconds(value: float) -> str:
    """Return a time with three digits and the unit that suits it."""
    for size, unit in _UNITS:
        if value >= size or unit == "ns":
            return f"{value / size:.3g} {unit}"
    raise AssertionError(value)


def amount(number: int) -> str:
    """Return a number as task names have it: 200, 10k, 1M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def document(
    measurements: Sequence[Measurement], figures: Sequence[Figure], *, quick: bool, absent: Sequence[str] = ()
) -> dict[str, Any]:
    """Return everything of a run for programs."""
    import caliber
    from caliber.kernels import available_paths

    rows = table(measurements, figures)
    return {
        "format": FORMAT,
        "caliber": caliber.__version__,
        "quick": quick,
        "absent": list(absent),
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "paths": list(available_paths()),
        },
        "goals": {
            "met": sum(row.met is True for row in rows),
            "short": [row.task for row in rows if row.met is False],
        },
        "table": [asdict(row) for row in rows],
        "measurements": [
            asdict(item)
            | {
                "gb_s": item.gb_s,
                "plain_read_gb_s": None
                if item.bytes_read is None
                else plain_read_gb_s([other for other in measurements if other.task == item.task], item.bytes_read),
            }
            for item in measurements
        ],
        "figures": [asdict(item) | {"met": item.met} for item in figures],
    }
