"""Variants of the configuration that windows are assembled under: parts switched on one by one.

A variant is a name and the knobs that it changes. Those that no configuration has are named and left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caliber.config import CaliberConfig
from caliber.config.nested import value_at
from retrieval.ablation import Overrides
from retrieval.windows import TASKS, Asked

RECALL_OFF: Overrides = {"recall.limit": 0}

OFF: Overrides = {
    **RECALL_OFF,
    "recall.length_weight": 0.0,
    "assembly.section_shares": {},
}
"""What leaves a window of the conversation, notes and artifacts alone, none with a floor or a cap."""

STEPS: Sequence[tuple[str, Sequence[str]]] = (
    ("recall off", ()),
    ("+ recall: what a search finds", tuple(RECALL_OFF)),
    ("+ length counts", ("recall.length_weight",)),
    ("+ shares: the profile", ("assembly.section_shares",)),
)
"""Each step gives knobs back the value they have in the profile."""


@dataclass(frozen=True)
class Variant:
    """A configuration to measure: the knobs that differ from the profile."""

    name: str
    knobs: Overrides = field(default_factory=dict)

    def missing(self, config: CaliberConfig) -> list[str]:
        """Return the knobs that a configuration does not have."""
        data = config.to_mapping()
        return [path for path in self.knobs if value_at(data, path) is None]


def switched_on() -> Iterator[Variant]:
    """Yield the profile with parts switched off, one fewer at each step."""
    off = dict(OFF)
    for name, knobs in STEPS:
        for knob in knobs:
            off.pop(knob, None)
        yield Variant(name, dict(off))


def read_variants(file: Path) -> list[Variant]:
    """Return the variants of a JSON file: an object of names, each with an object of knobs."""
    return [Variant(name, knobs) for name, knobs in json.loads(file.read_text(encoding="utf-8")).items()]


@dataclass(frozen=True)
class Chosen:
    """Leave-one-out: for each conversation the variant that is best on the others, and what it gives there."""

    names: Mapping[str, str]
    asked: Sequence[Asked]


def choose(tried: Mapping[str, Sequence[Asked]]) -> Chosen | None:
    """Choose among variants by the mean evidence held in windows, all budgets and tasks alike; ties by order.

    None for fewer than two conversations.
    """
    shares: dict[str, dict[str, list[float]]] = {}
    for name, asked in tried.items():
        for item in asked:
            if item.where in TASKS:
                shares.setdefault(item.group, {}).setdefault(name, []).append(item.window.share)
    if len(shares) < 2:
        return None
    names: dict[str, str] = {}
    for group in shares:
        others = [values for other, values in shares.items() if other != group]

        def mean(name: str, others: Sequence[Mapping[str, list[float]]] = others) -> float:
            values = [share for one in others for share in one[name]]
            return sum(values) / len(values)

        names[group] = max(tried, key=mean)
    return Chosen(names, [item for group, name in names.items() for item in tried[name] if item.group == group])
