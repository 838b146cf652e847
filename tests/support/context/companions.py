"""Talks with a companion, each a conversation of its own, and the window of a question that comes after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import caliber
from caliber.model.time import FixedClock, to_us

NOW = datetime(2026, 5, 13, 12, tzinfo=UTC)  # a Wednesday


@contextmanager
def companion(**options: Any) -> Iterator[Any]:
    config = caliber.profiles.chat_companion(":memory:", embedding_provider=None, **options)
    with caliber.open(config, create=True, clock=FixedClock(to_us(NOW))) as memory:
        yield memory.acting_as(caliber.Principal.user("eve"))


def tell(user: Any, *said: tuple[datetime, str]) -> None:
    """Tell each in a conversation of its own, which is over."""
    for at, text in said:
        task = user.start_trajectory("talk").trajectory_id
        user.remember([{"role": "user", "content": text, "occurred_at": at}], task=task)
        user.complete_trajectory(task, status="success", summary="")


def recalled(user: Any, question: str, at: datetime | None = None) -> str:
    """Return the window of a new conversation that begins with a question, without the question."""
    task = user.start_trajectory("question").trajectory_id
    user.remember([{"role": "user", "content": question, **({} if at is None else {"occurred_at": at})}], task=task)
    text: str = user.assemble_context(task).text
    return text[: text.rindex(question)]
