"""Windows over stores of conversations: every question under a configuration, and the speed of assembly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caliber.cli.evaluating.windows import BUDGETS, FILLED, TASKS, Asked, ConversationWindows
from retrieval.asking import INITIATOR, Stores


def ask_windows(
    stores: Stores,
    overrides: Mapping[str, Any],
    budgets: Sequence[int] = BUDGETS,
    where: Sequence[str] = (*FILLED, *TASKS),
    *,
    held_out: Mapping[str, Mapping[str, Any]] | None = None,
    as_query: bool = False,
    why: bool = True,
) -> list[Asked]:
    """Ask every question in every place at every budget; ``held_out`` has knobs by conversation."""
    out: list[Asked] = []
    for kept in stores.kept:
        own = {} if held_out is None else held_out[kept.conversation.name]
        with stores.open(kept.path, {**own, **overrides}) as memory:
            windows = ConversationWindows(memory, kept.remembered, INITIATOR, budgets, as_query=as_query, why=why)
            for question in kept.conversation.questions:
                out += windows.ask(question, where)
    return out
