"""Choice of messages of the user from other talks that a window repeats though no query asks for them.

Those enter that, for their length, have most words of their own. Source: docs/windows.md (In the user's words).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from caliber.context.conversation import PASSAGE, TURNS
from caliber.context.gather.duplicates import Recalled
from caliber.context.gather.scores import Scored
from caliber.context.gather.turns import TurnFacts
from caliber.context.inputs import AssemblyInputs
from caliber.context.plan import AssemblyPlan, SectionPlan
from caliber.model.trajectory import TurnRole
from caliber.resident.keywords import ASKS
from caliber.search.searcher import Searcher

_COMPARED = 512
"""The newest messages of the user that are compared."""
_MOST = np.float32(1e-6)
"""The relevance of the first one: whatever a query finds comes before it."""


def own_words(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    section: SectionPlan,
    searcher: Searcher,
    allowed: NDArray[np.bool_],
    spoken: TurnFacts,
) -> Recalled:
    """Return as many messages as the section holds, of those among the ``allowed`` turns that are not shown anyway."""
    turns, budget = inputs.snapshot[TURNS], plan.budget(inputs.max_tokens)
    names = turns.interned_codes("name")
    words = searcher.keywords.of(turns)
    mine = allowed & (turns.column("role") == turns.enum_code("role", TurnRole.USER.value))
    mine &= np.isin(turns.column("name"), [names.get(name, -1) for name in (None, *inputs.user_names)])
    mine &= words.flagged(ASKS)[: len(mine)] == 0
    # What the conversation may show is not repeated, whatever else takes its room.
    mine[spoken.rows[np.cumsum(spoken.lengths[::-1])[::-1] <= plan.longest(budget)]] = False
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(-turns.column("ordinal")[rows], kind="stable")[:_COMPARED]]
    tokens = np.minimum(turns.column("token_count")[rows], plan.tokens(plan.excerpt_length(inputs.max_tokens)))
    says = np.array(rarity(words.words(rows.tolist()))) / np.sqrt(np.maximum(1, tokens))
    best = np.argsort(-says, kind="stable")
    best = best[(np.cumsum(tokens[best]) <= section.cap * budget) & (says[best] > 0)]
    relevance = (says[best] / says.max(initial=1) * _MOST).astype(np.float32)
    return Recalled(PASSAGE, turns, rows[best], Scored(relevance), np.zeros(len(best), np.int64))


def rarity(texts: Sequence[Sequence[int]]) -> list[float]:
    """Return for each text, as words, the sum of ln(n / texts that have a word); 0 for one that comes again."""
    having = Counter(chain.from_iterable(map(set, texts)))
    weights = {word: math.log(len(texts) / count) for word, count in having.items()}
    first = {tuple(words): at for at, words in reversed(list(enumerate(texts)))}
    return [
        sum(map(weights.__getitem__, set(words))) if first[tuple(words)] == at else 0.0
        for at, words in enumerate(texts)
    ]
