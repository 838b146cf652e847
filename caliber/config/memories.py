"""Configuration section of declared memories: names, fields, indexes, retention, and triggers.

Source: C-130 to C-148, K-058 to K-060, K-068.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from caliber.config.cron import check_cron
from caliber.config.faults import Faults
from caliber.config.knobs import AsList, Duration, Flag, Int, Name, Section, Text, knob
from caliber.model.declared import MemoryCategory, Trigger
from caliber.model.time import format_duration
from caliber.model.trajectory import ArtifactType
from caliber.schema import memory_types as data
from caliber.schema.memory_types import FieldType, History, IndexType, Lifecycle, MemoryType, RetentionKind

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


PACKAGED: Final = Path(__file__).parent / "packaged"
"""Declarations that come with CALIBER: programs of the language, each compiled beside it (``make gen``)."""


def packaged_names() -> list[str]:
    """Return the names of the declarations that come with CALIBER."""
    return sorted(file.stem for file in PACKAGED.glob("*.caliber"))


def _with_packaged(items: Any) -> Any:
    """Replace each name of a packaged declaration by its memories; those that are declared too count once."""
    if not isinstance(items, (list, tuple)) or not any(isinstance(item, str) for item in items):
        return items
    out: list[Any] = []
    for item in items:
        if isinstance(item, str) and item not in (names := packaged_names()):
            reason = f"is no declaration that comes with CALIBER; there are {', '.join(names)}"
            raise PydanticCustomError("packaged", "{reason}", {"reason": f"{item[:NAME_CHARS]!r} {reason}"})
        made = json.loads((PACKAGED / f"{item}.json").read_text("utf-8")) if isinstance(item, str) else [item]
        out.extend(memory for memory in made if memory not in out)
    return out


WithPackaged = BeforeValidator(_with_packaged)
"""A list of memories in which a text is the name of a packaged declaration."""


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

    on: Trigger = knob("Trigger: the event that starts the actions.", "C-147")
    cron: Annotated[Name, AfterValidator(check_cron)] | None = knob(
        "Time of the schedule, as five cron fields; with on = schedule only.", "C-147", optional=True
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

    name: MemoryName = knob("Name of the field.", "C-133")
    type: FieldType = knob("Type of the field.", "C-134")
    values: Annotated[tuple[Text, ...], AsList] = knob(
        "Values that the field can have; for an enum only.", "C-134", optional=True, default=()
    )
    optional: Flag = knob("Allow records without the field.", "ours", optional=True, default=False)

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
    type: IndexType = knob("Kind of index.", "C-139")


class MemoryRetentionConfig(Section):
    """Retention of the records of one memory."""

    kind: RetentionKind = knob("Lifetime: for good, with its owner, for a time, or the newest only.", "C-136")
    duration_ms: Duration | None = knob("With kind duration: the time.", "C-136", unit="ms", optional=True, gt=0)
    count: Int | None = knob("With kind max: the number of records.", "C-137", optional=True, ge=1)
    when: WhenConfig | None = knob("Trigger of compression; with kind compress_on only.", "C-138", optional=True)
    field: MemoryName | None = knob("With kind until: the field of the instant.", "ours", optional=True)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        faults.fit(
            self.kind,
            duration_ms=(RetentionKind.DURATION, self.duration_ms),
            count=(RetentionKind.MAX, self.count),
            when=(RetentionKind.COMPRESS_ON, self.when),
            field=(RetentionKind.UNTIL, self.field),
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
        if self.field is not None:
            return f"until({self.field})"
        return self.kind.value if self.count is None else f"max({self.count})"


class MemoryConfig(Section):
    """A memory type: one that every store has, bound by its name, or one of your own."""

    name: MemoryRef = knob("Unique name.", "C-130")
    type: MemoryCategory = knob("Kind of the memory.", "C-131")
    fields: Annotated[tuple[FieldConfig, ...], AsList, Field(min_length=1, max_length=FIELDS_MAX)] = knob(
        "Fields of the records.", "C-132"
    )
    retention: MemoryRetentionConfig = knob(
        "Lifetime of the records. Default: for good.",
        "C-135",
        optional=True,
        default=MemoryRetentionConfig(kind=RetentionKind.PERSISTENT),
    )
    indexes: Annotated[tuple[IndexConfig, ...], AsList] = knob(
        "Indexes of the records.", "C-139", optional=True, default=()
    )
    lifecycle: Lifecycle = knob(
        "Let records end by a call, or by themselves.", "C-142", optional=True, default=Lifecycle.EXPLICIT
    )
    closes_on: WhenConfig | None = knob("With lifecycle auto_close only: the trigger.", "C-142", optional=True)
    artifacts: Annotated[tuple[ArtifactType, ...], AsList] = knob(
        "Types of artifact that the memory is made of.", "C-143", optional=True, default=()
    )
    parent: MemoryRef | None = knob("Memory whose records own the records of this one.", "C-144", optional=True)
    inject_on: Annotated[tuple[WhenConfig, ...], AsList] = knob(
        "Rules by which the records enter windows.", "C-145", optional=True, default=()
    )
    key: Annotated[tuple[MemoryName, ...], AsList] = knob(
        "Fields by whose values there is one record at most.", "ours", optional=True, default=()
    )
    history: History = knob(
        "Keep earlier versions of a record for replay, or nothing.", "ours", optional=True, default=History.VERSIONS
    )
    shown: Text | None = knob(
        "Text of a record in windows, with fields in braces. Default: its fields with values.", "ours", optional=True
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
                kept.kind,
                kept.duration_ms,
                kept.count,
                None if kept.when is None else kept.when.declared,
                kept.field,
            ),
            indexes=tuple(data.Index(item.field, item.type) for item in self.indexes),
            lifecycle=self.lifecycle,
            closes_on=None if self.closes_on is None else self.closes_on.declared,
            artifacts=self.artifacts,
            parent=self.parent,
            inject_on=tuple(item.declared for item in self.inject_on),
            key=self.key,
            history=self.history,
            shown=self.shown,
        )
