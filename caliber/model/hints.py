""" "Did you mean" suggestions for a misspelt name."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(got: str, names: Iterable[str], otherwise: str = "", *, mark: str = "`") -> str:
    """Return the question whether the nearest of some names was meant, or ``otherwise`` where none is near.

    Of a name that is near to none, a name that its first words are is the nearest: ``turn`` of ``turn_buffer``.
    """
    import difflib  # needed only after a mistake

    candidates = list(names)
    near = difflib.get_close_matches(got, candidates, n=1) or [
        name for name in candidates if got.startswith(f"{name}_")
    ]
    return f"did you mean {mark}{near[0]}{mark}?" if near else otherwise
