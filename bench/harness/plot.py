"""Search time against the number of rows, a panel for each width of rows, with the roofline drawn in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.contest import ASIDE, OURS, READ, TWIN
from harness.report import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CODES, F32 = "plain read of the codes", "plain read of the f32 rows"
BYTES_F32 = 4
_COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_OURS = "#d62728"
_MARKS = "osD^vP"


@dataclass
class Panel:
    """Points of one width: name -> [(rows, seconds)], by rows."""

    dimensions: int
    ours: str = ""
    lines: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    roofs: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def panels(measurements: Iterable[Measurement]) -> list[Panel]:
    """Return the panels to draw: lines of two sizes and more, of ours only the fastest, twins left out."""
    by_width: dict[int, list[Measurement]] = defaultdict(list)
    for item in measurements:
        if item.rows is not None and item.dimensions is not None and item.kind != TWIN:
            by_width[item.dimensions].append(item)
    return [panel for width in sorted(by_width) if (panel := _panel(width, by_width[width])).lines]


def _panel(dimensions: int, items: Sequence[Measurement]) -> Panel:
    largest = max(item.rows or 0 for item in items)
    fastest = min((item for item in items if item.kind == OURS and item.rows == largest), key=_median, default=None)
    missing = {item.name for item in items if item.kind == ASIDE}
    panel = Panel(dimensions, "" if fastest is None else f"CALIBER ({fastest.name})")
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    roofs: dict[str, dict[int, float]] = {CODES: {}, F32: {}}
    for item in items:
        rows = item.rows or 0
        if item.kind == READ:
            of = roofs[F32 if item.bytes_read == rows * dimensions * BYTES_F32 else CODES]
            of[rows] = min(item.median_s, of.get(rows, item.median_s))
        elif item.kind == OURS:
            if fastest is not None and item.name == fastest.name:
                points[panel.ours].append((rows, item.median_s))
        else:
            points[f"{item.name} (may miss rows)" if item.name in missing else item.name].append((rows, item.median_s))
    panel.lines = {name: sorted(line) for name, line in points.items() if len(line) > 1}
    panel.roofs = {name: sorted(line.items()) for name, line in roofs.items() if len(line) > 1}
    return panel


def _median(item: Measurement) -> float:
    return item.median_s


def draw(measurements: Iterable[Measurement], path: Path) -> bool:
    """Write the picture as PNG; return False, and write nothing, if there is nothing to draw."""
    found = panels(measurements)
    if not found:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(2, len(found))
    down = -(-len(found) // columns)
    figure, axes = pyplot.subplots(
        down, columns, figsize=(4.9 * columns, 3.5 * down + 0.9), sharex=True, sharey=True, squeeze=False
    )
    names = list(dict.fromkeys(name for panel in found for name in panel.lines if name != panel.ours))
    styles = {name: (_COLOURS[at % len(_COLOURS)], _MARKS[at % len(_MARKS)]) for at, name in enumerate(names)}
    for panel, ax in zip(found, axes.flat, strict=False):
        _draw_panel(ax, panel, styles)
    for ax in list(axes.flat)[len(found) :]:
        ax.set_visible(False)
    drawn = [line for panel in found for line in [*panel.lines.values(), *panel.roofs.values()]]
    axes[0, 0].set_ylim(bottom=min(took for line in drawn for _, took in line) / 1.5)  # shared by all panels
    for ax in axes[-1]:
        ax.set_xlabel("rows")
    for ax in axes[:, 0]:
        ax.set_ylabel("one search, median")
    handles: dict[str, Any] = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.suptitle("Top-20 cosine over f32 rows, one thread", fontsize=12)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.tight_layout(rect=(0, 0.16 if down == 1 else 0.09, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return True


def _draw_panel(ax: Axes, panel: Panel, styles: dict[str, tuple[str, str]]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for name, style in ((F32, ":"), (CODES, "--")):
        line = panel.roofs.get(name)
        if line:
            rows, took = zip(*line, strict=True)
            ax.plot(rows, took, style, color="black", linewidth=1.3, label=f"roofline: {name}")
    if CODES in panel.roofs:
        rows, took = zip(*panel.roofs[CODES], strict=True)
        ax.fill_between(rows, took, 1e-9, color="black", alpha=0.06, linewidth=0)
    for name, (colour, mark) in styles.items():
        if name in panel.lines:
            rows, took = zip(*panel.lines[name], strict=True)
            ax.plot(rows, took, color=colour, marker=mark, markersize=4, linewidth=1.2, label=name)
    if panel.ours in panel.lines:
        rows, took = zip(*panel.lines[panel.ours], strict=True)
        ax.plot(rows, took, color=_OURS, marker="o", markersize=5.5, linewidth=2.4, label=panel.ours, zorder=5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_title(f"{panel.dimensions} dimensions", fontsize=10)
    ax.grid(visible=True, which="major", alpha=0.3)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_minor_formatter(NullFormatter())


def _count(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _time(value: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size * 0.999:
            return f"{value / size:g} {unit}"
    return f"{value / 1e-9:g} ns"
