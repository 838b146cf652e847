"""Creation and reading of checkpoints of a task's state; nothing restores one yet. Source: C-266 to C-270, K-023."""

from __future__ import annotations

import json
import uuid
import zlib
from typing import Any

from caliber.kernels import uuid7
from caliber.model.errors import StorageError
from caliber.model.ids import CheckpointId
from caliber.model.pcp import Checkpoint
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, Trajectory
from caliber.model.windows import ContextWindow
from caliber.schema.relations import CHECKPOINT
from caliber.storage.compile.codec import dump_json
from caliber.storage.write.unit_of_work import UnitOfWork

CODEC_JSON = "json"
CODEC_ZLIB = "json+zlib"
_MAX_STATE_BYTES = 64 << 20


def window_as_json(window: ContextWindow) -> dict[str, Any]:
    """Return the part of a window that a checkpoint keeps: its sections, their sources and its figures."""
    return {
        "window_id": str(window.window_id),
        "assembled_at": window.assembled_at.isoformat(),
        "max_tokens": window.max_tokens,
        "used_tokens": window.used_tokens,
        "config_hash": window.config_hash,
        "position": [window.position.epoch, window.position.sequence],
        "sections": [
            {
                "type": section.section_type.value,
                "name": section.name,
                "content": section.content,
                "token_count": section.token_count,
                "priority": section.priority,
                "sources": [
                    [ref.source_type.value, None if ref.id is None else str(ref.id), ref.version]
                    for ref in section.sources
                ],
            }
            for section in window.sections
        ],
    }


def build_state(
    trajectory: Trajectory, scopes: list[Scope], window: ContextWindow, *, compress: bool
) -> tuple[str, bytes]:
    """Return codec and bytes of a checkpoint's state (C-268)."""
    open_scopes = [scope for scope in scopes if scope.is_open]
    state = {
        "trajectory_status": trajectory.status.value,
        "scope_count": len(scopes),
        "active_scope_sequence": max((scope.sequence_number for scope in open_scopes), default=None),
        "turn_number": trajectory.turn_count,
        "context_snapshot": window_as_json(window),
    }
    raw = dump_json(state).encode()
    return (CODEC_ZLIB, zlib.compress(raw)) if compress else (CODEC_JSON, raw)


def read_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint's state. Raises: StorageError when it is damaged or of an unknown codec."""
    try:
        if checkpoint.codec == CODEC_ZLIB:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(checkpoint.state, _MAX_STATE_BYTES)
        elif checkpoint.codec == CODEC_JSON:
            raw = checkpoint.state
        else:
            raise StorageError(f"checkpoint {checkpoint.checkpoint_id} has the unknown codec {checkpoint.codec!r}")
        state: dict[str, Any] = json.loads(raw)
    except (zlib.error, ValueError) as error:
        raise StorageError(f"the state of checkpoint {checkpoint.checkpoint_id} is damaged") from error
    return state


def insert_checkpoint(
    uow: UnitOfWork,
    trajectory: Trajectory,
    scope_id: uuid.UUID | None,
    codec: str,
    state: bytes,
    *,
    keep: int,
) -> Checkpoint:
    """Store a recoverable checkpoint and drop all but the newest ``keep`` of its trajectory (C-266, K-092)."""
    checkpoint = Checkpoint(
        checkpoint_id=CheckpointId(uuid7()),
        trajectory_id=trajectory.trajectory_id,
        turn_number=trajectory.turn_count,
        codec=codec,
        state=state,
        recoverable=True,
        created_at=from_us(uow.now_us),
        scope_id=scope_id,  # type: ignore[arg-type]
    )
    uow.insert(CHECKPOINT, checkpoint)
    uow.execute("checkpoint.prune", trajectory.trajectory_id.bytes, keep)
    return checkpoint
