"""What was probably meant by a name that nothing has."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(got: str, names: Iterable[str], otherwise: str = "", *, mark: str = "`") -> str:
    """Return the question whether the nearest of some names was meant, or ``otherwise`` where none is near."""
    import difflib  # only for who made a mistake

    near = difflib.get_close_matches(got, list(names), n=1)
    return f"did you mean {mark}{near[0]}{mark}?" if near else otherwise
