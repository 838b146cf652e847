"""Messages of a call of ``remember``: as new turns, and compared with the conversation that they may bring again.

Clients send a conversation with each call: the end of it, or all of it, also after a question was edited, or an answer
generated again. An answer is replaced where the messages around it say so; where a conversation goes on otherwise from
some message on, the turns behind are taken back: they stay stored, as after a recovery.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from difflib import SequenceMatcher
from typing import Any, Final

from caliber.access.identities import keeping
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.kernels.tokens.estimators import Estimator
from caliber.model import arguments
from caliber.model.errors import DTypeError
from caliber.model.forms.reading import read_message
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, TrajectoryId
from caliber.model.trajectory import Trajectory, TrajectoryStatus, Turn, TurnRole
from caliber.schema.relations import TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.service import Tasks
from caliber.trajectory.turns import LabelOf, NewTurn, check_turn

_EXCHANGE, _REPEATED = 2, timedelta(hours=6)
"""So few messages are repeated within this time; later, the same words are another event."""
_CHANCE: Final = 4
"""So many messages that begin a conversation are no other conversation that begins alike."""
_ANSWERS: Final = (TurnRole.ASSISTANT, TurnRole.TOOL)
_ALIKE: Final = 0.6
"""The part of an edited question that is as it was; less of it is another question."""
_COMPARED: Final = 400
"""Characters of a question that are compared."""


def check_messages(estimator: Estimator, label_of: LabelOf, messages: Any) -> list[NewTurn]:
    """Return the turns of messages, those with an id under it as idempotency key.

    Raises: InputError kinds; nothing of several messages is used if one is wrong.
    """
    if isinstance(messages, Mapping):
        raise DTypeError(field="messages", expected="a sequence of messages", got="one message")
    turns: list[NewTurn] = []
    for at, item in enumerate(arguments.as_items(messages, "messages", "a sequence of messages")):
        message = read_message(item, f"messages[{at}]")
        key = arguments.as_name(message.key, f"messages[{at}].id")
        for place, turn in enumerate(message.turns):
            name = key if key is None or place == len(message.turns) - 1 else f"{key}#{place}"
            turns.append(check_turn(estimator, label_of, trust=message.trust, idempotency_key=name, **turn))
    return turns


def digest(turn: NewTurn) -> str:
    """Return a short hash of a message."""
    calls = [[call.id, call.name, call.arguments] for call in turn.tool_calls]
    said = json.dumps([turn.role.value, turn.name, calls, turn.tool_call_id]).encode() + b"\0" + turn.content
    return hashlib.sha256(said).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Resent:
    """The messages of a call: those that are stored, by place; new answers in place of stored ones; the rest.

    ``gone`` are the turns that the conversation no longer has.
    """

    known: dict[int, Turn] = field(default_factory=dict)
    replaced: dict[int, Turn] = field(default_factory=dict)
    gone: list[Turn] = field(default_factory=list)

    def take(self, at: int, turns: Sequence[Turn]) -> None:
        """Take messages from a place on as these turns."""
        self.known.update(enumerate(turns, at))


def resent(messages: Sequence[NewTurn], turns: Sequence[Turn], now: datetime, *, complete: bool) -> Resent:
    """Return which of some messages are among the last turns of a task; ``complete``: there are no others.

    Neither has instructions of the system. Messages that the turns end with go before those that they begin with: each
    day may begin with the same words.
    """
    out = Resent()
    sizes = range(min(len(turns), len(messages)), 0, -1)
    most = next((size for size in sizes if _repeats(messages[:size], turns[-size:])), 0)
    plain = all(each.occurred_at is None and each.idempotency_key is None for each in messages)
    if plain and 0 < most == len(messages) <= _EXCHANGE and now - turns[-1].created_at > _REPEATED:
        return out
    if not most and len(messages) > 1:
        begin, equal = _longest(messages, turns)
        whole = complete and not begin
        if equal:
            found = _branched(messages, turns[begin:], equal, whole=whole)
            found = found or _aligned(messages, turns[begin:], whole=whole)
            if found is not None:
                return found
    out.take(0, turns[len(turns) - most :])
    return out


def _repeats(messages: Sequence[NewTurn], turns: Sequence[Turn]) -> bool:
    """Return whether messages are these turns: by id if they have one, else by content."""
    return all(_same(message, turn) for message, turn in zip(messages, turns, strict=True))


def _same(message: NewTurn, turn: Turn) -> bool:
    at, before = message.occurred_at, turn.occurred_at
    if at is not None and before is not None and at.astimezone(UTC).date() != before.date():
        return False  # the same words of another day are another event
    return message.says(turn) and message.idempotency_key in (None, turn.idempotency_key)


def _longest(messages: Sequence[NewTurn], turns: Sequence[Turn]) -> tuple[int, int]:
    """Return from which turn on the most messages are there in a row, and how many."""
    best = (0, 0)
    for begin in range(len(turns)):
        equal = 0
        for message, turn in zip(messages, turns[begin:], strict=False):
            if not _same(message, turn):
                break
            equal += 1
        if equal > best[1]:
            best = begin, equal
    return best


def _branched(messages: Sequence[NewTurn], turns: Sequence[Turn], equal: int, *, whole: bool) -> Resent | None:
    """Return messages whose first ``equal`` ones are turns, and that go on otherwise; None if they may not.

    They ask for another answer, have another answer with nothing of what followed, or have an edited question.
    """
    sent, stored = messages[equal:], turns[equal:]
    if not stored or not (whole or equal >= _CHANCE) or any(_same(each, turn) for each in sent for turn in stored):
        return None
    asked = messages[equal - 1].role is TurnRole.USER and equal > 2
    answers = [turn.role in _ANSWERS for turn in stored]
    if not sent:
        certain = asked
    elif sent[0].role in _ANSWERS:
        certain = asked and answers[0] and not all(answers)
    else:
        is_edited = equal > 1 and not answers[0]
        certain = is_edited and (equal >= _CHANCE or _alike(sent[0].content, stored[0].content))
    if not certain:
        return None
    out = Resent(gone=list(stored) if sent or all(answers) else [])  # else a call that is late, or was repeated
    out.take(0, turns[:equal])
    return out


def _alike(one: bytes, other: bytes) -> bool:
    first, second = (text.decode("utf-8", "replace")[:_COMPARED] for text in (one, other))
    return SequenceMatcher(None, first, second, autojunk=False).ratio() >= _ALIKE


def _aligned(messages: Sequence[NewTurn], turns: Sequence[Turn], *, whole: bool) -> Resent | None:
    """Return messages beside turns that begin alike, None if they may be another conversation.

    ``whole``: the turns begin with the first one of the task.
    """
    ids = {message.idempotency_key for message in messages}
    stored = [_token(turn, turn.idempotency_key if turn.idempotency_key in ids else None) for turn in turns]
    sent = [_token(message, message.idempotency_key) for message in messages]
    steps = SequenceMatcher(None, stored, sent, autojunk=False).get_opcodes()
    out, replaced, certain = Resent(), Resent(), True
    for step, first, last, begin, end in steps:
        gone, came = turns[first:last], messages[begin:end]
        if step == "equal":
            out.take(begin, gone)
        elif last < len(turns):
            pairs = _pairs(gone, came, ends=False) if step == "replace" else {} if step == "delete" else None
            certain = certain and pairs is not None
            replaced.replaced.update({begin + at: turn for at, turn in (pairs or {}).items()})
        elif step == "replace":
            answers = next((at for at, each in enumerate(came) if each.role not in _ANSWERS), len(came))
            pairs = _pairs(gone, came[:answers], ends=True)
            certain = certain and pairs is not None
            replaced.replaced.update({begin + at: turn for at, turn in (pairs or {}).items()})
        elif step == "delete":
            certain = False  # messages that end earlier: another call is about to bring the rest, or they are older
    equal = len(out.known)
    if certain and (equal > 1 or whole):
        out.replaced.update(replaced.replaced)
        return out
    return out if whole and equal >= _CHANCE else None


def _pairs(gone: Sequence[Turn], came: Sequence[NewTurn], *, ends: bool) -> dict[int, Turn] | None:
    """Return the turns that new answers replace, by place; None if words of the user would go, or there is no room.

    The calls that led to an answer stay if the new one has none: they were made. With ``ends`` more may follow.
    """
    if any(role not in _ANSWERS for role in (*(turn.role for turn in gone), *(message.role for message in came))):
        return None
    if len(came) > len(gone):
        return dict(enumerate(gone)) if ends else None
    return dict(enumerate(gone[len(gone) - len(came) :]))


def _token(said: NewTurn | Turn, key: str | None) -> Hashable:
    return key, said.role, said.content, said.name, said.tool_calls, said.tool_call_id


GOAL: Final = "Conversation"
"""The goal of a task that ``remember`` starts."""
_ALL: Final = 2**31 - 1


class Conversations:
    """The open conversations of users, as one principal goes on with them."""

    def __init__(self, engine: Engine, tasks: Tasks, goes_on: Callable[[TrajectoryId], bool]) -> None:
        """``goes_on``: whether the principal may write in a task; others are passed over."""
        self._engine = engine
        self._tasks = tasks
        self._goes_on = goes_on

    def of(self, owner: EntityRef, agent_id: uuid.UUID | None) -> tuple[EntityRef, TrajectoryId]:
        """Return a user, and the user's open task that was active last; a user without one gets a new task."""
        rows = self._engine.snapshot("latest")[TRAJECTORY.name]
        numbers = rows.group("initiator_id", owner.id.bytes).tolist()
        found = self._newest(owner, (self._engine.memory.entity(rows, number) for number in numbers))
        return (owner, found) if found is not None else self.start(owner, agent_id)

    def start(self, owner: EntityRef, agent_id: uuid.UUID | None) -> tuple[EntityRef, TrajectoryId]:
        """Start the task of a user, unless another caller has just done so."""
        who = keeping(self._engine, owner)
        codec = self._engine.store.plans[TRAJECTORY.name].codec
        status = codec.index("status")

        def work(uow: UnitOfWork) -> tuple[EntityRef, TrajectoryId, Claim | None]:
            user = who(uow)
            uow.serialize(f"caliber:conversation {user.id}")
            rows = uow.path_rows(TRAJECTORY, "list_by_initiator", str(user.entity_type), user.id.bytes, _ALL)
            active = (codec.decode(row) for row in rows if row[status] == TrajectoryStatus.ACTIVE)
            found = self._newest(user, active)
            if found is not None:
                return user, found, None
            started, claim = self._tasks.begin(uow, GOAL, user, agent_id, None)
            return user, started.trajectory_id, claim

        user, key, claim = self._engine.write(work)
        if claim is not None:
            self._tasks.after_commit(claim)
        return user, key

    def _newest(self, owner: EntityRef, tasks: Iterable[Trajectory]) -> TrajectoryId | None:
        """Return the conversation among the tasks of a user that was active last."""
        going = [
            (each.last_activity_at, each.trajectory_id)
            for each in tasks
            if each.status is TrajectoryStatus.ACTIVE and each.parent_trajectory_id is None and each.initiator == owner
            if self._goes_on(each.trajectory_id)
        ]
        return max(going)[1] if going else None
