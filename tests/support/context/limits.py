"""Other numbers of the assembly (``caliber.context.limits``), for situations that are small."""

from __future__ import annotations

from typing import Any

import pytest

from caliber.context import limits
from caliber.context.filling import state


def set_limits(patch: pytest.MonkeyPatch, **numbers: Any) -> None:
    """Replace numbers of the assembly, named in lower case, until the patch is undone."""
    for name, value in numbers.items():
        patch.setattr(limits, name.upper(), value)
    # Worked out anew: what is kept of a plan was made with other numbers.
    patch.setattr(state, "shares_of", getattr(state.shares_of, "__wrapped__", state.shares_of))
