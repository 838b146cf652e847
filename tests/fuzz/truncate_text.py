"""truncate_to_tokens and grapheme boundaries on any text: within the limit, a beginning, and no cluster cut apart.

A program for atheris: ``python truncate_text.py [libFuzzer options] [corpus folders]``; ``make fuzz`` runs it.
"""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec

from caliber.kernels.tokens import counting, estimators

ESTIMATORS: tuple[estimators.Estimator, ...] = (
    *(estimators.BytesEstimator(divisor) for divisor in (1, 2, 3.5, 4, 0.5, 7.25, 3.827163, 1000)),
    *(estimators.CalibratedEstimator(vocabulary) for vocabulary in estimators.VOCABULARIES),
    # The extra tokens has no wheel for the newest Python.
    *(estimators.ExactEstimator(vocabulary) for vocabulary in estimators.VOCABULARIES if find_spec("quicktok")),
)


def check(data: bytes) -> None:
    """Assert what truncation promises; the first two bytes choose limit and estimator, the rest is text."""
    limit, estimator = (data[0] if data else 0) - 2, ESTIMATORS[data[1] % len(ESTIMATORS) if len(data) > 1 else 0]
    text = data[2:].decode("utf-8", "replace")
    cut = counting.truncate_to_tokens(text, limit, estimator=estimator)
    assert counting.estimate_tokens(cut, estimator=estimator) <= max(limit, 0)
    if limit > 0 and counting.estimate_tokens(text, estimator=estimator) <= limit:
        assert cut == text
        return
    kept = cut if text.startswith(cut) else cut.removesuffix(counting.ELLIPSIS)
    assert text.startswith(kept)
    gap = len(text) - len(kept) - len(text[len(kept) :].lstrip())
    assert any(counting.is_boundary(text, at) for at in range(len(kept), len(kept) + gap + 1))


def main() -> None:
    import atheris

    for module in (counting, estimators):
        for function in vars(module).values():
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                atheris.instrument_func(function)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
