"""Fit the calibrated token estimator, and write its tables for Python and C.

Usage: python tools/fit_tokens.py [--check | --fit | --errors]

Without an option, csrc/tokens/tables.c is written from tools/token_machine.py and the costs of the package; with
--check nothing is written and the exit code is 1 if it differs. --fit finds new costs and writes both files; --errors
prints how far the committed costs are off on documents that no fit has seen: the tables of docs/tokens.md. Those two
count the texts of token_corpus.py with quicktok (extra ``tokens``).

The fit is a least-squares problem in 640 unknowns between 1/128 and 255/256: relative errors of whole documents and of
short spans alike, kinds with few texts weighted up a little, and a pull towards a plain prior so weak that it only
decides where the texts say nothing. It is solved one unknown after the other, in the end over whole 256ths.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]

import token_machine as machine  # noqa: E402

from caliber.kernels.tokens.estimators import UNITS_PER_TOKEN  # noqa: E402
from caliber.kernels.tokens.tokenizer import LONGEST_TOKEN  # noqa: E402

COSTS = ROOT / "caliber" / "kernels" / "tokens" / "costs.py"
TABLES = ROOT / "csrc" / "tokens" / "tables.c"
VOCABULARIES = ("o200k_base", "cl100k_base")
TABLE_NAMES = ("CLASSES", "NEXT", "GROUP", "AGAIN", "REPEATS", "LETTER", "LOWER", "NEXT_HIGH")

FEWEST = 30  # tokens below which an error counts as if of so many
RARITY = 0.25  # exponent by which a kind with few texts weighs more
PULL = 0.01
SWEEPS = 3_000
LOWEST = 1 / LONGEST_TOKEN
HIGHEST = (UNITS_PER_TOKEN - 1) / UNITS_PER_TOKEN


# --- writing ------------------------------------------------------------------------------------


def _lines(values: Sequence[int], each: int = 16, indent: str = "    ") -> Iterator[str]:
    for start in range(0, len(values), each):
        yield indent + ", ".join(f"{value:3d}" for value in values[start : start + each]) + ","


def tables_c(costs: dict[str, bytes]) -> str:
    """Return csrc/tokens/tables.c."""
    out = [
        "/* Made by tools/fit_tokens.py from token_machine.py and costs.py; not edited by hand. */",
        '#include "machine.h"',
    ]
    for name in TABLE_NAMES:
        values = getattr(machine, name)
        out += ["", f"const uint8_t cal_token_{name.lower()}[{len(values)}] = {{", *_lines(values), "};"]
    out += ["", "const uint8_t cal_token_costs[CAL_VOCABULARIES][CAL_TOKENS_COSTS] = {"]
    for vocabulary in VOCABULARIES:
        out += ["    {", f"        /* {vocabulary} */", *_lines(costs[vocabulary], indent="        "), "    },"]
    return "\n".join([*out, "};"]) + "\n"


def costs_py(costs: dict[str, bytes], made_with: str) -> str:
    """Return caliber/kernels/tokens/costs.py."""
    out = [
        '"""Generated tables of token cost by byte class and context, one per tokenizer vocabulary.',
        "",
        "Made by tools/fit_tokens.py --fit; not edited by hand.",
        '"""',
        "",
        "from typing import Final",
        "",
        f'MADE_WITH: Final = "{made_with}"',
        "# fmt: off",
        "COSTS: Final[dict[str, bytes]] = {",
    ]
    for vocabulary in VOCABULARIES:
        out += [f'    "{vocabulary}": bytes.fromhex(']
        values = costs[vocabulary]
        out += [f'        "{values[start : start + 32].hex()}"' for start in range(0, len(values), 32)]
        out += ["    ),"]
    return "\n".join([*out, "}"]) + "\n"


# --- fitting ------------------------------------------------------------------------------------


def _samples() -> list[Any]:
    import token_corpus

    whole = token_corpus.documents()
    return [*((document, False) for document in whole), *((piece, True) for piece in token_corpus.spans(whole))]


def _counter(vocabulary: str) -> Callable[[str], int]:
    import quicktok

    count: Callable[[str], int] = quicktok.get_encoding(vocabulary).count
    return count


def _counts_of_keys(text: str) -> np.ndarray:
    raw = np.frombuffer(text.encode(), np.uint8)
    return np.bincount(machine.token_keys(raw), minlength=machine.COSTS).astype(np.float64)


def _prior() -> np.ndarray:
    """Return the cost of a byte without a text: a quarter of a token, half in other scripts, one for control."""
    out = np.full(machine.COSTS, 0.25)
    out[machine.LEAD_AT :] = 0.5
    out[machine.CONTROL : machine.LEAD_AT : 16] = HIGHEST
    return out


def fit(keys: np.ndarray, tokens: np.ndarray, weights: np.ndarray) -> bytes:
    """Return the costs that make the weighted relative errors small.

    Shapes:  keys f64[n, COSTS] occurrences; tokens, weights f64[n]
    """
    scaled = weights / np.maximum(tokens, FEWEST)
    rows = keys * scaled[:, np.newaxis]
    pull = PULL**2 * ((rows**2).sum(axis=0) + 1e-6)
    gram = rows.T @ rows + np.diag(pull)
    wanted = rows.T @ (tokens * scaled) + pull * _prior()
    out = _prior()
    for step, sweeps in ((0.0, SWEEPS), (1 / UNITS_PER_TOKEN, 200)):
        for _ in range(sweeps):
            moved = 0.0
            for at in range(machine.COSTS):
                best = out[at] + (wanted[at] - gram[at] @ out) / gram[at, at]
                best = min(max(best, LOWEST), HIGHEST)
                best = round(best / step) * step if step else best
                moved = max(moved, abs(best - out[at]))
                out[at] = best
            if moved < 1e-7:
                break
    return bytes(np.rint(out * UNITS_PER_TOKEN).astype(np.uint8))


def fit_all() -> dict[str, bytes]:
    """Return the costs of each vocabulary."""
    samples = [(document, short) for document, short in _samples() if not document.held_out]
    keys = np.array([_counts_of_keys(document.text) for document, _ in samples])
    kinds = [document.kind for document, _ in samples]
    weights = np.array([kinds.count(kind) ** -RARITY for kind in kinds])
    weights /= weights.mean()
    out = {}
    for vocabulary in VOCABULARIES:
        count = _counter(vocabulary)
        tokens = np.array([count(document.text) for document, _ in samples], np.float64)
        out[vocabulary] = fit(keys, tokens, weights)
    return out


# --- measuring ----------------------------------------------------------------------------------


def errors(estimate: Callable[[str, str], int]) -> list[tuple[str, ...]]:
    """Return, by vocabulary and kind, how far ``estimate`` (of vocabulary and text) is off on what was held out.

    Median, 95th percentile and bias, in percent, of whole documents and of short spans.
    """
    from token_corpus import KINDS

    samples = [(document, short) for document, short in _samples() if document.held_out]
    rows = []
    for vocabulary in VOCABULARIES:
        count = _counter(vocabulary)
        for kind in (*KINDS, "all"):
            cells = [vocabulary, kind]
            for wanted in (False, True):
                texts = [d.text for d, short in samples if short is wanted and kind in (d.kind, "all")]
                exact = np.array([count(text) for text in texts])
                found = np.array([estimate(vocabulary, text) for text in texts])
                low, high = np.percentile(np.abs(found / exact - 1), (50, 95))
                bias = found.sum() / exact.sum() - 1
                cells += [str(len(texts)), f"{low:.1%}", f"{high:.1%}", f"{bias:+.1%}"]
            rows.append(tuple(cells))
    return rows


def by_bytes(_: str, text: str) -> int:
    """Return the estimate of the source's rule."""
    return -(-2 * len(text.encode()) // 7)


def by_tables(vocabulary: str, text: str) -> int:
    """Return the estimate of the committed costs."""
    table = np.frombuffer(_committed()[vocabulary], np.uint8)
    return -(-machine.token_units(np.frombuffer(text.encode(), np.uint8), table) // UNITS_PER_TOKEN)


def _committed() -> dict[str, bytes]:
    from caliber.kernels.tokens import costs

    return costs.COSTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing, fail if the C tables are out of date")
    choice.add_argument("--fit", action="store_true", help="find new costs and write both files")
    choice.add_argument("--errors", action="store_true", help="print the errors of the committed costs")
    chosen = parser.parse_args()

    if chosen.errors:
        for title, estimate in (("calibrated", by_tables), ("bytes over 3.5", by_bytes)):
            print(f"{title}\n\n| vocabulary | kind | documents | median | p95 | bias | spans | median | p95 | bias |")
            print("|---|---|" + "---:|" * 8)
            for row in errors(estimate):
                print("| " + " | ".join(row) + " |")
            print()
        return 0
    if chosen.fit:
        costs = fit_all()
        made_with = f"Python {platform.python_version()}, quicktok-v1 {version('quicktok-v1')}"
        COSTS.write_text(costs_py(costs, made_with), encoding="utf-8")
    else:
        costs = _committed()
    wanted = tables_c(costs)
    if TABLES.exists() and TABLES.read_text(encoding="utf-8") == wanted:
        return 0
    if chosen.check:
        print(f"{TABLES.relative_to(ROOT)} is out of date; run 'make gen'")
        return 1
    TABLES.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
