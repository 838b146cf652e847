"""Notifications: their content, and the handling of those that others sent. Source: C-242, C-312; decision 0099."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caliber.backends.postgres.writing.notify import (
    PAYLOAD_MAX_BYTES,
    CommitNotifier,
    channel_of,
    named_channel,
    prefix_of,
    read,
)
from caliber.kernels import uuid7
from caliber.model.errors import InvalidValue
from caliber.model.events import Event, EventFamily
from caliber.model.references import EntityType, EventId, ScopeId, TrajectoryId
from caliber.model.time import from_us

WRITER = bytes(range(16))
NOTIFIER = CommitNotifier("tenant", WRITER)


def event(event_type: str, *, whole: bool = True) -> Event:
    return Event(
        event_id=EventId(uuid7()),
        family=EventFamily.TRACE,
        event_type=event_type,
        created_at=from_us(1_750_000_000_000_000),
        trajectory_id=TrajectoryId(uuid7()) if whole else None,
        scope_id=ScopeId(uuid7()) if whole else None,
        subject_type=EntityType.ARTIFACT if whole else None,
        subject_id=uuid7() if whole else None,
        principal="somebody's name",
        payload={"goal": "content"},
    )


@given(
    st.lists(st.tuples(st.sampled_from(["artifact_create", "note_create", "caliber_done"]), st.booleans()), max_size=90)
)
def test_every_event_is_told_once_in_order_within_the_limit(kinds: list[tuple[str, bool]]) -> None:
    events = [event(kind, whole=whole) for kind, whole in kinds]
    channels, payloads = (json.loads(part) for part in NOTIFIER.messages(events))
    assert all(len(payload.encode()) <= PAYLOAD_MAX_BYTES < 8_000 for payload in payloads)
    assert all(len(channel.encode()) <= 63 and channel.startswith("caliber_") for channel in channels)
    told = [
        read(payload) for channel, payload in zip(channels, payloads, strict=True) if channel == channel_of("tenant")
    ]
    assert told
    assert {each.writer for each in told} == {WRITER.hex()}
    heard = [one for each in told for one in each.events]
    assert [one.event_id for one in heard] == [one.event_id for one in events]
    for one, was in zip(heard, events, strict=True):
        assert (one.event_type, one.created_at, one.trajectory_id, one.scope_id, one.subject_type, one.subject_id) == (
            was.event_type, was.created_at, was.trajectory_id, was.scope_id, was.subject_type, was.subject_id,
        )  # fmt: skip
    assert not any("content" in payload or "somebody" in payload for payload in payloads)
    assert channels.count(named_channel("tenant", "artifact_created")) == sum(
        kind == "artifact_create" for kind, _ in kinds
    )
    assert channels.count(named_channel("tenant", "done")) == sum(kind == "caliber_done" for kind, _ in kinds)


def test_what_no_payload_has_room_for_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidValue, match="7999 bytes"):
        NOTIFIER.messages([event("x" * 8_000)])


def test_tenants_of_one_database_have_channels_of_their_own() -> None:
    assert prefix_of("one") != prefix_of("other")
    long = ["a" * 55, "a" * 54 + "b"]
    channels = [named_channel("one", name) for name in long]
    assert len(set(channels)) == 2
    assert all(len(channel) == 63 and channel.startswith(prefix_of("one")) for channel in channels)


@given(st.text() | st.sampled_from(["{}", "[]", '{"writer":1,"events":[1]}', '{"writer":"a","events":[{"id":"x"}]}']))
def test_what_is_not_ours_is_no_event(payload: str) -> None:
    assert read(payload).events == ()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=4), max_leaves=6
    )
)
def test_damaged_events_are_no_events(value: object) -> None:
    _, payloads = NOTIFIER.messages([event("artifact_create")])
    body = json.loads(json.loads(payloads)[0])
    for name in ("id", "family", "subject", "at_us"):
        damaged = {**body["events"][0], name: value}
        told = read(json.dumps({**body, "events": [damaged]}))
        assert told.events == () or (name == "at_us" and isinstance(value, int | str))
