"""Benchmark of the search floor, its omissions and its cost: ``python bench/floor.py --data DIR``.

Every conversation in DIR (LoCoMo's, see bench/locomo.py) is asked its own questions, those of the others, and queries
that no conversation answers; with the floor and without it. Figures: docs/search.md, "The floor".
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from locomo import _knob, _table
from retrieval.asking import SPACES, Stores
from retrieval.conversations import BadData, Conversation, load_all, without_names
from retrieval.measures import DEPTH, MEASURES, RECALL_10, measure
from retrieval.unanswerable import EVERYDAY, GIBBERISH, TALK

OFF: Mapping[str, Any] = {"search.floor.words": 0.0}
CHATTER = (1, 2)
"""Turns of other conversations before a question, which make a long message of it."""
WIDE = 200
SEED = 7


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table for people or one JSON document, return the exit code."""
    parser = argparse.ArgumentParser(description="What the floor of search leaves out, and what it costs.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of LoCoMo's conversations")
    parser.add_argument("--space", choices=list(SPACES), default="static", help="what embeds  [default: static]")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", help="change the profile")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args(arguments)
    try:
        conversations = load_all(asked.data)
    except BadData as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    changed = dict(_knob(text) for text in asked.set)
    with tempfile.TemporaryDirectory(prefix="caliber-floor-") as folder:
        rows = report(conversations, Path(folder), asked.space, changed)
    print(json.dumps(rows, indent=2) if asked.json else as_text(rows))
    return 0


def report(
    conversations: Sequence[Conversation], folder: Path, space: str, changed: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each set of queries, asked of turns with and without names."""
    rows = []
    for named, items in ((True, list(conversations)), (False, without_names(conversations))):
        stores = Stores(items, folder, space)
        answered = [(label, stores.ask({**changed, **floor}).scored) for label, floor in (("on", {}), ("off", OFF))]
        recalls = {label: scored.mean(MEASURES[RECALL_10]) for label, scored in answered}
        for name, queries in _sets(items).items():
            rows.append({"set": name, "names": named, **_outcome(stores, queries, changed)})
            if name == "own questions":
                rows[-1].update({f"recall@10, floor {label}": value for label, value in recalls.items()})
        rows.extend(_long(stores, items, changed, named))
    return rows


def _sets(items: Sequence[Conversation]) -> dict[str, dict[str, list[str]]]:
    """Return sets of queries, each by the conversation that is asked."""

    def own(item: Conversation) -> list[str]:
        return [question.text for question in item.questions]

    sets: dict[str, dict[str, list[str]]] = {
        "own questions": {item.name: own(item) for item in items},
        "questions of other conversations": {
            item.name: [text for other in items if other is not item for text in own(other)] for item in items
        },
    }
    for name, texts in (("everyday questions", EVERYDAY), ("gibberish", GIBBERISH), ("talk", TALK)):
        sets[name] = {item.name: list(texts) for item in items}
    return {name: queries for name, queries in sets.items() if any(queries.values())}


def _outcome(stores: Stores, queries: Mapping[str, Sequence[str]], changed: Mapping[str, Any]) -> dict[str, Any]:
    empty, ten, wide = [], [], []
    for kept in stores.kept:
        asked = queries[kept.conversation.name]
        with stores.open(kept.path, changed) as memory:
            for found in memory.search_many(asked, kinds=("turn",), limit=WIDE) if asked else ():
                empty.append(not found.hits)
                ten.append(min(len(found.hits), 10))
                wide.append(len(found.hits))
    return {
        "queries": len(empty),
        "empty": float(np.mean(empty)),
        "hits of 10": float(np.mean(ten)),
        f"hits of {WIDE}": float(np.mean(wide)),
    }


def _long(
    stores: Stores, items: Sequence[Conversation], changed: Mapping[str, Any], named: bool
) -> list[dict[str, Any]]:
    """Return rows of long messages: a question of the conversation's own behind turns of the others."""
    chosen = random.Random(SEED)
    rows = []
    for count in CHATTER if len(items) > 1 else ():
        measured: dict[str, list[float]] = {"on": [], "off": []}
        empty = []
        for kept, item in zip(stores.kept, items, strict=True):
            others = [turn.text for other in items if other is not item for turn in other.turns]
            texts = [" ".join([*chosen.sample(others, count), question.text]) for question in item.questions]
            for label, floor in (("on", {}), ("off", OFF)):
                with stores.open(kept.path, {**changed, **floor}) as memory:
                    answers = memory.search_many(texts, kinds=("turn",), limit=DEPTH)
                for found, question in zip(answers, item.questions, strict=True):
                    names = [kept.names[str(hit.id)] for hit in found.hits]
                    measured[label].append(measure(names, question.evidence)[RECALL_10])
                    if label == "on":
                        empty.append(not found.hits)
        recalls = {f"recall@10, floor {label}": float(np.mean(values)) for label, values in measured.items()}
        label = f"own questions behind {count} turns of others"
        rows.append({"set": label, "names": named, "queries": len(empty), "empty": float(np.mean(empty)), **recalls})
    return rows


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return "\n".join(_table(names, [[_shown(row.get(name)) for name in names] for row in rows]))


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "kept" if value else "removed"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
