"""NOTIFY of a commit to other processes: encodes its events in the same transaction, and decodes them on arrival.

A tenant has one channel; every open store of it with a ``feed_dsn`` listens there for the writer's id and the events of
the transaction in their order. Events with a name of their own are also sent under that name, for listeners that are
not CALIBER. All channels begin with ``caliber_`` and a hash of the schema's name, as channels belong to the database
and not to the schema. Only ids, kinds and times travel, never the content of a record.

Source: C-242 to C-244, C-312, design section 5; docs/decisions/0099.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final

from caliber.model.errors import InvalidValue
from caliber.model.events import Event, EventFamily, EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EventId, ScopeId, TrajectoryId, kind_named
from caliber.model.time import from_us, to_us
from caliber.storage.compile.codec import dump_json

PAYLOAD_MAX_BYTES: Final = 7_999
"""The server takes payloads shorter than 8000 bytes."""
_CHANNEL_MAX_BYTES: Final = 63
_POLICY: Final = "caliber_"
"""Prefix of the type of an event that a policy's action ``notify`` emits."""

NAMES: Final = {
    EventType.TRAJECTORY_START.value: "trajectory_started",
    EventType.TRAJECTORY_COMPLETE.value: "trajectory_completed",
    EventType.SCOPE_OPEN.value: "scope_opened",
    EventType.SCOPE_CLOSE.value: "scope_closed",
    EventType.ARTIFACT_CREATE.value: "artifact_created",
}
"""Under which name an event goes out by itself; those of policies under their channel."""


def channel_of(schema: str) -> str:
    """Return the channel of a tenant's commits: a hash, as channel and schema names both have at most 63 bytes."""
    return "caliber_" + _hash(schema, 32)


def prefix_of(schema: str) -> str:
    """Return the prefix of the channels on which a tenant's events go out by name."""
    return f"caliber_{_hash(schema, 16)}_"


def named_channel(schema: str, name: str) -> str:
    """Return the channel of one event name; one too long for a channel ends in its hash."""
    channel = prefix_of(schema) + name
    if len(channel.encode()) <= _CHANNEL_MAX_BYTES:
        return channel
    return f"{channel[: _CHANNEL_MAX_BYTES - 17]}_{_hash(name, 16)}"


def head_of(writer: str) -> str:
    """Return the first bytes of one writer's notifications: its own listener skips them unread."""
    return f'{{"writer":"{writer}"'


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification: the id of the writer, and its events."""

    writer: str
    events: tuple[Event, ...]


class CommitNotifier:
    """Makes the notifications of one open store."""

    def __init__(self, schema: str, writer: bytes) -> None:
        self._schema = schema
        self._writer = writer.hex()
        self._channel = channel_of(schema)
        self._named: dict[str, str | None] = {}

    def messages(self, events: Sequence[Event]) -> tuple[str, str]:
        """Return channels and payloads of one transaction, in order, each a JSON list of texts.

        Raises: InvalidValue for an event that no payload has room for.
        """
        channels, payloads = [], []
        for payload in self._chunks(events):
            channels.append(self._channel)
            payloads.append(payload)
        for event in events:
            channel = self._channel_of(event.event_type)
            if channel is not None:
                channels.append(channel)
                payloads.append(_checked(dump_json({"id": _id_of(event), "event_id": str(event.event_id)})))
        return dump_json(channels), dump_json(payloads)

    def _chunks(self, events: Sequence[Event]) -> Iterable[str]:
        """Yield payloads with every event once, in order; one without events carries the writer's id only."""
        head = f'{head_of(self._writer)},"events":['
        parts: list[str] = []
        size = len(head) + 2
        for event in events:
            part = dump_json(_packed(event))
            if parts and size + len(part.encode()) + 1 > PAYLOAD_MAX_BYTES:
                yield _checked(f"{head}{','.join(parts)}]}}")
                parts, size = [], len(head) + 2
            parts.append(part)
            size += len(part.encode()) + 1
        yield _checked(f"{head}{','.join(parts)}]}}")

    def _channel_of(self, event_type: str) -> str | None:
        if event_type not in self._named:
            name = event_type[len(_POLICY) :] if event_type.startswith(_POLICY) else NAMES.get(event_type)
            self._named[event_type] = None if not name else named_channel(self._schema, name)
        return self._named[event_type]


def read(payload: str) -> Notification:
    """Return a notification. Any client can send one: a foreign payload only means "poll"."""
    try:
        body = json.loads(payload)
        return Notification(str(body["writer"]), tuple(_unpacked(item) for item in body["events"]))
    except (ValueError, TypeError, KeyError, LookupError, AttributeError, OverflowError):
        return Notification(payload, ())


def _checked(payload: str) -> str:
    if len(payload.encode()) > PAYLOAD_MAX_BYTES:
        raise InvalidValue(field="event_type", reason=f"a notification has room for {PAYLOAD_MAX_BYTES} bytes")
    return payload


def _id_of(event: Event) -> str:
    one = event.subject_id or event.scope_id or event.trajectory_id or event.event_id
    if event.event_type.startswith(_POLICY):
        one = event.trajectory_id or one
    return str(one)


def _packed(event: Event) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": str(event.event_id),
        "family": event.family.value,
        "type": event.event_type,
        "at_us": to_us(event.created_at),
    }
    if event.trajectory_id is not None:
        body["trajectory"] = str(event.trajectory_id)
    if event.scope_id is not None:
        body["scope"] = str(event.scope_id)
    if event.subject_type is not None:
        body["subject"] = [str(event.subject_type), str(event.subject_id)]
    return body


def _unpacked(body: dict[str, Any]) -> Event:
    kind, subject = body.get("subject", (None, None))
    if "subject" in body and (kind is None or subject is None):
        raise ValueError("a subject is a kind and an id")
    trajectory, scope = body.get("trajectory"), body.get("scope")
    event = Event(
        event_id=EventId(uuid.UUID(body["id"])),
        family=EventFamily(body["family"]),
        event_type=str(body["type"]),
        created_at=from_us(int(body["at_us"])),
        trajectory_id=None if trajectory is None else TrajectoryId(uuid.UUID(trajectory)),
        scope_id=None if scope is None else ScopeId(uuid.UUID(scope)),
        subject_type=None if kind is None else kind_named(kind),
        subject_id=None if subject is None else uuid.UUID(subject),
    )
    event.payload["id"] = _id_of(event)
    return event
