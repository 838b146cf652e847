"""Recall of evidence in long conversations, asked of a real store: ``python bench/locomo.py --data DIR``.

DIR holds conversations of LoCoMo (snap-research/locomo, CC BY-NC 4.0), which this repository does not. Every turn is
stored through the public API, every question asked with ``Caliber.search``; nothing is read past it. What the figures
mean, and what they came to, stands in docs/search.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from retrieval import ablation, tuning
from retrieval.asking import SPACES, Asked, Stores, ask_baseline
from retrieval.conversations import BadData, Conversation, load_all
from retrieval.measures import AVERAGE_PRECISION, HIT_10, MEASURES, RECALL_10, Scored, bootstrap
from retrieval.report import markdown

HEADLINE = ("recall@5", "recall@10", "recall@20", "hit@10", MEASURES[AVERAGE_PRECISION])
BASELINE = "BM25 + neighbours"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables for people or one JSON document, return the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        conversations = load_all(asked.data)
        if asked.tune and len(conversations) < 2:
            raise BadData(f"{asked.data} holds one conversation: leaving one out needs two at least")
    except BadData as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="caliber-locomo-") as folder:
        document = report(conversations, Path(folder), asked)
    print(json.dumps(document, indent=2, ensure_ascii=False) if asked.json else as_text(document))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Recall of evidence in long conversations.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of LoCoMo's conversations")
    parser.add_argument("--space", choices=list(SPACES), default="static", help="what embeds  [default: static]")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="change the profile")
    parser.add_argument("--ablation", action="store_true", help="parts of search switched on, and off, one by one")
    parser.add_argument("--tune", action="store_true", help="leave-one-out: choose on the others, measure on one")
    parser.add_argument("--draws", type=int, default=tuning.DRAWS, help="points of the grid to try  [default: 240]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def report(conversations: Sequence[Conversation], folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Return everything that was asked for."""
    changed = dict(knob(text) for text in asked.set)
    written = {name: value for name, value in changed.items() if name == "search.mode"}  # the database's own full text
    stores = Stores(conversations, folder, asked.space, create_with=written)
    baseline = ask_baseline(conversations)
    ours = stores.ask(changed)
    document: dict[str, Any] = {
        "space": asked.space,
        "changed": changed,
        "turns": sum(len(item.turns) for item in conversations),
        "questions": sum(len(item.questions) for item in conversations),
        "baseline": {"label": BASELINE, **summary(baseline)},
        "ours": {**summary(ours.scored), **_against(ours.scored, baseline)},
        "categories": by_category(ours.scored, conversations),
        "latency": latency(ours, stores),
        "degraded": ours.degraded,
    }
    if asked.ablation:
        document["switched_on"] = rows_of(ablation.switched_on(), changed, stores)
        document["taken_away"] = rows_of(ablation.taken_away(), changed, stores)
    if asked.tune:
        passed = _progress(asked.draws)
        tried = tuning.draws(asked.draws)
        tuned = tuning.leave_one_out(
            tried, lambda overrides: passed(stores.ask({**changed, **overrides}, warm=False).scored)
        )
        document["tuned"] = {
            **summary(tuned.held_out),
            **_against(tuned.held_out, baseline),
            "chosen_without": tuned.chosen,
            "spread": tuned.spread(),
            "tried": [
                {"knobs": knobs, "recall@10": recall} for knobs, recall in zip(tried, tuned.recalls, strict=True)
            ],
        }
    return document


def knob(text: str) -> tuple[str, Any]:
    """Return a knob and its value from ``KNOB=VALUE``; the value is JSON, or text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SystemExit(f"error: --set {text}: expected KNOB=VALUE, for example search.keyword.k1=1.2")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _progress(total: int) -> Callable[[Scored], Scored]:
    done = 0

    def passed(scored: Scored) -> Scored:
        nonlocal done
        done += 1
        if sys.stderr.isatty() or done % 20 == 0 or done == total:
            print(f"\r{done} of {total}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
        return scored

    return passed


def rows_of(
    steps: Iterable[tuple[str, ablation.Overrides]], changed: ablation.Overrides, stores: Stores
) -> list[dict[str, Any]]:
    """Return the hits of search at each step, as a row of a table."""
    return [{"label": label, **summary(stores.ask({**changed, **overrides}).scored)} for label, overrides in steps]


def summary(scored: Scored) -> dict[str, Any]:
    """Return every measure pooled, recall@10 by conversation, and how sure recall@10 is."""
    interval = bootstrap(scored.pooled[:, RECALL_10])
    return {
        **{name: scored.mean(name) for name in MEASURES},
        "recall@10 by conversation": {
            name: float(values[:, RECALL_10].mean()) for name, values in scored.by_conversation.items()
        },
        "recall@10 interval": [interval.low, interval.high],
    }


def _against(ours: Scored, baseline: Scored) -> dict[str, Any]:
    gain = bootstrap(ours.pooled[:, RECALL_10] - baseline.pooled[:, RECALL_10])
    return {"gain": {"recall@10": gain.mean, "interval": [gain.low, gain.high]}}


def by_category(scored: Scored, conversations: Sequence[Conversation]) -> dict[str, dict[str, float]]:
    """Return recall@10 and hit rate of each category of questions."""
    categories = np.array([question.category for item in conversations for question in item.questions])
    pooled = scored.pooled
    return {
        str(category): {
            "questions": int((categories == category).sum()),
            "recall@10": float(pooled[categories == category, RECALL_10].mean()),
            "hit@10": float(pooled[categories == category, HIT_10].mean()),
        }
        for category in sorted(set(categories.tolist()))
    }


def latency(asked: Asked, stores: Stores) -> dict[str, float]:
    """Return milliseconds of a search with the question's vector known, and of making that vector."""
    out = {f"search p{percent}": float(np.percentile(asked.seconds, percent) * 1e3) for percent in (50, 99)}
    if stores.provider is not None:
        out["embedding a text p50"] = float(np.median(stores.provider.seconds) * 1e3)
    return out


def as_text(document: dict[str, Any]) -> str:
    """Return the document as Markdown."""
    names = list(document["ours"]["recall@10 by conversation"])
    head = ["", *HEADLINE, *(f"recall@10 of {name}" for name in names)]
    lines = [
        f"{document['questions']} questions, {document['turns']:,} turns, space {document['space']}"
        + (f", changed: {document['changed']}" if document["changed"] else ""),
        "",
    ]
    rows = [_row(document["baseline"]["label"], document["baseline"]), _row("search", document["ours"])]
    if "tuned" in document:
        rows.append(_row("search, tuned on the others", document["tuned"]))
    lines += markdown(head, rows)
    lines += ["", f"recall@10 of search {_sure(document['ours'])}"]
    if "tuned" in document:
        tuned = document["tuned"]
        lines.append(f"recall@10 leave-one-out {_sure(tuned)}")
        spread = ", ".join(f"{name} {value:.3f}" for name, value in tuned["spread"].items())
        lines.append(f"recall@10 over the grid: {spread}")
        chosen = tuned["chosen_without"].items()
        lines += [f"chosen without {name}: {knobs}" for name, knobs in chosen]
    lines.append("latency: " + ", ".join(f"{name} {value:.3f} ms" for name, value in document["latency"].items()))
    if document["degraded"]:
        lines.append(f"degraded: {', '.join(document['degraded'])}")
    categories = [
        [name, str(item["questions"]), f"{item['recall@10']:.3f}", f"{item['hit@10']:.3f}"]
        for name, item in document["categories"].items()
    ]
    lines += ["", *markdown(["category", "questions", "recall@10", "hit@10"], categories)]
    for title, key in (("switched on one by one", "switched_on"), ("taken away from the whole", "taken_away")):
        if key in document:
            lines += ["", *markdown([title, *head[1:]], [_row(row["label"], row) for row in document[key]])]
    return "\n".join(lines)


def _row(label: str, figures: dict[str, Any]) -> list[str]:
    values = [figures[name] for name in HEADLINE] + list(figures["recall@10 by conversation"].values())
    return [label, *(f"{value:.3f}" for value in values)]


def _sure(figures: dict[str, Any]) -> str:
    low, high = figures["recall@10 interval"]
    gain = figures["gain"]
    return (
        f"{figures['recall@10']:.3f} [{low:.3f}, {high:.3f}]; gain over {BASELINE} {gain['recall@10']:+.3f} "
        f"[{gain['interval'][0]:+.3f}, {gain['interval'][1]:+.3f}]"
    )


if __name__ == "__main__":
    sys.exit(main())
