"""Entry point of budget filling: chooses which ranked candidates enter, by the configured strategy.

It works on lengths alone, so a replay decides from the recorded columns exactly as the assembly did. Every section pays
for its header, one separator and the rounding of its own token count, so that the sum of the sections' tokens never
exceeds the budget where lengths add up (docs/decisions/0016). Under other estimators the finished sections are counted;
an excess is subtracted from the budget and the window is filled again (docs/decisions/0016).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import Candidates
from caliber.context.filling.filled import NO_RESERVE, Filled, Reserve
from caliber.context.filling.priorities import fill_by_priority
from caliber.context.filling.shares import fill_shared
from caliber.context.plan import AssemblyPlan


def fill(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    plan: AssemblyPlan,
    max_tokens: int,
    reserve: Reserve = NO_RESERVE,
) -> Filled:
    """Decide about every candidate that is still considered.

    Shapes: codes ``uint8[n]`` as ``rank`` gives them; sizes ``int64[n]`` lengths, of use where considered.
    Raises: BudgetTooSmall when there is something to include and nothing of it fits.
    """
    way = fill_shared if plan.stable_first else fill_by_priority
    return way(ranked, codes, sizes, plan, max_tokens, reserve)
