"""Evidence held by assembled windows in long conversations: ``python bench/windows.py --data DIR``.

DIR holds conversations of LoCoMo, as for bench/locomo.py; CALIBER_LOCOMO names it where the option does not. Each
question is asked as the last user turn of a new task of the same owner, and of the task that holds the conversation,
whose last scope is open. Beside the windows stand "search and fill" (the turns of ``search(kinds=["turn"])`` as
``name: text``, in order, until the first that does not fit), the same with the day, and the newest turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from locomo import knob
from retrieval.asking import SPACES, Stores
from retrieval.conversations import BadData, load_all
from retrieval.measures import bootstrap
from retrieval.report import markdown
from retrieval.variants import Variant, choose, read_variants, switched_on
from retrieval.windows import (
    BUDGETS,
    FILLED,
    SEARCH_AND_FILL,
    TASKS,
    Asked,
    ask_windows,
    by_place_and_budget,
)

from caliber.cli.evaluating.windows import figures_of
from caliber.config import CaliberConfig
from caliber.config.profiles import PROFILES


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table for people or one JSON document, return the exit code."""
    asked = _parser().parse_args(arguments)
    began = time.perf_counter()
    try:
        conversations = load_all(asked.data)
    except BadData as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    changed = dict(knob(text) for text in asked.set)
    held_out = None if asked.held_out is None else _held_out(asked.held_out)
    with tempfile.TemporaryDirectory(prefix="caliber-windows-") as folder:
        stores = Stores(
            conversations, Path(folder), asked.space, profile=asked.profile, leave_open=True, create_with=changed
        )

        def measured(knobs: Mapping[str, Any], where: Sequence[str], why: bool) -> list[Asked]:
            overrides = {**changed, **knobs}
            return ask_windows(
                stores, overrides, asked.budgets, where, held_out=held_out, as_query=asked.as_query, why=why
            )

        results = measured({}, (*FILLED, *asked.tasks), not asked.no_why)
        document = {
            "space": asked.space,
            "profile": asked.profile,
            "changed": changed,
            "held out": held_out,
            "questions": sum(len(item.questions) for item in conversations),
            "budgets": asked.budgets,
            "rows": rows_of(results),
        }
        variants = _variants(asked)
        if variants:
            config = stores.configuration(stores.kept[0].path, changed)
            document |= _compared(variants, config, results, lambda knobs: measured(knobs, asked.tasks, False))
    document["seconds"] = time.perf_counter() - began
    if asked.out is not None:
        text = json.dumps({**document, "asked": [_plain(item) for item in results]}, indent=1, ensure_ascii=False)
        asked.out.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(document, indent=2, ensure_ascii=False) if asked.json else as_text(document))
    return 0


def _variants(asked: argparse.Namespace) -> list[Variant]:
    named = [] if asked.variants is None else read_variants(asked.variants)
    return [*(switched_on() if asked.parts else ()), *named]


def _compared(
    variants: Sequence[Variant],
    config: CaliberConfig,
    results: Sequence[Asked],
    ask: Callable[[Mapping[str, Any]], list[Asked]],
) -> dict[str, Any]:
    """Return the evidence in windows under each variant, and under those chosen without looking at a conversation."""
    filled = [item for item in results if item.where == SEARCH_AND_FILL]
    left_out = {variant.name: missing for variant in variants if (missing := variant.missing(config))}
    tried = {variant.name: ask(variant.knobs) for variant in variants if variant.name not in left_out}
    document: dict[str, Any] = {
        "variants": {name: _windows([*filled, *asked]) for name, asked in tried.items()},
        "left_out": left_out,
    }
    chosen = choose(tried)
    if chosen is not None:
        document["chosen"] = {"without": dict(chosen.names), "rows": _windows([*filled, *chosen.asked])}
    return document


def _windows(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    return [row for row in rows_of(asked) if row["where"] in TASKS]


def _parser() -> argparse.ArgumentParser:
    data = os.environ.get("CALIBER_LOCOMO")
    parser = argparse.ArgumentParser(description="Evidence held by windows in long conversations.")
    parser.add_argument(
        "--data", type=Path, required=data is None, default=data and Path(data), metavar="DIR",
        help="folder of LoCoMo's conversations  [default: CALIBER_LOCOMO]",
    )  # fmt: skip
    parser.add_argument("--space", choices=list(SPACES), default="static", help="what embeds  [default: static]")
    parser.add_argument("--profile", choices=list(PROFILES), default="reference", help="[default: reference]")
    parser.add_argument("--budgets", type=_budgets, default=list(BUDGETS), metavar="N,N", help="[default: 500 to 8000]")
    parser.add_argument("--tasks", type=_tasks, default=list(TASKS), metavar="new,same", help="[default: both]")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="change the profile")
    parser.add_argument(
        "--held-out", type=Path, metavar="FILE",
        help="search constants by conversation: the JSON that bench/locomo.py --tune --json printed",
    )  # fmt: skip
    parser.add_argument("--parts", action="store_true", help="also with parts switched on one by one")
    parser.add_argument(
        "--variants", type=Path, metavar="FILE",
        help='also under other knobs: a JSON object such as {"short": {"recall.limit": 50}}',
    )  # fmt: skip
    parser.add_argument("--as-query", action="store_true", help="pass the question as query= too")
    parser.add_argument("--no-why", action="store_true", help="do not ask which step lost what is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there, with every question")
    return parser


def _budgets(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _tasks(text: str) -> list[str]:
    names = {place.split()[0]: place for place in TASKS}
    return [names[part] for part in text.split(",")]


def _held_out(file: Path) -> dict[str, Any]:
    chosen: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["tuned"]["chosen_without"]
    return chosen


def _plain(item: Asked) -> dict[str, Any]:
    window = item.window
    return {
        "conversation": item.group, "place": item.place, "question": item.query, "where": item.where,
        "budget": window.budget, "evidence": {one.label: one.rank for one in item.wanted},
        "held": sorted(window.held), "evidence_tokens": window.evidence_tokens, "used_tokens": window.used_tokens,
        "lost": {name: [lost.code, lost.why] for name, lost in window.lost.items()},
    }  # fmt: skip


def rows_of(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Return one row a place: evidence held by budget, with what it cost and where the rest was lost."""
    grouped = by_place_and_budget(asked)
    filled = grouped.get(SEARCH_AND_FILL, {})
    return [
        {"where": where, "budgets": {str(budget): _cell(items, filled.get(budget)) for budget, items in cells.items()}}
        for where, cells in grouped.items()
    ]


def _cell(items: Sequence[Asked], filled: Sequence[Asked] | None) -> dict[str, Any]:
    shares: dict[str, list[float]] = {}
    for item in items:
        shares.setdefault(item.group, []).append(item.window.share)
    out = figures_of([item.window for item in items])
    out["by conversation"] = {name: float(np.mean(values)) for name, values in shares.items()}
    if filled is not None:
        gains = [one.window.share - other.window.share for one, other in zip(items, filled, strict=True)]
        gain = bootstrap(np.array(gains))
        out["over search and fill"] = [gain.mean, gain.low, gain.high]
    seconds = [item.window.seconds for item in items if item.window.seconds]
    if seconds:
        out["p50 ms"] = float(np.median(seconds) * 1e3)
    return out


def as_text(document: Mapping[str, Any]) -> str:
    """Return the document as Markdown."""
    budgets = [str(budget) for budget in document["budgets"]]
    rows: list[dict[str, Any]] = document["rows"]
    lines = [
        f"{document['questions']} questions, space {document['space']}, profile {document['profile']}"
        + (f", changed: {document['changed']}" if document["changed"] else "")
        + (", search constants held out" if document["held out"] else "")
        + f"; {document['seconds']:.0f} s",
        "",
    ]
    figures = [("evidence held", "held", "{:.3f}"), ("all of it held", "all_held", "{:.3f}")]
    figures += [("tokens used", "used_tokens", "{:,.0f}"), ("of them evidence", "evidence_tokens", "{:,.0f}")]
    for title, key, form in figures:
        body = [[row["where"], *(form.format(row["budgets"][b][key]) for b in budgets)] for row in rows]
        lines += [*markdown([title, *budgets], body), ""]
    windows = [row for row in rows if any(cell["lost"] for cell in row["budgets"].values())]
    for row in windows:
        steps = list(dict.fromkeys(step for b in budgets for step in row["budgets"][b]["lost"]))
        body = [[step, *(str(row["budgets"][b]["lost"].get(step, 0)) for b in budgets)] for step in steps]
        lines += [*markdown([f"turns lost, {row['where']}", *budgets], body), ""]
    for row in rows:
        if row["where"] in TASKS:
            name, cells = row["where"], row["budgets"]
            parts = ", ".join(f"{n} {v:.3f}" for n, v in cells[budgets[-1]]["by conversation"].items())
            lines.append(f"{name}: p50 {cells[budgets[-1]]['p50 ms']:.2f} ms at {budgets[-1]}; by conversation {parts}")
    if document.get("variants"):
        lines += ["", *markdown(["evidence held, windows", "", *budgets], _variant_rows(document, budgets))]
    for name, missing in document.get("left_out", {}).items():
        lines.append(f"left out, for want of {', '.join(missing)}: {name}")
    if "chosen" in document:
        without = document["chosen"]["without"]
        lines.append("chosen on the others: " + ", ".join(f"{name}: {chosen}" for name, chosen in without.items()))
    return "\n".join(lines)


def _variant_rows(document: Mapping[str, Any], budgets: Sequence[str]) -> list[list[str]]:
    listed = dict(document["variants"])
    if "chosen" in document:
        listed["the one chosen on the others"] = document["chosen"]["rows"]
    return [
        [name, row["where"], *(f"{row['budgets'][budget]['held']:.3f}" for budget in budgets)]
        for name, rows in listed.items()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
