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

from caliber.access.owners import tasks_of_user, user_of_row
from caliber.context.conversation import PASSAGE, TASKS, TURNS
from caliber.context.gather.duplicates import Recalled
from caliber.context.gather.outdated import outdated
from caliber.context.gather.scores import Scored
from caliber.context.gather.turns import TurnFacts
from caliber.context.inputs import AssemblyInputs, TextSource
from caliber.context.plan import AssemblyPlan
from caliber.model.trajectory import TurnRole
from caliber.resident.keywords import ASKS
from caliber.resident.mirror import RelationSnapshot
from caliber.search.searcher import Searcher

_COMPARED = 256
"""The newest messages of the user that are compared."""
_GREETING = 8
"""Tokens of a message that says nothing: a word or two are no more to the point for being rare."""
_LEAST = 0.25
"""The share of the first message's worth below which a message is small talk."""
_MOST = np.float32(1e-6)
"""The relevance of the first one: whatever a query finds comes before it."""


def own_words(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    searcher: Searcher,
    texts: TextSource,
    allowed: NDArray[np.bool_],
    found: Recalled | None,
    spoken: TurnFacts,
) -> Recalled:
    """Return the messages of the user among the ``allowed`` turns that are not shown anyway, the best first."""
    turns, budget = inputs.snapshot[TURNS], plan.budget(inputs.max_tokens)
    words, names = searcher.keywords.of(turns), turns.interned_codes("name")
    kept = allowed & (turns.column("role") == turns.enum_code("role", TurnRole.USER.value))
    kept &= np.isin(turns.column("name"), [names.get(name, -1) for name in (None, *inputs.user_names)])
    kept &= (words.flagged(ASKS)[: len(kept)] == 0) & _own(inputs, turns)
    # A pasted log or document tells nothing of the user.
    kept &= turns.column("token_count") <= plan.tokens(plan.excerpt_length(inputs.max_tokens))
    # What the conversation may show is not repeated, whatever else takes its room.
    kept[spoken.rows[np.cumsum(spoken.lengths[::-1])[::-1] <= plan.longest(budget)]] = False
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(-turns.column("ordinal")[rows], kind="stable")[:_COMPARED]]
    rows = rows[[author is None for author in turns.packed_values("author_id", rows.tolist())]]  # no guest of the task
    # A turn that says what the conversation or a hit says in the same words is none.
    hits = rows[:0] if found is None else found.rows[found.twins == 0]
    shown = np.concatenate((spoken.rows[-_COMPARED:], np.setdiff1d(hits[:_COMPARED], rows)))
    is_hit = np.isin(rows, hits)
    rows = np.concatenate((rows[is_hit], rows[~is_hit]))
    said = words.words([*shown.tolist(), *rows.tolist()])
    worth = np.array(rarity(said)[len(shown) :])
    worth /= np.sqrt(turns.column("token_count")[rows] + _GREETING)
    best = np.argsort(-worth, kind="stable")
    best = best[worth[best] > _LEAST * worth.max(initial=0)]
    best = best[: np.searchsorted(np.cumsum(turns.column("token_count")[rows[best]]), budget)]
    best = best[~outdated(inputs, texts, rows[best])]
    relevance = (worth[best] / worth.max(initial=1) * _MOST).astype(np.float32)
    return Recalled(PASSAGE, turns, rows[best], Scored(relevance), np.zeros(len(best), np.int64))


def _own(inputs: AssemblyInputs, turns: RelationSnapshot) -> NDArray[np.bool_]:
    """Return the mask of turns in tasks of the user of the window's task."""
    tasks, names = inputs.snapshot[TASKS], turns.interned_codes("trajectory_id")
    user = user_of_row(tasks, tasks.find(inputs.trajectory_id.bytes))
    if user is None:
        return np.zeros(turns.length, np.bool_)
    keys = tasks.once(("keys of", user), lambda: tasks.keys(np.flatnonzero(tasks_of_user(tasks, user))))
    own: NDArray[np.bool_] = np.isin(turns.column("trajectory_id"), [names.get(key, -1) for key in keys])
    return own


def rarity(texts: Sequence[Sequence[int]]) -> list[float]:
    """Return for each text, as words, the sum of ln((n + 1) / texts that have a word); 0 for one that comes again."""
    having = Counter(chain.from_iterable(map(set, texts)))
    weights = {word: math.log((len(texts) + 1) / count) for word, count in having.items()}
    first = {tuple(words): at for at, words in reversed(list(enumerate(texts)))}
    return [
        sum(map(weights.__getitem__, set(words))) if first[tuple(words)] == at else 0.0
        for at, words in enumerate(texts)
    ]
