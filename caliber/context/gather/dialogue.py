"""Selection of conversation turns for a window: those that it may include, and those that it must include.

These are the open scope's turns, and before them the last turns of closed scopes, so that closing a scope in
mid-conversation hides nothing. Source: C-451, K-075, O-16, design section 5 (What a window is for).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.context import limits
from caliber.context.columns import MUST, PAST, RECENT
from caliber.context.conversation import SCOPES, last_said
from caliber.context.gather.turns import Keep, TurnFacts, TurnReader
from caliber.context.inputs import AssemblyInputs
from caliber.context.plan import AssemblyPlan
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import TurnRole
from caliber.resident.conversation import times_of
from caliber.resident.mirror import RelationSnapshot


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns in chronological order. Shapes: marks ``int64[n]``; ``current`` the place of the last user message.

    Units: ``considered`` turns there were, of which a filter let ``through``.
    """

    turns: TurnFacts
    marks: NDArray[np.int64]
    current: int
    considered: int
    through: int

    def at_hand(self) -> Conversation:
        """Return the last user message and the turns after it, as if there were no others."""
        kept = since(self.turns, self.current)
        current = int(np.searchsorted(kept, self.current))
        return Conversation(self.turns.at(kept), self.marks[kept], current, len(kept), len(kept))


def since(turns: TurnFacts, place: int) -> NDArray[np.int64]:
    """Return the places of turns from one on, and of earlier ones that go with a call or an answer among these."""
    late = turns.groups[place:]
    kept = np.isin(turns.groups, late[late >= 0])
    kept[place:] = True
    return np.flatnonzero(kept)


class Earlier:
    """Counts turns of closed scopes, newest scope first, until there are enough.

    ``here`` turns of the open scope are examined besides, ``limit`` in all.
    """

    def __init__(self, plan: AssemblyPlan, max_tokens: int, limit: int, here: int) -> None:
        self._wanted = plan.longest(plan.budget(max_tokens))
        self._left = limit - here
        self._count = self._length = 0

    @property
    def enough(self) -> bool:
        """True if no further scope needs to be examined."""
        return self._count >= self._left or self._length >= self._wanted

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count the turns of another scope by their lengths."""
        self._count += len(lengths)
        self._length += int(lengths.sum())


def conversation_of(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    reader: TurnReader,
    open_scope: bytes | None,
    limit: int,
    keep: Keep | None,
) -> Conversation:
    """Return the conversation of a task: turns of its newest open scope, and the last turns before those.

    ``keep`` selects the turns that may be shown; the last user message, and later calls without a result, always may.
    """
    scopes = inputs.snapshot[SCOPES]
    rows, earlier = _rows(inputs, plan, reader, scopes, open_scope, limit)
    if keep is not None:
        keep = _keeping(keep, _certain(reader, rows))
    turns, considered, through = reader.of_rows(rows, limit, keep)
    if not len(turns):
        return Conversation(turns, np.zeros(0, np.int64), 0, considered, through)
    users = _users(reader, turns)
    if not len(users) and keep is None:
        asked = last_said(inputs.snapshot, inputs.trajectory_id.bytes)
        if asked in rows:  # more turns than the limit have followed the last user message
            turns = _with_first(reader, turns, asked)
            users = np.zeros(1, np.int64)
    marks, current = mark_turns(turns.groups, users, turns.unanswered, limits.RECENT_EXCHANGES)
    marks[: _past(inputs, reader, turns, earlier)] |= PAST
    return Conversation(turns, marks, current, considered, through)


def mark_turns(
    groups: NDArray[np.int64], users: NDArray[np.int64], unanswered: NDArray[np.int64], back: int
) -> tuple[NDArray[np.int64], int]:
    """Return the marks of at least one turn in order, and the place of the last user message, or last exchange.

    ``users`` are the places of user messages; ``unanswered`` counts the calls of each turn that lack a result;
    ``back`` is the number of exchanges before the last one that are recent.
    """
    marks = np.zeros(len(groups), np.int64)
    grouped = groups >= 0
    if len(users):
        current = int(users[-1])
    else:  # the last turn, or the call that it answers: nothing may stand between these
        current = len(groups) - 1
        if grouped[current]:
            current = int(np.flatnonzero(groups == groups[current])[0])
    if len(users) or not grouped[current]:
        marks[current] |= MUST
    if grouped.any():
        # A call from before the last user message is in the past, and so are its results.
        past = groups[:current]
        is_open = ~np.isin(groups, past[past >= 0])
        marks[np.isin(groups, groups[unanswered > 0]) & is_open] |= MUST
        # The agent waits for the newest results: they may be cut, but never omitted.
        late = np.flatnonzero(is_open & grouped & (np.arange(len(groups)) > current))
        if len(late):
            marks[groups == groups[late[-1]]] |= MUST
    if len(users):
        marks[int(users[max(0, len(users) - 1 - back)]) :] |= RECENT
    return marks, current


def _keeping(keep: Keep, certain: NDArray[np.int64]) -> Keep:
    def kept(among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        out = keep(among).copy()
        out[certain] = True
        return out

    return kept


def _certain(reader: TurnReader, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the last user message, and of calls since then that wait for an answer."""
    rows = rows[np.argsort(reader.turns.column("turn_number")[rows], kind="stable")]
    users = np.flatnonzero(reader.turns.column("role")[rows] == reader.turns.enum_code("role", TurnRole.USER.value))
    if not len(users):
        return np.empty(0, np.int64)
    since = rows[users[-1] :]
    late, _, _ = reader.of_rows(since, len(rows))
    waiting = late.rows[np.isin(late.groups, late.groups[late.unanswered > 0])]
    return np.concatenate((rows[users[-1:]], waiting[np.isin(waiting, since)]))


def _users(reader: TurnReader, turns: TurnFacts) -> NDArray[np.int64]:
    """Return the places of user turns."""
    roles = reader.turns.column("role")[turns.rows]
    return np.flatnonzero(roles == reader.turns.enum_code("role", TurnRole.USER.value))


def _with_first(reader: TurnReader, turns: TurnFacts, row: int) -> TurnFacts:
    """Return some turns with an older one, alone, before them."""
    rows = np.array([row], np.int64)
    first = (rows, reader.turns.column("turn_number")[rows], [-1], reader.lengths(rows), [0])
    others = (turns.rows, turns.numbers, turns.groups, turns.lengths, turns.unanswered)
    return TurnFacts(*(np.append(np.array(one, np.int64), other) for one, other in zip(first, others, strict=True)))


def _rows(
    inputs: AssemblyInputs,
    plan: AssemblyPlan,
    reader: TurnReader,
    scopes: RelationSnapshot,
    open_scope: bytes | None,
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the turns of the open scope, those of closed ones that may be shown first; and the latter alone."""
    turns = reader.turns
    here = np.empty(0, np.int64) if open_scope is None else turns.group("scope_id", open_scope)
    looked = Earlier(plan, inputs.max_tokens, limit, len(here))
    own_scopes = scopes.group("trajectory_id", inputs.trajectory_id.bytes)
    order = own_scopes[np.argsort(-scopes.column("sequence_number")[own_scopes], kind="stable")]
    parts = [here]
    for scope in order.tolist():
        if looked.enough:
            break
        key = scopes.entity_id(scope).bytes
        if key == open_scope:
            continue
        rows = turns.group("scope_id", key)
        rows = rows[np.argsort(turns.column("turn_number")[rows], kind="stable")][-limit:]
        if len(rows):
            parts.append(rows)
            looked.add(reader.lengths(rows))
    if len(parts) == 1:
        return here, np.empty(0, np.int64)
    earlier = np.concatenate(parts[:0:-1])
    return np.concatenate((earlier, here)), earlier


def _past(inputs: AssemblyInputs, reader: TurnReader, turns: TurnFacts, earlier: NDArray[np.int64]) -> int:
    """Return the number of turns before a pause, or in closed scopes."""
    times = times_of(reader.turns, turns.rows)
    pause = limits.PAUSE_MS * 1_000
    after = np.append(times[1:], inputs.now_us)
    pauses = np.flatnonzero(after - times > pause)
    out = int(pauses[-1]) + 1 if len(pauses) else 0
    if len(earlier):
        is_closed = np.zeros(reader.turns.length, np.bool_)
        is_closed[earlier] = True
        closed = np.flatnonzero(is_closed[turns.rows])
        out = max(out, int(closed[-1]) + 1 if len(closed) else 0)
    return out
