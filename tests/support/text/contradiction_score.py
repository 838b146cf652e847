"""Score of the rules for contradictions: ``python tests/support/text/contradiction_score.py FILE``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caliber.text.contradictions import contradicts

OPEN = Path(__file__).parents[2] / "data" / "contradictions" / "open.json"


@dataclass(frozen=True)
class Score:
    """Counts of verdicts over pairs, and the pairs that were judged wrongly."""

    found: int
    false: int
    missed: int
    wrong: list[dict[str, Any]]

    @property
    def precision(self) -> float:
        return self.found / (self.found + self.false) if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.found / (self.found + self.missed) if self.found else 0.0


def score(pairs: list[dict[str, Any]]) -> Score:
    """Judge every pair, in both orders; a contradiction counts as found if either order finds it."""
    found = false = missed = 0
    wrong = []
    for pair in pairs:
        verdict = contradicts(pair["first"], pair["second"], pair["subject"])
        turned = contradicts(pair["second"], pair["first"], pair["subject"])
        assert (verdict is None) == (turned is None), pair["pair"]
        if pair["contradiction"]:
            found += verdict is not None
            missed += verdict is None
        else:
            false += verdict is not None
        if pair["contradiction"] != (verdict is not None):
            wrong.append({**pair, "verdict": None if verdict is None else f"{verdict.kind}: {verdict.reason}"})
    return Score(found, false, missed, wrong)


def main(file: str | None = None, show: str = "") -> None:
    pairs = json.loads(Path(file or OPEN).read_text(encoding="utf-8"))
    result = score(pairs)
    print(f"{len(pairs)} pairs: precision {result.precision:.3f}, recall {result.recall:.3f}")
    print(f"found {result.found}, false alarms {result.false}, missed {result.missed}")
    if show:
        for pair in result.wrong:
            print(json.dumps(pair, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
