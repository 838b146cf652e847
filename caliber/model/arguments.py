"""Validation of arguments of public calls (ids, texts, enums, times, limits), with typed errors."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from caliber.model.access import AgentRole, Principal, PrincipalKind
from caliber.model.agents import LockToken
from caliber.model.errors import Conflict, DTypeError, InvalidValue, RequiredFieldMissing
from caliber.model.references import EntityRef, EntityType, kind_named
from caliber.model.time import CheckedClock, Clock, SystemClock, from_us, parse_duration_ms, to_us
from caliber.model.trajectory import TTL, TTLKind

if TYPE_CHECKING:
    from caliber.model.progress import Tracer

MAX_CONTENT_BYTES = 256 << 20
"""Longest content of one record; far above any prompt, below SQLite's limit of a value."""
MAX_NAME_CHARS = 1_024
_BYTES_OF_LIMIT = 2  # in UTF-8, for each character of a limit: PostgreSQL indexes keys of up to 2,704 bytes
MAX_DURATION_MS = 1_000 * 366 * 86_400_000
"""A thousand years: from any clock's now that ends within the instants there are."""
_INT64_MAX = 2**63 - 1

E = TypeVar("E", bound=StrEnum)


def exact(value: str) -> str:
    """Return a text of a subclass (NumPy's, an HTML library's) as a plain one, ignoring overridden methods.

    Stored texts must be plain: memory would pack a subclass that offers a buffer as that buffer's bytes.
    """
    return value if type(value) is str else str.__str__(value)


def check_type(value: Any, kind: type, field: str) -> None:
    """Raise DTypeError unless a value is of a type."""
    if not isinstance(value, kind):
        raise DTypeError(field=field, expected=kind.__name__, got=type(value).__name__)


def as_uuid(value: Any, field: str) -> uuid.UUID:
    """Return an id given as a UUID or as its text. Raises: InvalidValue, DTypeError."""
    if isinstance(value, uuid.UUID):
        return value if type(value) is uuid.UUID else uuid.UUID(int=value.int)
    if isinstance(value, str):
        try:
            return uuid.UUID(exact(value))
        except ValueError:
            raise InvalidValue(
                field=field, reason="not an id; ids look like 0190f3c2-7c00-7000-8000-000000000000"
            ) from None
    raise DTypeError(field=field, expected="a UUID", got=type(value).__name__)


def as_enum(value: Any, members: type[E], field: str) -> E:
    """Return a member given as itself or as its text. Raises: InvalidValue, naming the members."""
    if isinstance(value, str):  # an enumeration would quote anything else in its refusal
        with suppress(ValueError):
            return members(value if isinstance(value, members) else exact(value))
    names = ", ".join(member.value for member in members)
    raise InvalidValue(field=field, reason=f"must be one of {names}")


def as_content(value: Any, field: str, *, allow_empty: bool) -> bytes:
    """Return content as bytes; text becomes UTF-8, bytes stay as they are.

    Raises: DTypeError; InvalidValue when empty, too long, or text with lone surrogates.
    """
    if isinstance(value, str):
        try:
            raw = exact(value).encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidValue(
                field=field, reason="the text holds lone surrogates; pass bytes to keep it as it is"
            ) from None
    elif isinstance(value, bytes | bytearray | memoryview):
        raw = value if type(value) is bytes else memoryview(value).tobytes()
    else:
        raise DTypeError(field=field, expected="str or bytes", got=type(value).__name__)
    if not raw and not allow_empty:
        raise InvalidValue(field=field, reason="must not be empty")
    if len(raw) > MAX_CONTENT_BYTES:
        raise InvalidValue(field=field, reason=f"{len(raw)} bytes are more than the limit of {MAX_CONTENT_BYTES}")
    return raw


def as_text(value: Any, field: str, *, allow_empty: bool = False, limit: int | None = None) -> str:
    """Return a text, as a plain ``str``.

    Raises: DTypeError; InvalidValue when empty or too long; RequiredFieldMissing for None.
    """
    if value is None:
        raise RequiredFieldMissing(field=field)
    if not isinstance(value, str):
        raise DTypeError(field=field, expected="str", got=type(value).__name__)
    text = exact(value)
    as_content(text, field, allow_empty=allow_empty)
    if not allow_empty and not text.strip():
        raise InvalidValue(field=field, reason="must not be blank")
    if limit is not None and len(text) > limit:
        raise InvalidValue(field=field, reason=f"{len(text)} characters are more than the limit of {limit}")
    if limit is not None and not text.isascii() and len(text.encode()) > (most := _BYTES_OF_LIMIT * limit):
        raise InvalidValue(field=field, reason=f"{len(text.encode())} bytes in UTF-8 are more than the limit of {most}")
    return text


def as_name(value: Any, field: str) -> str | None:
    """Return a short optional text."""
    return None if value is None else as_text(value, field, limit=MAX_NAME_CHARS)


def as_names(values: Any, field: str) -> tuple[str, ...]:
    """Return a sequence of short texts."""
    return tuple(as_text(each, field, limit=MAX_NAME_CHARS) for each in as_items(values, field, "a sequence of str"))


def as_uuids(values: Any, field: str) -> tuple[uuid.UUID, ...]:
    """Return a sequence of ids. Raises: InvalidValue, DTypeError."""
    return tuple(as_uuid(value, field) for value in as_items(values, field, "a sequence of ids"))


def as_items(values: Any, field: str, expected: str) -> Iterator[Any]:
    """Return an iterator of several things; a text, bytes or a mapping is one thing.

    Raises: DTypeError.
    """
    if not isinstance(values, str | bytes | bytearray | Mapping):
        with suppress(TypeError):
            return iter(values)
    raise DTypeError(field=field, expected=expected, got=type(values).__name__)


def as_flag(value: Any, field: str) -> bool:
    """Return a switch; nothing else counts as one, since a text such as "no" would be on.

    Raises: DTypeError.
    """
    if not isinstance(value, bool):
        raise DTypeError(field=field, expected="True or False", got=type(value).__name__)
    return value


def as_callback(value: Any, field: str) -> Any:
    """Return an optional callable.

    Raises: DTypeError.
    """
    if value is not None and not callable(value):
        raise DTypeError(field=field, expected="a callable", got=type(value).__name__)
    return value


def as_clock(value: Any) -> Clock:
    """Return a clock whose readings are checked; None stands for the machine's.

    Raises: DTypeError.
    """
    if value is None or type(value) is SystemClock:
        return SystemClock()
    if not callable(getattr(value, "now_us", None)):
        raise DTypeError(field="clock", expected="a Clock", got=type(value).__name__)
    return CheckedClock(value)


def as_tracer(value: Any) -> Tracer | None:
    """Return a tracer, or None. Raises: DTypeError."""
    if value is None:
        return None
    if not all(callable(getattr(value, name, None)) for name in ("start", "opened", "closed")):
        raise DTypeError(field="tracer", expected="a Tracer", got=type(value).__name__)
    tracer: Tracer = value
    return tracer


def as_path(value: Any, field: str) -> Path:
    """Return the path of a file.

    Raises: DTypeError; InvalidValue for an invalid file name.
    """
    if not isinstance(value, str | os.PathLike):
        raise DTypeError(field=field, expected="a path", got=type(value).__name__)
    try:
        named = os.fsencode(value)
        path = Path(value)
    except (TypeError, ValueError):
        raise InvalidValue(field=field, reason="not a possible file name") from None
    if not named or b"\0" in named:
        raise InvalidValue(field=field, reason="not a possible file name")
    return path


def as_token(value: Any, field: str) -> LockToken | None:
    """Return an optional token of a lock.

    Raises: DTypeError, InvalidValue.
    """
    if value is None:
        return None
    check_type(value, LockToken, field)
    return LockToken(
        as_text(value.resource, f"{field}.resource", limit=MAX_NAME_CHARS), as_whole(value.token, f"{field}.token")
    )


def as_fraction(value: Any, field: str, low: float = 0.0, high: float = 1.0) -> float:
    """Return a finite number of a closed range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DTypeError(field=field, expected="a number", got=type(value).__name__)
    if isinstance(value, int):  # may be larger than any float
        number: int | float = int.__int__(value)
    else:
        number = float.__float__(value)
    if not low <= number <= high:
        raise InvalidValue(field=field, reason=f"must be between {low:g} and {high:g}")
    return float(number)


def as_whole(value: Any, field: str, low: int = 0) -> int:
    """Return a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DTypeError(field=field, expected="an int", got=type(value).__name__)
    whole = int.__int__(value)
    if not low <= whole <= _INT64_MAX:
        raise InvalidValue(field=field, reason=f"must be at least {low} and fit 64 bits")
    return whole


def as_duration_ms(value: Any, field: str) -> int:
    """Return a time in milliseconds, above 0 and at most a thousand years."""
    whole = as_whole(value, field, 1)
    if whole > MAX_DURATION_MS:
        raise InvalidValue(field=field, reason="must be at most a thousand years")
    return whole


def as_version(value: Any) -> int | None:
    """Return the version that a record must still have, if one was given."""
    return None if value is None else as_whole(value, "version", 1)


def check_version(entity_type: str, key: Any, version: int, expected: int | None) -> None:
    """Raise Conflict when a version was expected, and is no longer that of a record."""
    if expected is not None and version != expected:
        raise Conflict(entity_type=entity_type, id=key, reason=f"its version is {version} by now")


def as_instant(value: Any, field: str) -> datetime | None:
    """Return an optional aware datetime."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise DTypeError(field=field, expected="a datetime", got=type(value).__name__)
    instant_us = to_us(value, field)
    return value if type(value) is datetime else from_us(instant_us)


def as_reference(value: Any, field: str, kinds: Collection[str] = ()) -> EntityRef:
    """Return an EntityRef whose type and id are ones; both may be given as their text.

    ``kinds`` are names of relations that it may name beside the members of EntityType.

    Raises: DTypeError, InvalidValue.
    """
    if not isinstance(value, EntityRef):
        raise DTypeError(field=field, expected="EntityRef(EntityType.…, id)", got=type(value).__name__)
    named: Any = value.entity_type
    is_kind = isinstance(named, str) and named in kinds
    kind = kind_named(named) if is_kind else as_enum(named, EntityType, f"{field}.entity_type")
    return EntityRef(kind, as_uuid(value.id, f"{field}.id"))


def as_ttl(value: Any) -> TTL:
    """Return a time to live: a TTL, ``persistent``, ``session``, ``scope``, a duration such as ``1h``, or ms."""
    if value is None:
        return TTL(TTLKind.PERSISTENT)
    if isinstance(value, TTL):
        if (value.kind is TTLKind.DURATION) != (value.duration_ms is not None):
            raise InvalidValue(field="ttl", reason="duration_ms belongs to kind duration, and to it only")
        if value.duration_ms is not None:
            return TTL(TTLKind.DURATION, as_duration_ms(value.duration_ms, "ttl.duration_ms"))
        return value
    if isinstance(value, str):
        value = exact(value)
        if value in (TTLKind.PERSISTENT, TTLKind.SESSION, TTLKind.SCOPE):
            return TTL(TTLKind(value))
        return TTL(TTLKind.DURATION, as_duration_ms(parse_duration_ms(value, "ttl"), "ttl"))
    return TTL(TTLKind.DURATION, as_duration_ms(value, "ttl"))


def as_mapping(value: Any, field: str) -> dict[str, Any]:
    """Return a mapping with text keys as a dictionary; None is empty.

    Raises: DTypeError.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise DTypeError(field=field, expected="a mapping with str keys", got=type(value).__name__)
    return {exact(key): item for key, item in value.items()}


def as_principal(value: Any) -> Principal:
    """Return a principal whose kind and role may have been given as text.

    Raises: DTypeError, InvalidValue.
    """
    check_type(value, Principal, "principal")
    kind = as_enum(value.kind, PrincipalKind, "principal.kind")
    role = None if value.role is None else as_enum(value.role, AgentRole, "principal.role")
    name = EntityRef.plain_name(as_text(value.id, "principal.id", limit=MAX_NAME_CHARS))
    return Principal(kind, name, role, as_flag(value.is_admin, "principal.is_admin"))
