"""Validation of new turns, and appending them to a scope in a transaction; turns as a text transcript.

Source: C-026 to C-029, C-235, K-022, K-094.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from caliber.access.owners import require_own_trust
from caliber.config import CaliberConfig
from caliber.config.lifecycle import TrustConfig
from caliber.engine.stale_inputs import StaleInputs
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.model import arguments
from caliber.model.errors import (
    Conflict,
    ConstraintViolation,
    DTypeError,
    InvalidValue,
    NotFound,
    RequiredFieldMissing,
    StorageError,
)
from caliber.model.forms.reading import calls_of, thoughts_of
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, TrajectoryId, TurnId, uuid_from_bytes
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, ToolCall, Trajectory, TrajectoryStatus, Turn, TurnRole
from caliber.model.trust import TrustLabel, least_trusted
from caliber.schema.relation import Relation
from caliber.schema.relations import SCOPE, TRAJECTORY, TURN, TURN_SUMMARY
from caliber.storage.compile.codec import Row, codec_of, damaged, damaged_row, decoder_of
from caliber.storage.write.group import Pipelined
from caliber.storage.write.unit_of_work import Query, UnitOfWork

LabelOf = Callable[[TurnRole, str | None], TrustLabel]
"""Gives the label of a turn that states none, by its role and name."""

_BY_KEY = ("trajectory_id", "idempotency_key")
_SCOPE_OWNER = codec_of(SCOPE).index("trajectory_id")
_SCOPE_TRUST = codec_of(SCOPE).index("trust")
_label_of: Callable[[str], TrustLabel] = decoder_of(SCOPE.column("trust"))  # type: ignore[assignment]
_NEXT_SEQUENCE = codec_of(SCOPE).index("next_sequence")
_TURN_COUNT = codec_of(TRAJECTORY).index("turn_count")
_STATUS = codec_of(TRAJECTORY).index("status")


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn as checked, before it has a place; ``trust`` is its caller's label when ``labelled``, else the rules'."""

    role: TurnRole
    content: bytes
    token_count: int
    name: str | None
    tool_calls: tuple[ToolCall, ...]
    tool_call_id: str | None
    thinking: tuple[dict[str, Any], ...] | None
    is_error: bool | None
    occurred_at: datetime | None
    utc_offset_s: int | None
    idempotency_key: str | None
    model_id: str | None
    raw_form: bytes | None
    trust: TrustLabel
    labelled: bool

    def says(self, turn: Turn) -> bool:
        """Return whether ``turn`` equals this turn in everything that callers set."""
        return (
            self.role is turn.role
            and self.content == turn.content
            and self.name == turn.name
            and self.tool_calls == turn.tool_calls
            and self.tool_call_id == turn.tool_call_id
            and self.raw_form == turn.raw_form
            and not (self.labelled and self.trust is not turn.trust)
        )


def check_turn(
    estimator: Estimator | None,
    label_of: LabelOf,
    *,
    role: Any,
    content: Any,
    name: Any = None,
    tool_calls: Any = (),
    tool_call_id: Any = None,
    thinking: Any = None,
    is_error: Any = None,
    occurred_at: Any = None,
    idempotency_key: Any = None,
    model_id: Any = None,
    token_count: Any = None,
    raw: Any = None,
    trust: Any = None,
) -> NewTurn:
    """Return a validated turn, labelled by ``label_of`` if its caller gives no label. Raises: InputError kinds."""
    role = arguments.as_enum(role, TurnRole, "role")
    body = arguments.as_content(content, "content", allow_empty=True)
    none = tool_calls is None or (isinstance(tool_calls, tuple) and not tool_calls)  # not by ==, which arrays answer
    calls = () if none else calls_of(tool_calls, "tool_calls")
    if calls and role is not TurnRole.ASSISTANT:
        raise InvalidValue(field="tool_calls", reason="only assistant turns call tools")
    if (tool_call_id is not None or is_error is not None) and role is not TurnRole.TOOL:
        field = "is_error" if tool_call_id is None else "tool_call_id"
        raise InvalidValue(field=field, reason="only tool turns answer a call")
    if tool_call_id is None and role is TurnRole.TOOL:
        raise RequiredFieldMissing("tool_call_id is required: a tool turn answers a call", field="tool_call_id")
    if thinking is not None:
        thinking = thoughts_of(thinking, "thinking") or None
        if thinking and role is not TurnRole.ASSISTANT:
            raise InvalidValue(field="thinking", reason="only assistant turns have thoughts")
    if token_count is None:
        assert estimator is not None
        # As TURN declares: every turn comes by here, and enters no more modules.
        tokens = estimator.tokens_of_bytes(body)
    else:
        tokens = arguments.as_whole(token_count, "token_count")
    name = arguments.as_name(name, "name")
    occurred_at = arguments.as_instant(occurred_at, "occurred_at")
    offset = None if occurred_at is None else occurred_at.utcoffset()
    return NewTurn(
        role=role,
        content=body,
        token_count=tokens,
        name=name,
        tool_calls=calls,
        tool_call_id=arguments.as_name(tool_call_id, "tool_call_id"),
        thinking=thinking,
        is_error=None if is_error is None else arguments.as_flag(is_error, "is_error"),
        occurred_at=occurred_at,
        # UTC is how programs write instants, and nobody's zone.
        utc_offset_s=None if not offset else int(offset.total_seconds()),
        idempotency_key=arguments.as_name(idempotency_key, "idempotency_key"),
        model_id=arguments.as_name(model_id, "model_id"),
        raw_form=None if raw is None else _raw_form(raw),
        trust=label_of(role, name) if trust is None else arguments.as_enum(trust, TrustLabel, "trust"),
        labelled=trust is not None,
    )


def _raw_form(raw: Any) -> bytes:
    """Return a message in the form of its program as it is stored. Raises: InputError kinds."""
    if isinstance(raw, bytes | bytearray | memoryview):
        return b"\0" + arguments.as_content(raw, "raw", allow_empty=True)
    from caliber.storage.compile.json_values import plain_json  # few turns have one

    text = json.dumps(plain_json(raw, "raw"), ensure_ascii=False, separators=(",", ":"))  # in the order of its members
    return arguments.as_content(text, "raw", allow_empty=False)


def own_words(estimator: Estimator, config: CaliberConfig, content: str) -> NewTurn:
    """Return a turn in the words of an agent, labelled by the rules."""
    return check_turn(estimator, config.trust.of_turn, role=TurnRole.ASSISTANT, content=content)


def check_turns(estimator: Estimator, label_of: LabelOf, items: Any) -> list[NewTurn]:
    """Return checked turns from mappings with the keywords of ``append_turn``. Raises: InputError kinds."""
    out = []
    for at, item in enumerate(arguments.as_items(items, "turns", "an iterable of mappings")):
        if not isinstance(item, Mapping):
            raise DTypeError(
                field=f"turns[{at}]", expected="a mapping of append_turn's keywords", got=type(item).__name__
            )
        unknown = sorted(set(item) - _KEYWORDS)
        if unknown or "role" not in item or "content" not in item:
            reason = f"unknown keys: {', '.join(map(str, unknown))}" if unknown else "role and content are required"
            raise InvalidValue(field=f"turns[{at}]", reason=reason)
        out.append(check_turn(estimator, label_of, **item))
    return out


_KEYWORDS = {"role", "content", *(check_turn.__kwdefaults__ or ())}


def labelled_by_user(turn: NewTurn, user: str, trust: TrustConfig) -> NewTurn:
    """Return the turn of a ``user``, by its label: in no role are its words trusted more than a user's.

    Raises: PermissionDenied where it states a higher label.
    """
    limit = least_trusted(trust.of_turn(turn.role, turn.name), trust.user_turns)
    if not turn.labelled:
        return dataclasses.replace(turn, trust=limit)
    require_own_trust(user, turn.trust, limit, "trust")
    return turn


def append_turns(
    uow: UnitOfWork, scope_id: uuid.UUID, new: Sequence[NewTurn], author_id: uuid.UUID | None = None
) -> Pipelined[list[Turn]]:
    """Append turns to an open scope, in order, all or none; return them as stored.

    ``author_id`` is who wrote them, if not the user or agent of the task. A turn whose idempotency key was seen before
    is returned as it is.

    Raises: NotFound, ConstraintViolation for a closed scope or a trajectory that is not active,
        Conflict when a key comes again with other content, or with another label.
    """
    fresh, existing = _split(uow, scope_id, new)
    out: list[Turn] = []
    if fresh:
        spent = made = 0
        for turn in fresh:
            if turn.role is TurnRole.ASSISTANT:
                made += turn.token_count
            else:
                spent += turn.token_count
        counted = (spent, made, uow.now_us, len(fresh), scope_id.bytes)
        # The trajectory before its scope, the usual lock order. Rows, not entities: this hottest path reads four fields
        # of two records.
        trajectories, scopes = yield (
            Query(TRAJECTORY, "append.trajectory", counted, scope_id.bytes),
            Query(SCOPE, "append.scope", counted, scope_id.bytes),
        )
        if not scopes:
            scope: Scope = uow.get(SCOPE, scope_id.bytes)
            reason = f"scope {scope.scope_id} is closed; open another one"
            raise ConstraintViolation(constraint="scope_open", reason=reason)
        if not trajectories:  # the database guards that by itself
            raise damaged(f"scope {scope_id} is damaged: there is no trajectory that it belongs to", relation="scope")
        above = trajectories[0]
        trajectory_id = TrajectoryId(uuid_from_bytes(scopes[0][_SCOPE_OWNER]))
        if above[_STATUS] != TrajectoryStatus.ACTIVE:
            _check(TRAJECTORY, above)
            reason = f"trajectory {trajectory_id} is {above[_STATUS]}"
            raise ConstraintViolation(constraint="trajectory_active", reason=reason)
        sequence = scopes[0][_NEXT_SEQUENCE] - len(fresh)
        number = above[_TURN_COUNT] - len(fresh)
        now = from_us(uow.now_us)
        try:
            before = least = _label_of(scopes[0][_SCOPE_TRUST])
        except StorageError:
            _check(SCOPE, scopes[0])
            raise
        for turn in fresh:
            # A model's output derives from its input: all earlier turns of this scope.
            inherits = turn.role is TurnRole.ASSISTANT and not turn.labelled
            trust = least_trusted(turn.trust, least) if inherits else turn.trust
            least = least_trusted(least, trust)
            stored = Turn(
                turn_id=TurnId(uuid7()),
                trajectory_id=trajectory_id,
                scope_id=ScopeId(scope_id),
                sequence=sequence,
                turn_number=number,
                role=turn.role,
                content=turn.content,
                token_count=turn.token_count,
                created_at=now,
                occurred_at=turn.occurred_at,
                utc_offset_s=turn.utc_offset_s,
                name=turn.name,
                tool_calls=turn.tool_calls,
                tool_call_id=turn.tool_call_id,
                thinking=turn.thinking,
                is_error=turn.is_error,
                model_id=turn.model_id,
                idempotency_key=turn.idempotency_key,
                raw_form=turn.raw_form,
                trust=trust,
                author_id=author_id,
            )
            uow.insert(TURN, stored, trust_handled=True)  # the answer above has the scope's
            out.append(stored)
            sequence += 1
            number += 1
        if least is not before:
            yield (Query(SCOPE, "scope.distrust", (least.value, scope_id.bytes), scope_id.bytes),)
    if not existing:
        return out
    stored_turns = iter(out)
    return [existing[at] if at in existing else next(stored_turns) for at in range(len(new))]


def turns_to_change(uow: UnitOfWork, scope_id: uuid.UUID) -> list[Turn]:
    """Return the turns of an open scope, in order; other writers of it wait until the transaction has ended.

    Raises: NotFound, ConstraintViolation for a closed scope or a trajectory that is not active.
    """
    task = uow.get(SCOPE, scope_id.bytes).trajectory_id.bytes
    # In the usual order, and before they are looked at: somebody may be closing the scope.
    uow.lock(TRAJECTORY, task)
    uow.lock(SCOPE, scope_id.bytes)
    scope: Scope = uow.get(SCOPE, scope_id.bytes)
    trajectory: Trajectory = uow.get(TRAJECTORY, task)
    if not scope.is_open:
        raise ConstraintViolation(constraint="scope_open", reason=f"scope {scope_id} is closed; it stays as it is")
    if trajectory.status is not TrajectoryStatus.ACTIVE:
        reason = f"trajectory {trajectory.trajectory_id} is {trajectory.status.value}"
        raise ConstraintViolation(constraint="trajectory_active", reason=reason)
    turns: list[Turn] = uow.select_path(TURN, "list_by_scope", scope_id.bytes)
    return [turn for turn in turns if turn.rolled_back_at is None]


def take_back(uow: UnitOfWork, old: Turn) -> None:
    """Take a turn out of its conversation, and the summaries with it; windows that were made with it stay.

    Raises: StaleInputs if the turn was changed since it was read.
    """
    found = _unchanged(uow, old)
    uow.update(TURN, dataclasses.replace(found, rolled_back_at=from_us(uow.now_us)))
    for summary in uow.select_entities(
        TURN_SUMMARY, "turn_summary.overlapping", old.scope_id.bytes, old.turn_number, old.turn_number
    ):
        uow.delete(TURN_SUMMARY, summary)


def _unchanged(uow: UnitOfWork, old: Turn) -> Turn:
    found: Turn | None = uow.find(TURN, old.turn_id.bytes)
    if found is None or found.version != old.version:
        raise StaleInputs(entity_type="turn", id=old.turn_id, reason="it was changed since it was read")
    return found


def replace_turn(uow: UnitOfWork, old: Turn, new: NewTurn) -> Turn:
    """Write a message in place of a stored turn, which stays in windows that were made with it.

    It is trusted no more than the turns before it let the old one be.

    Raises: StaleInputs if the turn was changed since it was read.
    """
    found = _unchanged(uow, old)
    inherits = new.role is TurnRole.ASSISTANT and not new.labelled
    changed: Turn = uow.update(
        TURN,
        dataclasses.replace(
            found,
            role=new.role,
            content=new.content,
            token_count=new.token_count,
            name=new.name,
            tool_calls=new.tool_calls,
            tool_call_id=new.tool_call_id,
            thinking=new.thinking,
            is_error=new.is_error,
            model_id=new.model_id,
            raw_form=new.raw_form,
            occurred_at=new.occurred_at or found.occurred_at,
            idempotency_key=new.idempotency_key or found.idempotency_key,
            trust=least_trusted(new.trust, found.trust) if inherits else new.trust,
        ),
    )
    return changed


def _check(relation: Relation, row: Row) -> None:
    """Raise StorageError that names a row, if that is damaged."""
    found = damaged_row(relation, row)
    if found is not None:
        raise found from None


def _split(uow: UnitOfWork, scope_id: uuid.UUID, new: Sequence[NewTurn]) -> tuple[list[NewTurn], dict[int, Turn]]:
    """Return the turns to write, and those already there by their place."""
    if all(turn.idempotency_key is None for turn in new):
        return list(new), {}
    scope: Scope | None = uow.find(SCOPE, scope_id.bytes)
    if scope is None:
        raise NotFound(entity_type="scope", id=scope_id)
    fresh: list[NewTurn] = []
    existing: dict[int, Turn] = {}
    pending: dict[str, NewTurn] = {}
    for at, turn in enumerate(new):
        key = turn.idempotency_key
        if key is None:
            fresh.append(turn)
            continue
        if key in pending:
            raise Conflict(entity_type="turn", id="", reason="an idempotency key comes twice in one call")
        found: Turn | None = uow.find_by(TURN, _BY_KEY, scope.trajectory_id.bytes, key)
        if found is not None:
            if not turn.says(found):
                reason = "its idempotency key was used for other content or trust"
                raise Conflict(entity_type="turn", id=found.turn_id, reason=reason)
            existing[at] = found
        else:
            pending[key] = turn
            fresh.append(turn)
    return fresh, existing


def transcript(turns: Sequence[Turn]) -> str:
    """Return turns as one text, one paragraph each, with the speaker."""
    return "\n\n".join(f"{turn.name or turn.role.value}: {turn.text}" for turn in turns if turn.content)
