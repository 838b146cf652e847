"""Parsing of users, agents and record references given on the command line."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from caliber.cli.failures import UsageError

if TYPE_CHECKING:
    import click

    from caliber.model.references import EntityRef

_USER: Final = "user"
_OWNERS: Final = (_USER, "agent")
_SHAPE: Final = "ids look like 0190f3c2-7c00-7000-8000-000000000001"


def as_id(text: str, what: str | None = None) -> uuid.UUID:
    """Return the UUID that a text spells, the id of ``what``. Raises: UsageError."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise UsageError(f"{text!r} is not an id" if what is None else f"{text!r} is no {what}", _SHAPE) from None


def as_reference(text: str, option: str) -> EntityRef:
    """Return the entity that ``TYPE:ID`` or ``user:NAME`` names. Raises: UsageError."""
    from caliber.model.references import EntityRef, EntityType

    kind, _, rest = text.partition(":")
    if kind not in [member.value for member in EntityType]:
        raise UsageError(f"{option} {text!r}: unknown kind of entity", "such as user:NAME, user:ID, agent:ID, note:ID")
    if kind == _USER and not _is_id(rest):
        return as_user(rest, option)
    return EntityRef(EntityType(kind), as_id(rest))


def as_user(name: str, option: str) -> EntityRef:
    """Return the user of a name. Raises: UsageError."""
    from caliber.model.references import EntityRef

    if not name.strip():
        raise UsageError(f"{option}: the name is empty", "for example --for maria")
    return EntityRef.user(name)


def as_owner(text: str, option: str = "--for") -> EntityRef:
    """Return the owner of an import: a user by name, or a user or agent by id. Raises: UsageError."""
    kind, colon, _ = text.partition(":")
    if not colon:
        if _is_id(text):
            raise UsageError(f"{option} {text}: an id without its kind", f"write user:{text} or agent:{text}")
        return as_user(text, option)
    if kind not in _OWNERS:
        raise UsageError(f"{option} {text!r}: an owner is a user or an agent", "such as maria, user:ID or agent:ID")
    return as_reference(text, option)


def owner_option(_context: click.Context, _parameter: click.Parameter, value: str | None) -> EntityRef | None:
    """Return the owner that the option --for names, if it is given. Raises: UsageError."""
    return None if value is None else as_owner(value)


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
