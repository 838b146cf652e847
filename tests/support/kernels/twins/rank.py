"""The kernel that ranks candidates and fills a budget, in Python."""

from __future__ import annotations

import numpy as np

from caliber.kernels import FillDecision, RankColumns


def rank_and_fill(
    columns: RankColumns,
    *,
    budget: int,
    section_budget: np.ndarray,
    section_overhead: np.ndarray,
    separator_tokens: int,
    min_relevance: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of all candidates and the decisions, by the rules of ``caliber.kernels.rank``."""
    count = columns.priority.shape[0]
    relevance = columns.relevance.astype(np.float64)
    ranking = np.lexsort(
        [columns.tie[:, 1], columns.tie[:, 0], columns.age_us, -relevance, -columns.priority.astype(np.int64)]
    ).tolist()
    group, section, tokens = columns.group.tolist(), columns.section.tolist(), columns.tokens.tolist()
    members: dict[int, list[int]] = {}
    for i in ranking:
        if group[i] >= 0:
            members.setdefault(group[i], []).append(i)

    floor = float(np.float32(min_relevance))
    order: list[int] = []
    decision = np.zeros(count, dtype=np.uint8)
    used = 0
    section_used: dict[int, int] = {}
    for first in ranking:
        unit = [first] if group[first] < 0 else members[group[first]]
        if unit[0] != first:
            continue
        order += unit
        s = section[first]
        cost = sum(tokens[i] for i in unit) + separator_tokens * (len(unit) - 1)
        cost += separator_tokens if s in section_used else int(section_overhead[s])
        in_section = section_used.get(s, 0)
        if max(relevance[i] for i in unit) < floor:
            code = others = FillDecision.EXCLUDED_RELEVANCE
        elif section_budget[s] >= 0 and in_section + cost > section_budget[s]:
            code, others = FillDecision.EXCLUDED_SECTION_BUDGET, FillDecision.EXCLUDED_GROUP
        elif used + cost > budget:
            code, others = FillDecision.EXCLUDED_BUDGET, FillDecision.EXCLUDED_GROUP
        else:
            code = others = FillDecision.INCLUDED
            used += cost
            section_used[s] = in_section + cost
        decision[unit] = others
        decision[first] = code
    return np.array(order, dtype=np.int64), decision
