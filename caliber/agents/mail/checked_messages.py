"""Arguments of messages, checked and made plain before any transaction."""

from __future__ import annotations

import uuid
from typing import Any, Final

from caliber.access.acting import agent_named
from caliber.agents.mail.delivery import Outgoing
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import AgentMessage, MessageId, MessagePriority, MessageType
from caliber.model.errors import DTypeError, InvalidValue, NotFound, RequiredFieldMissing
from caliber.model.references import ArtifactId, ScopeId, TrajectoryId
from caliber.schema.relation import Relation
from caliber.schema.relations import SCOPE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.json_values import plain_json

PAYLOAD_MAX_BYTES: Final = 262_144
"""Longest payload of a message, as JSON; and longest words of a delegation or handoff together."""
_TYPES: Final[dict[str, MessageType | str]] = {each.value: each for each in MessageType}


def checked(
    engine: Engine,
    principal: Principal,
    payload: Any,
    address: tuple[Any, Any, bool],
    rest: tuple[Any, ...],
    idempotency_key: Any,
    *,
    awaits: bool = False,
) -> Outgoing:
    """Return a message as it can be sent.

    ``rest``: type, topic, priority, expires_in_ms, delay_ms, trajectory, scope, artifacts, reply_to.
    """
    message_type, topic, priority, expires_in_ms, delay_ms, trajectory_id, scope_id, artifact_ids, reply_to = rest
    to, to_type, everyone = address
    if not everyone and (to is None) == (to_type is None):
        raise RequiredFieldMissing("give either to, an agent, or to_type, a type of agents", field="to")
    task = _of_task(engine, principal, TRAJECTORY, trajectory_id, "trajectory_id")
    scope = _of_task(engine, principal, SCOPE, scope_id, "scope_id")
    return Outgoing(
        to=None if to is None else agent_named(engine, to, "to").ref,
        to_type=arguments.as_name(to_type, "to_type"),
        everyone=everyone,
        message_type=message_type_of(message_type),
        topic=arguments.as_name(topic, "topic"),
        priority=arguments.as_enum(priority, MessagePriority, "priority"),
        payload=checked_payload(payload),
        expires_in_ms=None if expires_in_ms is None else arguments.as_duration_ms(expires_in_ms, "expires_in_ms"),
        delay_ms=delay_of(delay_ms),
        trajectory_id=None if task is None else TrajectoryId(task),
        scope_id=None if scope is None else ScopeId(scope),
        artifact_ids=tuple(ArtifactId(each) for each in arguments.as_uuids(artifact_ids, "artifact_ids")),
        reply_to=None if reply_to is None else MessageId(arguments.as_uuid(reply_to, "reply_to")),
        awaits_reply=awaits,
        idempotency_key=arguments.as_name(idempotency_key, "idempotency_key"),
    )


def _of_task(engine: Engine, principal: Principal, relation: Relation, given: Any, field: str) -> uuid.UUID | None:
    """Return the id of a task or scope that the principal sees. Raises: NotFound."""
    if given is None:
        return None
    key = arguments.as_uuid(given, field)
    if not Searching(engine, principal).sees(relation, key):
        raise NotFound(entity_type=relation.name, id=key)
    return key


def message_type_of(value: Any) -> MessageType | str:
    """Return a type of messages: a member of the enumeration, or another short text."""
    name = arguments.as_text(value, "message_type", limit=arguments.MAX_NAME_CHARS)
    return _TYPES.get(name, name)


def delay_of(value: Any) -> int:
    """Return a delay, which may be 0. Units: ms. Raises: InputError kinds."""
    return arguments.as_duration_ms(value, "delay_ms") if arguments.as_whole(value, "delay_ms") else 0


def checked_payload(payload: Any) -> Any:
    """Return a JSON value as it will be read. Raises: as ``plain_json``; InvalidValue for one too long."""
    plain = plain_json(payload, "payload")
    size = len(dump_json(plain).encode())
    if size > PAYLOAD_MAX_BYTES:
        reason = f"{size} bytes of JSON are more than {PAYLOAD_MAX_BYTES}: store an artifact, and send its id"
        raise InvalidValue(field="payload", reason=reason)
    return plain


def as_message(value: Any) -> AgentMessage:
    """Return a message. Raises: DTypeError."""
    if not isinstance(value, AgentMessage):
        raise DTypeError(field="message", expected="AgentMessage", got=type(value).__name__)
    return value
