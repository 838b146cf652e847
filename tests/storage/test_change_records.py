"""Records that a transaction leaves for others: packed change records, packed content. Source: design section 5."""

from __future__ import annotations

import struct

import pytest
from contract.entities import plain
from hypothesis import given
from hypothesis import strategies as st

from caliber.schema.relations import SCOPE, TRAJECTORY, TURN
from caliber.schema.relations.storage import CODE_MAX
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.derived import pack_content, unpack_content
from caliber.storage.write.changes import DELETE, RELOAD_RECORD, UPSERT, pack_changes, pack_upserts, unpack_changes


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
    for broken in (packed[:-1], packed[:3], b"\xff" + packed[1:3], packed[:1] + b"\x0b" + packed[2:]):
        with pytest.raises(Exception, match="damaged"):
            list(unpack_changes(broken))


CODES = st.integers(1, CODE_MAX) | st.sampled_from((63, 64, 255, 256, CODE_MAX))
ENTRIES = st.tuples(CODES, st.sampled_from((UPSERT, DELETE)), st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1))


@given(st.lists(ENTRIES))
def test_codes_of_14_bits_come_back(entries: list[tuple[int, int, int, int]]) -> None:
    # issue 14, item 5
    packed = pack_changes(entries)
    assert list(unpack_changes(packed)) == entries
    assert packed != RELOAD_RECORD
    upserts = [entry for entry in entries if entry[:2] == entries[0][:2] and entry[1] == UPSERT]
    if upserts:
        code = upserts[0][0]
        assert pack_upserts(code, [entry[2] for entry in upserts], [entry[3] for entry in upserts]) == pack_changes(
            upserts
        )


@given(CODES.filter(lambda code: code < 256), st.sampled_from((UPSERT, DELETE)))
def test_codes_of_one_byte_leave_the_bits_of_the_operation_alone(code: int, operation: int) -> None:
    packed = pack_changes([(code, operation, 7, 3)])
    assert packed == struct.pack("<BBIqi", code, operation, 1, 7, 3)
    assert list(unpack_changes(packed)) == [(code, operation, 7, 3)]
