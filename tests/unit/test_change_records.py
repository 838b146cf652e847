"""What a transaction leaves for others: packed change records, packed content. Source: design section 5."""

from __future__ import annotations

import pytest
from support.entities import plain

from caliber.schema.relations import SCOPE, TRAJECTORY, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.changes import DELETE, UPSERT, pack_changes, unpack_changes
from caliber.storage.write.unit_of_work import pack_content, unpack_content


def test_content_is_packed_whatever_its_bytes() -> None:
    trajectory = plain(TRAJECTORY)
    scope = plain(SCOPE, trajectory_id=trajectory.trajectory_id)
    turn = plain(TURN, trajectory_id=trajectory.trajectory_id, scope_id=scope.scope_id, content=bytes(range(256)))
    row = codec_of(TURN).encode(turn, 7)
    body = unpack_content(pack_content(TURN, row))
    assert body["content"] == bytes(range(256))
    assert body["role"] == turn.role


def test_change_records_pack_runs_and_refuse_damage() -> None:
    entries = [(10, UPSERT, 1, 1), (10, UPSERT, 2**40, 3), (10, DELETE, 5, 2), (4, UPSERT, 1, 1)]
    packed = pack_changes(entries)
    assert list(unpack_changes(packed)) == entries
    assert list(unpack_changes(b"")) == []
    assert len(packed) == 3 * 6 + 4 * 12
    for broken in (packed[:-1], packed[:3], b"\xff" + packed[1:3], packed[:1] + b"\x09" + packed[2:]):
        with pytest.raises(Exception, match="damaged"):
            list(unpack_changes(broken))
