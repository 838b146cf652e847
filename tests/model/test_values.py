"""Time, ids, enums and records of the model."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pickle
import uuid
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType

import pytest
from support.cases import each

import caliber.model
from caliber.model import time
from caliber.model.access import Right
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.references import EntityRef, EntityType, uuid_from_bytes

SUBSYSTEMS: tuple[ModuleType, ...] = tuple(
    importlib.import_module(f"caliber.model.{name}")
    for name in [
        "access", "agents", "context", "declared", "embedding", "erasure", "events", "knowledge", "pcp", "references",
        "storage", "trajectory", "trust", "windows",
    ]
)  # fmt: skip
ENUMS = [
    value
    for module in SUBSYSTEMS
    for value in vars(module).values()
    if inspect.isclass(value) and issubclass(value, enum.Enum) and value.__module__ == module.__name__
]
RECORDS = [
    value
    for module in SUBSYSTEMS
    for value in vars(module).values()
    if inspect.isclass(value) and value.__module__ == module.__name__ and value not in ENUMS
]


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("1h", 3_600_000), ("7d", 604_800_000), ("2w", 1_209_600_000)],
)
def test_durations_parse_to_milliseconds(text: str, ms: int) -> None:
    # C-169 C-311
    assert time.parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "30", "s", "30 s", " 30s", "30s ", "-30s", "+30s", "3.5s", "30S", "30sec", "1h30m", "٣s", "30s\n", "nonsense"],
)
def test_malformed_durations_are_errors_never_zero(text: str) -> None:
    # C-125 C-311 K-070
    with pytest.raises(InvalidValue) as caught:
        time.parse_duration_ms(text, "lock_timeout")
    assert caught.value.context["field"] == "lock_timeout"


def test_durations_beyond_64_bits_are_errors() -> None:
    # C-011 C-169
    assert time.parse_duration_ms(f"{2**63 - 1}ms") == 2**63 - 1
    for text in (f"{2**63}ms", f"{2**63 // 1_000 + 1}s", "9" * 10_000 + "w"):
        with pytest.raises(InvalidValue, match="64 bits"):
            time.parse_duration_ms(text)


def test_naive_datetimes_are_rejected() -> None:
    # C-010
    with pytest.raises(InvalidValue) as caught:
        time.to_us(datetime(2026, 1, 1), "occurred_at")  # noqa: DTZ001  (naive is the point)
    assert caught.value.context["field"] == "occurred_at"


@pytest.mark.parametrize(
    "value",
    [
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_instants_that_utc_has_no_year_for_are_rejected(value: datetime) -> None:
    with pytest.raises(InvalidValue, match="years 1 to 9999"):
        time.to_us(value)
    for edge in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        assert time.from_us(time.to_us(edge)) == edge


def test_instants_are_microseconds_whatever_their_zone() -> None:
    # C-010
    instant = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    elsewhere = instant.astimezone(timezone(timedelta(hours=-7)))
    assert time.to_us(instant) == time.to_us(elsewhere) == int(instant.timestamp()) * 1_000_000 + 678_901
    assert time.from_us(time.to_us(elsewhere)) == instant
    assert time.from_us(0).utcoffset() == timedelta(0)


def test_fixed_clock_moves_only_when_told() -> None:
    clock = time.FixedClock(1_000)
    assert (clock.now_us(), clock.now_us()) == (1_000, 1_000)
    clock.advance(ms=2, us=3)
    assert clock.now_us() == 3_003


def test_system_clock_is_utc_now() -> None:
    before = datetime.now(UTC)
    measured = time.from_us(time.SystemClock().now_us())
    assert before - timedelta(milliseconds=1) <= measured <= datetime.now(UTC)


def test_uuid_from_bytes_equals_the_standard_library() -> None:
    for raw in (bytes(16), b"\xff" * 16, uuid.uuid4().bytes):
        ours, theirs = uuid_from_bytes(raw), uuid.UUID(bytes=raw)
        assert ours == theirs
        assert hash(ours) == hash(theirs)
        assert pickle.loads(pickle.dumps(ours)) == theirs


@each("kind", [kind for kind in ENUMS if issubclass(kind, enum.StrEnum)])
def test_enum_members_equal_their_lower_case_text(kind: type[enum.StrEnum]) -> None:
    # design section 7: "enums compare equal to their lower-case text"
    for member in kind:
        assert member == member.name.lower()


@pytest.mark.parametrize(("kind", "values"), [
    (caliber.model.TTLKind, "persistent session scope duration"),  # C-012
    (caliber.model.TrajectoryStatus, "active completed failed suspended"),
    (caliber.model.OutcomeStatus, "success partial failure system_abort"),  # K-010
    (caliber.model.SectionType,
     "system persona about_user notes history artifacts recall told user earlier current custom"),  # C-053, design 5
    (caliber.model.AssemblyAction, "include exclude compress truncate"),  # C-056
    (caliber.model.ContextPersistence, "ephemeral ttl permanent"),  # C-100
    (caliber.model.ValidationMode, "on_mutation always"),  # C-101
    (caliber.model.PruneStrategy, "lru relevance hybrid"),  # C-250
    (caliber.model.RecoveryFrequency, "per_scope per_turn manual"),  # C-252
    (caliber.model.ConflictResolution, "newest highest_confidence manual"),  # C-256
    (caliber.model.DistanceMetric, "cosine l2 inner_product"),  # C-488
    (caliber.model.Trigger, "task_start task_end scope_close turn schedule"),  # C-147
    (caliber.model.AgentRole, "orchestrator optimizer reviewer executor"),  # M-118
])  # fmt: skip
def test_closed_sets_hold_exactly_the_specified_values(kind: type[enum.StrEnum], values: str) -> None:
    assert sorted(kind) == sorted(values.split())


@each("record", RECORDS)
def test_records_are_frozen_and_slotted(record: type) -> None:
    # design section 2: "entities as frozen slotted dataclasses"
    assert dataclasses.is_dataclass(record)
    assert record.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(record)


def test_public_names_are_listed_exist_and_are_ours() -> None:
    assert len(caliber.model.__all__) == len(set(caliber.model.__all__))
    for name in caliber.model.__all__:
        value = getattr(caliber.model, name)
        assert getattr(value, "__module__", "caliber.model").startswith(("caliber.model", "types", "typing")), name
    for kind in ENUMS:
        assert kind.__name__ in caliber.model.__all__ or kind is Right, "rights are given and listed by their text"


def test_a_user_of_a_name_is_the_same_everywhere() -> None:
    maria = EntityRef.user("maria")
    assert maria == EntityRef(EntityType.USER, uuid.UUID("17175620-9fcd-5927-8831-a4b6f110cfec"))
    assert EntityRef.user(" maria\n") == maria
    assert EntityRef.user("Maria") != maria
    assert EntityRef.user("Zoe\u0308") == EntityRef.user("Zo\u00eb")
    with pytest.raises(InvalidValue, match="empty"):
        EntityRef.user(" ")
    with pytest.raises(DTypeError, match="str"):
        EntityRef.user(7)  # type: ignore[arg-type]
