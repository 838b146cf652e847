"""A process in which every store has one relation more: searched, embedded, hidden, valid for a while, and ended.

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
from caliber.schema.relation import Relation, Residence, enum, instant, integer, real, text, text_array, uuid_, version
from caliber.schema.traits import (
    ALWAYS_US,
    NEVER_US,
    Ends,
    Enters,
    Exported,
    Links,
    Memory,
    Pruned,
    Resident,
    Rights,
    Text,
    Times,
    Trust,
    Use,
    Window,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Tip:
    tip_id: uuid.UUID
    about: str
    said: str
    created_at: datetime
    updated_at: datetime
    tokens: int = 0
    trust: TrustLabel = TrustLabel.USER
    weight: float | None = None
    occurred_at: datetime | None = None
    opens_at: datetime | None = None
    shuts_at: datetime | None = None
    seen_by: tuple[str, ...] | None = None
    dropped_at: datetime | None = None
    better: uuid.UUID | None = None
    version: int = 1


_COLUMN = Residence.COLUMN
TIP = Relation(
    name="tip",
    plural="tips",
    entity=Tip,
    code=8_262,
    comment="Planted.",
    text=Text(("said",), embedded="said", head="about"),
    usage=Use(importance="weight"),
    active=("dropped_at", "better"),
    times=Times(since="opens_at", until="shuts_at", as_of=True),
    rights=Rights(readers="seen_by"),
    ends=Ends(Pruned.ARCHIVED, archive="dropped_at", supersede="better"),
    derived=(Tokens("tokens", ("said",)),),
    erase=Erase(names=("about",)),
    links=Links(),
    trust=Trust("trust"),
    exported=Exported.RECORDS,
    memory=Memory("tip"),
    window=Window(Enters.FOUND, source=9, template="- of the {about}: {said}"),
    by_id=True,
    ordinal=True,
    versioned=True,
    resident=Resident(),
    key=("tip_id",),
    columns=(
        uuid_("tip_id"),
        text("about", residence=Residence.INTERNED, content=True),
        text("said", residence=Residence.TEXT, content=True),
        instant("created_at", residence=_COLUMN),
        instant("updated_at"),
        integer("tokens", check=(0, None), residence=_COLUMN),
        enum("trust", TrustLabel, residence=_COLUMN),
        real("weight", nullable=True, check=(1, 10), residence=_COLUMN, resident_null=-1.0),
        instant("occurred_at", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US),
        instant("opens_at", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US),
        instant("shuts_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        text_array("seen_by", nullable=True, residence=Residence.INTERNED),
        instant("dropped_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US),
        uuid_("better", nullable=True, residence=Residence.FLAG),
        version(),
    ),
)
relations.RELATIONS = (*relations.RELATIONS, TIP)
relations.MIRRORED = (*relations.MIRRORED, TIP)
relations.BY_CODE[TIP.code] = relations.BY_NAME[TIP.name] = TIP

from support.configs import USER, config  # noqa: E402
from support.inspection import inspect  # noqa: E402

import caliber  # noqa: E402
from caliber.model import Edge, EdgeRelation, EntityRef, EntityType  # noqa: E402
from caliber.model.access import Principal, PrincipalKind  # noqa: E402
from caliber.model.errors import InvalidValue, NotFound  # noqa: E402
from caliber.model.references import EdgeId  # noqa: E402
from caliber.model.time import from_us  # noqa: E402
from caliber.storage.write.ending import archive, prune  # noqa: E402

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def tip(said: str, **fields: Any) -> Tip:
    made = {"tip_id": uuid.uuid4(), "about": "harbour", "said": said, "created_at": NOW, "updated_at": NOW}
    return Tip(**{**made, **fields})


TIPS = {
    "plain": tip("the ferry leaves at nine"),
    "old": tip("the ferry left at eight", shuts_at=NOW - DAY),
    "coming": tip("the ferry will leave at ten", opens_at=NOW + DAY),
    "dropped": tip("the ferry is a bus", dropped_at=NOW - DAY),
    "secret": tip("the ferry carries gold", seen_by=("agent:captain",)),
}


def main(path: str, knobs: dict[str, Any], folder: str) -> None:
    for mode in ("resident", "backend"):
        settings = config(path, search__mode=mode, **knobs)
        caliber.create(settings)
        try:
            with caliber.open(settings) as memory:
                insert(memory)
                searched(memory)
                hidden(memory)
                linked(memory)
                in_windows(memory)
                ended(memory)
                assert memory.admin.check() == []
                exported(memory)
                left = found(memory), memory.storage.tips.count()
                archive_file, back = (Path(folder) / f"{mode}-{name}.zip" for name in ("there", "back"))
                memory.admin.backup(archive_file)
            caliber.restore(settings, archive_file, replace=True)
            elsewhere = config(str(Path(folder) / f"{mode}.db"), search__mode=mode)
            caliber.restore(elsewhere, archive_file)  # of whatever database it is
            for place in (settings, elsewhere):
                with caliber.open(place) as memory:
                    assert (found(memory), memory.storage.tips.count()) == left
            with caliber.open(elsewhere) as memory:
                memory.admin.backup(back)
            caliber.restore(settings, back, replace=True)  # and back
            with caliber.open(settings) as memory:
                assert (found(memory), memory.storage.tips.count()) == left
            caliber.purge(settings)
            caliber.create(settings)
            by_rule(path, search__mode=mode, **knobs)
        finally:
            caliber.purge(settings)
    moved(Path(folder), path, knobs)


def moved(folder: Path, path: str, knobs: dict[str, Any]) -> None:
    """Move a tenant with records from a file into another place, of the database under test, and back."""
    files = caliber.profiles.reference(str(folder / "{tenant}.db")).to_mapping()["storage"]
    place = path if knobs else str(folder / "other-{tenant}.db")
    other = config(place, **knobs).to_mapping()["storage"]
    if "schema_name" in other:
        other["schema_name"] += "_{tenant}"
    directory = {"adapter": "sqlite", "path": str(folder / "tenants.db")}
    tenancy = {
        "new_tenants": "files", "fence_ms": "20s", "verify_in_fence": True,
        "directory": directory, "sources": {"files": files, "other": other},
    }  # fmt: skip
    settings = config(str(folder / "unused.db"), tenancy=tenancy)
    caliber.create(settings, tenant="ann")
    with caliber.open(settings, tenant="ann") as memory:
        insert(memory)
        memory.flush()
        before = found(memory), sorted(memory.storage.tips.all(), key=lambda each: each.tip_id)
    with caliber.Tenants(settings) as tenants:
        for target in ("other", "files"):
            report = tenants.move("ann", target)
            assert report.rows["tip"] == len(TIPS)
            with caliber.open(settings, tenant="ann") as memory:
                assert (found(memory), sorted(memory.storage.tips.all(), key=lambda each: each.tip_id)) == before
                assert memory.admin.check() == []
            tenants.drop_old("ann")
        tenants.drop("ann")


def insert(memory: Any) -> None:
    for each in TIPS.values():
        counted = inspect(memory).engine.count_text(each.said)
        memory.storage.tips.insert(dataclasses.replace(each, tokens=counted))


def found(memory: Any, **options: Any) -> set[str]:
    keys = {each.tip_id: name for name, each in TIPS.items()}
    return {keys[hit.id] for hit in memory.search("ferry", kinds=["tip"], limit=9, **options).hits}


def exported(memory: Any) -> None:
    """Take records out and in again."""
    assert memory.storage.exported["tip"]
    records, before = memory.storage.bulk_read("tip").read_all(), found(memory)
    for each in TIPS.values():
        memory.storage.tips.delete(each.tip_id)
    assert found(memory) == set()
    memory.storage.bulk_load("tip", records)
    memory.flush()
    assert found(memory) == before, (found(memory), before)
    assert memory.admin.check() == []


def searched(memory: Any) -> None:
    assert found(memory) == {"plain", "secret"}
    assert found(memory, filter='about = "harbour" and weight = null') == {"plain", "secret"}
    assert found(memory, filter='about != "harbour"') == set()
    memory.flush()
    assert found(memory, filter={"about": ["harbour", "lake"], "weight": None}) == {"plain", "secret"}
    assert found(memory, filter={"about": ["harbour", "lake"], "weight": [2, 3]}) == set()
    assert found(memory, as_of=NOW - 2 * DAY) == {"plain", "secret", "old"}
    assert found(memory, as_of=NOW + 2 * DAY) == {"plain", "secret", "coming"}
    assert {hit.kind for hit in memory.search("ferry harbour", limit=9).hits} == {"tip"}
    assert memory.get(TIPS["plain"].tip_id).said == TIPS["plain"].said
    (space,) = memory.storage.embedding_spaces.all()
    with inspect(memory).store.read() as session:
        progress = inspect(memory).store.statements["embedding.progress_tip"]
        total, lacking = session.run(progress, (space.space_id.bytes,))[0]
    assert total == 4, "what is dropped is to have no vector"
    assert lacking == 0, "vectors were made"


def hidden(memory: Any) -> None:
    stranger = memory.acting_as(Principal(PrincipalKind.AGENT, "stranger"))
    captain = memory.acting_as(Principal(PrincipalKind.AGENT, "captain"))
    assert found(stranger) == {"plain"}
    assert found(captain) == {"plain", "secret"}
    assert captain.get(TIPS["secret"].tip_id).seen_by == ("agent:captain",)
    try:
        stranger.get(TIPS["secret"].tip_id)
    except NotFound:
        return
    raise AssertionError("a hidden record was read")


def linked(memory: Any) -> None:
    """An edge to a record brings it into a search, for who may see it; one that leads nowhere is named."""
    note = memory.add_note(
        entity="pier", entity_type="place", note_type="fact", content="zeppelins moor here", confidence=1.0
    )
    source, now = EntityRef(EntityType.NOTE, note.note_id), from_us(inspect(memory).engine.clock.now_us())
    edges = [
        Edge(EdgeId(uuid.uuid4()), source, EntityRef("tip", TIPS[name].tip_id), EdgeRelation.LINK, 1.0, 1.0, now)
        for name in ("plain", "secret")
    ]
    for edge in edges:
        memory.storage.edges.insert(edge)
        assert memory.storage.edges.get(edge.edge_id) == edge
    for label, expected in (("captain", {"plain", "secret"}), ("stranger", {"plain"})):
        hits = memory.acting_as(Principal(PrincipalKind.AGENT, label)).search("zeppelins").hits
        names = {name for name, each in TIPS.items() for hit in hits if hit.id == each.tip_id}
        assert names == expected, hits
        assert all(hit.found_by == ("graph",) for hit in hits if hit.kind == "tip")
    table = memory.storage.bulk_read("edge").read_all()
    for edge in edges:
        memory.storage.edges.delete(edge.edge_id)
    assert memory.storage.bulk_load("edge", table).loaded == 2
    lost = dataclasses.replace(edges[0], edge_id=EdgeId(uuid.uuid4()), target=EntityRef("tip", uuid.uuid4()))
    memory.storage.edges.insert(lost)
    assert [finding.count for finding in memory.admin.check()] == [1]
    try:
        memory.storage.edges.insert(dataclasses.replace(lost, target=EntityRef("rumour", uuid.uuid4())))
    except InvalidValue:
        pass
    else:
        raise AssertionError("an edge to a kind that there is not")
    memory.storage.notes.delete(note.note_id)
    for edge in (*edges, lost):
        memory.storage.edges.delete(edge.edge_id)


def in_windows(memory: Any) -> None:
    """A window has what a search finds and its principal may see; it says why, and is the same when it is replayed."""
    captain = memory.acting_as(Principal(PrincipalKind.AGENT, "captain"))
    for handle, names in ((memory, {"plain", "secret"}), (captain, {"plain", "secret"})):
        task = handle.start_trajectory("cross the water", initiator=USER)
        window = handle.assemble_context(task.trajectory_id, query="ferry")
        shown = {name for name, each in TIPS.items() if f"- of the harbour: {each.said}" in window.text}
        assert shown == names, window.text
        told = handle.explain(window.window_id)
        of_tips = {item["id"]: item for item in told["inclusions"] if item["type"] == "memory"}
        assert of_tips.keys() == {str(TIPS[name].tip_id) for name in names}, told
        left_out = handle.explain(window.window_id, exclusion=TIPS["old"].tip_id)
        assert (left_out["verdict"], left_out["filter"]) == ("filtered", "expired"), left_out
        assert handle.replay(window.window_id).text == window.text
    stranger = memory.acting_as(Principal(PrincipalKind.AGENT, "stranger"))
    window = stranger.assemble_context(stranger.start_trajectory("cross", initiator=USER).trajectory_id, query="ferry")
    assert "gold" not in window.text
    assert TIPS["plain"].said in window.text


def by_rule(path: str, **knobs: Any) -> None:
    """Rules bring records by what they ask of columns, and by what is relevant."""
    for mode in ({"kind": "full"}, {"kind": "top_k", "count": 3}):
        rule = {"memory": "tip", "mode": mode, "priority": 50, "filter": "weight > 3"}
        with caliber.open(config(path, injection_rules=[rule], **knobs)) as memory:
            if not memory.storage.tips.count():
                insert(memory)
                memory.storage.tips.insert(tip("the ferry takes bicycles", weight=5.0, tokens=4))
            task = memory.start_trajectory("cross the water", initiator=USER)
            window = memory.assemble_context(task.trajectory_id, query="ferry")
            assert [section.name for section in window.sections] == ["tip"], window.text
            assert window.text.strip().splitlines()[-1] == "- of the harbour: the ferry takes bicycles"
            told = memory.explain(window.window_id, exclusion=TIPS["secret"].tip_id)
            assert (told["verdict"], told["filter"]) == ("filtered", "rule"), told
            assert memory.replay(window.window_id).text == window.text


def ended(memory: Any) -> None:
    def work(uow: Any) -> int:
        later = inspect(memory).engine.clock.now_us() + 10**9
        stale = uow.stale(TIP, later, 2.0)
        assert {each.tip_id for each in stale} == {each.tip_id for each in TIPS.values() if each.dropped_at is None}
        count = prune(uow, TIP, stale[:1])
        archive(uow, TIP, stale[1])
        return count

    assert inspect(memory).write(work) == 1
    assert len(found(memory, as_of=NOW)) <= 2
    report = memory.forget(texts=("ferry carries gold",), even_if_shared=True)
    assert report.redacted["tip"] == 1, report


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
