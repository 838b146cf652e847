"""Configuration section of declared memories: names, fields, indexes, retention, and triggers.

Source: C-130 to C-148, K-058 to K-060, K-068.
"""

from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from caliber.config.cron import check_cron
from caliber.config.faults import Faults
from caliber.config.knobs import AsList, Duration, Flag, Int, Name, Section, Text, knob
from caliber.model.declared import MemoryCategory, Trigger
from caliber.model.time import format_duration
from caliber.model.trajectory import ArtifactType
from caliber.schema import memory_types as data
from caliber.schema.memory_types import FieldType, IndexType, Lifecycle, MemoryType, RetentionKind

NAME_CHARS: Final = 48
"""A table's name has at most 63 bytes on PostgreSQL, of which a prefix and an index's ending take some."""

MEMORIES_MAX: Final = 128
FIELDS_MAX: Final = 200

MemoryName = Annotated[str, Field(strict=True, pattern=rf"^[a-z_][a-z0-9_]{{0,{NAME_CHARS - 1}}}$")]

_SYNONYMS: Final = {"turn": "turn_buffer"}


def memory_name(value: str) -> str:
    """Return the one name of a memory that has two."""
    return _SYNONYMS.get(value, value)


MemoryRef = Annotated[MemoryName, AfterValidator(memory_name)]
"""The name of a memory; ``turn`` is another word for ``turn_buffer``."""


def check_trigger(faults: Faults, on: Trigger, cron: str | None) -> None:
    """Add the faults of a trigger: a schedule, and nothing else, has cron fields."""
    if on is Trigger.SCHEDULE and cron is None:
        faults.missing("cron")
    if on is not Trigger.SCHEDULE and cron is not None:
        faults.clash("cron", "on", "only on = schedule takes it")


def trigger_text(on: Trigger, cron: str | None) -> str:
    """Return a trigger as the language writes it."""
    return on.value if cron is None else f'schedule("{cron}")'


class WhenConfig(Section):
    """A trigger."""

    on: Trigger = knob("What sets it off.", "C-147")
    cron: Annotated[Name, AfterValidator(check_cron)] | None = knob(
        "With on = schedule and only then: when, as five cron fields.", "C-147", optional=True
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        check_trigger(faults, self.on, self.cron)
        faults.done()
        return self

    @property
    def shown(self) -> str:
        """The trigger as the language writes it."""
        return trigger_text(self.on, self.cron)

    @property
    def declared(self) -> data.When:
        """The trigger as data."""
        return data.When(self.on, self.cron)


class FieldConfig(Section):
    """One field of a memory's records."""

    name: MemoryName = knob("What it is called.", "C-133")
    type: FieldType = knob("What it holds.", "C-134")
    values: Annotated[tuple[Text, ...], AsList] = knob(
        "Of an enum and only of one: the values it can have.", "C-134", optional=True, default=()
    )
    optional: Flag = knob("Whether a record can be without it.", "ours", optional=True, default=False)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        if self.type is FieldType.ENUM and not self.values:
            faults.missing("values")
        elif self.values and self.type is not FieldType.ENUM:
            faults.clash("values", "type", "only an enum has values")
        for at, value in enumerate(self.values):
            if value in self.values[:at]:
                faults.wrong(f"values[{at}]", "is named twice")
        faults.done()
        return self


class IndexConfig(Section):
    """One field that records are looked up by."""

    field: MemoryName = knob("The field.", "C-139")
    type: IndexType = knob("How it is looked up.", "C-139")


class MemoryRetentionConfig(Section):
    """Retention of the records of one memory."""

    kind: RetentionKind = knob("For good, as long as what they belong to, for a time, or the newest only.", "C-136")
    duration_ms: Duration | None = knob("With kind duration: how long.", "C-136", unit="ms", optional=True, gt=0)
    count: Int | None = knob("With kind max: how many.", "C-137", optional=True, ge=1)
    when: WhenConfig | None = knob("With kind compress_on: what sets it off.", "C-138", optional=True)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        faults.fit(
            self.kind,
            duration_ms=(RetentionKind.DURATION, self.duration_ms),
            count=(RetentionKind.MAX, self.count),
            when=(RetentionKind.COMPRESS_ON, self.when),
        )
        faults.done()
        return self

    @property
    def shown(self) -> str:
        """The retention as the language writes it."""
        if self.duration_ms is not None:
            return format_duration(self.duration_ms)
        if self.when is not None:
            return f"compress_on: {self.when.shown}"
        return self.kind.value if self.count is None else f"max({self.count})"


class MemoryConfig(Section):
    """A memory type: one that every store has, bound by its name, or one of your own."""

    name: MemoryRef = knob("Its name, unique.", "C-130")
    type: MemoryCategory = knob("What kind of memory it is.", "C-131")
    fields: Annotated[tuple[FieldConfig, ...], AsList, Field(min_length=1, max_length=FIELDS_MAX)] = knob(
        "What its records hold.", "C-132"
    )
    retention: MemoryRetentionConfig = knob(
        "How long its records stay; for good, where it is not said.",
        "C-135",
        optional=True,
        default=MemoryRetentionConfig(kind=RetentionKind.PERSISTENT),
    )
    indexes: Annotated[tuple[IndexConfig, ...], AsList] = knob(
        "What its records are looked up by.", "C-139", optional=True, default=()
    )
    lifecycle: Lifecycle = knob(
        "Whether its records end by a call, or by themselves.", "C-142", optional=True, default=Lifecycle.EXPLICIT
    )
    closes_on: WhenConfig | None = knob("With lifecycle auto_close and only then: at what.", "C-142", optional=True)
    artifacts: Annotated[tuple[ArtifactType, ...], AsList] = knob(
        "The types of artifact it is made of.", "C-143", optional=True, default=()
    )
    parent: MemoryRef | None = knob("The memory whose records its own belong to.", "C-144", optional=True)
    inject_on: Annotated[tuple[WhenConfig, ...], AsList] = knob(
        "When its records enter a window by themselves.", "C-145", optional=True, default=()
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        names = [field.name for field in self.fields]
        for at, name in enumerate(names):
            if name in names[:at]:
                faults.wrong(f"fields[{at}].name", f"the field {name} is declared twice")
        indexed = [index.field for index in self.indexes]
        for at, name in enumerate(indexed):
            if name in indexed[:at]:
                faults.wrong(f"indexes[{at}].field", f"the field {name} is indexed twice")
        if self.lifecycle is Lifecycle.AUTO_CLOSE and self.closes_on is None:
            faults.missing("closes_on")
        if self.lifecycle is not Lifecycle.AUTO_CLOSE and self.closes_on is not None:
            faults.clash("closes_on", "lifecycle", "only lifecycle = auto_close takes it")
        faults.done()
        return self

    @property
    def declared(self) -> MemoryType:
        """The memory as data."""
        kept = self.retention
        return MemoryType(
            name=self.name,
            category=self.type,
            fields=tuple(data.Field(item.name, item.type, item.values, item.optional) for item in self.fields),
            retention=data.Retention(
                kept.kind, kept.duration_ms, kept.count, None if kept.when is None else kept.when.declared
            ),
            indexes=tuple(data.Index(item.field, item.type) for item in self.indexes),
            lifecycle=self.lifecycle,
            closes_on=None if self.closes_on is None else self.closes_on.declared,
            artifacts=self.artifacts,
            parent=self.parent,
            inject_on=tuple(item.declared for item in self.inject_on),
        )
