"""A process in which every store has two relations more: one belongs to tasks, the other is knowledge of all of them.

Told by its arguments where the store is; it raises AssertionError for what does not hold.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from caliber.model.trust import TrustLabel
from caliber.schema import relations  # first of all: other modules take the relations from it
from caliber.schema.derived import Tokens
from caliber.schema.erase import Erase
from caliber.schema.relation import AccessPath, ForeignKey, Relation, Residence, enum, instant, integer, text, uuid_
from caliber.schema.relation import version as version_
from caliber.schema.traits import Ends, Enters, Exported, Links, Memory, Pruned, Resident, Text, Times, Trust, Window


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    step_id: uuid.UUID
    trajectory_id: uuid.UUID
    words: str
    written_at: datetime
    tokens: int
    law_id: uuid.UUID | None = None
    trust: TrustLabel = TrustLabel.USER
    version: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Law:
    law_id: uuid.UUID
    words: str
    created_at: datetime
    tokens: int
    trust: TrustLabel = TrustLabel.USER
    version: int = 1


_COLUMN = Residence.COLUMN
SHARED: dict[str, Any] = {
    "comment": "Planted.",
    "text": Text(("words",), embedded="words"),
    "derived": (Tokens("tokens", ("words",)),),
    "erase": Erase(),
    "links": Links(),
    "exported": Exported.RECORDS,
    "ends": Ends(Pruned.DELETED),
    "by_id": True,
    "ordinal": True,
    "versioned": True,
}
COLUMNS = (
    text("words", residence=Residence.TEXT, content=True),
    integer("tokens", check=(0, None), residence=_COLUMN),
    enum("trust", TrustLabel, residence=_COLUMN),
    version_(),
)
STEP = Relation(
    name="step_taken",
    plural="steps_taken",
    entity=Step,
    code=8_261,
    key=("step_id",),
    columns=(
        uuid_("step_id"),
        uuid_("trajectory_id", residence=Residence.INTERNED),
        instant("written_at", residence=_COLUMN),
        uuid_("law_id", nullable=True),
        *COLUMNS,
    ),
    foreign_keys=(
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("law_id", "law", "law_id", "set null"),
    ),
    trust=Trust("trust"),
    resident=Resident(groups=("trajectory_id",)),
    paths=(AccessPath("list_by_trajectory", ("trajectory_id",), ("written_at", "ordinal")),),
    times=Times(("written_at",), "written_at"),
    memory=Memory("step_taken"),
    window=Window(Enters.TASK, source=10, template="* {words}"),
    **SHARED,
)
LAW = Relation(
    name="law",
    plural="laws",
    entity=Law,
    code=8_262,
    key=("law_id",),
    columns=(uuid_("law_id"), instant("created_at", residence=_COLUMN), *COLUMNS),
    times=Times(("created_at",), "created_at"),
    memory=Memory("law"),
    trust=Trust("trust", least_of="step_taken"),
    resident=Resident(),
    window=Window(Enters.KNOWLEDGE, source=11, template="§ {words}"),
    **SHARED,
)
relations.RELATIONS = (*relations.RELATIONS, LAW, STEP)
relations.MIRRORED = (*relations.MIRRORED, LAW, STEP)
for planted in (STEP, LAW):
    relations.BY_CODE[planted.code] = relations.BY_NAME[planted.name] = planted

import pyarrow as pa  # noqa: E402
from support.configs import USER, config  # noqa: E402
from support.providers import ScriptedSummarizer  # noqa: E402

import caliber  # noqa: E402

NOW = datetime.now(UTC) - timedelta(minutes=1)
DONE, OTHERS, RULE, UNASKED = (
    "the anchor is up", "the anchor of another ship", "ships give way to sail", "crows are black",
)  # fmt: skip


def main(path: str, knobs: dict[str, Any]) -> None:
    for mode in ("resident", "backend"):
        for order in ("stable_first", "priority"):
            store(path, search__mode=mode, assembly__order=order, **knobs)
        rules = [{"memory": name, "mode": {"kind": "full"}, "priority": 50} for name in ("step_taken", "law")]
        store(path, search__mode=mode, injection_rules=rules, **knobs)
    summed_up(path, **knobs)
    labelled(path, **knobs)


def store(path: str, **knobs: Any) -> None:
    settings = config(path, **knobs)
    caliber.create(settings)
    try:
        with caliber.open(settings) as memory:
            in_windows(memory, knobs)
    finally:
        caliber.purge(settings)


def summed_up(path: str, **knobs: Any) -> None:
    """Records of a task give way to one that sums them up when it ends; those of another task stay."""
    when = {"kind": "compress_on", "when": {"on": "task_end"}}
    fields = [{"name": "words", "type": "text"}]
    steps = {"name": "step_taken", "type": "working", "fields": fields, "retention": when}
    settings = config(path, memories=[steps], **knobs)
    caliber.create(settings)
    try:
        with caliber.open(settings, summarization_provider=ScriptedSummarizer()) as memory:
            task, other = (memory.start_trajectory(goal, initiator=USER).trajectory_id for goal in ("sail", "stay"))
            for words, owner in ((DONE, task), ("the sails are set", task), (OTHERS, other)):
                memory.storage.steps_taken.insert(Step(uuid.uuid4(), owner, words, NOW, 4))
            memory.complete_trajectory(task, status="success", summary="")
            left = {step.words: step for step in memory.storage.steps_taken.all()}
            assert left.keys() == {f"summary of {DONE}", OTHERS}, left
            assert left[f"summary of {DONE}"].trajectory_id == task
            assert memory.admin.check() == []
    finally:
        caliber.purge(settings)


def labelled(path: str, **knobs: Any) -> None:
    """A law is trusted no more than the steps that name it: those written one by one, and those loaded."""
    settings = config(path, **knobs)
    caliber.create(settings)
    try:
        with caliber.open(settings) as memory:
            task = memory.start_trajectory("sail", initiator=USER).trajectory_id
            law, other = (Law(uuid.uuid4(), words, NOW, 5) for words in (RULE, UNASKED))
            for each in (law, other):
                memory.storage.laws.insert(each)
            step = Step(uuid.uuid4(), task, DONE, NOW, 4, law.law_id, TrustLabel.TOOL)
            memory.storage.steps_taken.insert(step)
            assert memory.storage.laws.get(law.law_id).trust is TrustLabel.TOOL
            table = memory.storage.bulk_read("step_taken").read_all()
            (row,) = table.to_pylist()
            more = [{**row, "step_id": uuid.uuid4().bytes, "trust": label} for label in ("user", "web")]
            memory.storage.bulk_load("step_taken", pa.Table.from_pylist(more, schema=table.schema))
            labels = {each.law_id: each.trust for each in memory.storage.laws.all()}
            assert labels == {law.law_id: TrustLabel.WEB, other.law_id: TrustLabel.USER}
            assert memory.admin.check() == []
    finally:
        caliber.purge(settings)


def in_windows(memory: Any, knobs: dict[str, Any]) -> None:
    task, other = (memory.start_trajectory(goal, initiator=USER).trajectory_id for goal in ("set sail", "stay"))
    for words, owner in ((DONE, task), (OTHERS, other)):
        memory.storage.steps_taken.insert(Step(uuid.uuid4(), owner, words, NOW, 4))
    for words in (RULE, UNASKED):
        memory.storage.laws.insert(Law(uuid.uuid4(), words, NOW, 5))
    ruled = "injection_rules" in knobs
    for query in ("", "which ships give way?"):
        window = memory.assemble_context(task, query=query)
        lines = set(window.text.splitlines())
        assert f"* {DONE}" in lines, (knobs, query, window.text)
        assert f"§ {RULE}" in lines, (knobs, query, window.text)
        if ruled:
            assert f"* {OTHERS}" not in lines, "it belongs to another task"
            assert f"§ {UNASKED}" in lines
            assert [section.name for section in window.sections] == ["step_taken", "law"], window.text
        assert memory.replay(window.window_id).text == window.text
        told = memory.explain(window.window_id)
        assert len(told["inclusions"]) == len([line for line in lines if line[:1] in "*§" and line]), told


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
