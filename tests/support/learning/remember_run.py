"""A run of ``remember`` over labelled conversations, as answers that ``remember_score`` judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from support.learning.remember_score import Kept, Learnt

import caliber
from caliber.model.learning import Learned


def answers(memory: caliber.Caliber, talks: Iterable[Mapping[str, Any]]) -> dict[str, Learnt]:
    """Return the facts kept and ended by each message, remembered one call after the other, a task each talk."""
    out = {}
    for talk in talks:
        task = memory.start_trajectory(talk["conversation"], user=talk["user"]).trajectory_id
        for message in talk["messages"]:
            body = {"role": message["role"], "content": message["text"], "id": message["message"]}
            body["occurred_at"] = datetime.fromisoformat(message["at"])
            learned = memory.remember([body], user=talk["user"], task=task)
            out[message["message"]] = _learnt(learned, talk["user"])
    return out


def _learnt(learned: Learned, user: str) -> Learnt:
    made = [*learned.added, *learned.updated]
    earlier = {each.replaces for each in learned.updated} & {each.note_id for each in made}
    changed = [each for each in made if each.note_id not in earlier]
    kept = [
        Kept(str(each.note_id), "user" if each.person == user else each.person, each.attribute.value, each.statement)
        for each in changed
    ]
    ended = [each.note_id for each in learned.ended]
    ended += [each.replaces for each in learned.updated if each.replaces is not None and each.replaces not in earlier]
    return Learnt(kept, [str(each) for each in ended])
