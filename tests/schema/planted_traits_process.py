"""A process in which every store has one relation more: with derived columns, bytes of each kind and unique keys.

Told by its arguments where the store is; it raises AssertionError for what does not hold.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import uuid
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from caliber.model.trust import TrustLabel
from caliber.schema import relations  # first of all: other modules take the relations from it
from caliber.schema.derived import Fingerprint, NotBefore, RecordHash, Sha256, Tokens
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.relation import (
    Relation,
    Unique,
    blob,
    enum,
    instant,
    integer,
    json_,
    text,
    text_array,
    uuid_,
    uuid_array,
    version,
)
from caliber.schema.traits import Exported, Links, Resident, Trust


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    page_id: uuid.UUID
    title: str
    body: bytes
    remark: str | None
    state: bytes
    plain_state: bytes
    seal: bytes
    about: Any
    body_hash: bytes = b""
    statement: bytes = b""
    record_hash: bytes = b""
    tokens: int = 0
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    seen_by: tuple[str, ...] | None = None
    author: str | None = None
    editor: uuid.UUID | None = None
    readers: tuple[uuid.UUID, ...] = ()
    idempotency_key: str | None = None
    draft_hash: bytes | None = None
    vouched: TrustLabel = TrustLabel.WEB
    version: int = 1


def same(value: Any) -> Any:
    return value


PAGE = Relation(
    name="page",
    plural="pages",
    entity=Page,
    code=8_263,
    comment="Planted.",
    derived=(
        Sha256("body_hash", ("body",)),
        Fingerprint("statement", ("title", "remark"), readers="seen_by", author="author", later=("begun_at",)),
        RecordHash("record_hash", ("title", "remark", "begun_at")),
        Tokens("tokens", ("title", "body", "remark")),
    ),
    erase=Erase(names=("title",)),
    links=Links(),
    trust=Trust("vouched"),
    exported=Exported.RECORDS,
    rules=(NotBefore("ended_at", "begun_at"),),
    ordinal=True,
    versioned=True,
    resident=Resident(),
    key=("page_id",),
    columns=(
        uuid_("page_id"),
        text("title"),
        blob("body", content=True, redact=Redaction.WORDS),
        text("remark", nullable=True),
        blob("state", redact=Packed(Layout.JSON)),
        blob("plain_state", redact=Packed(Layout.JSON)),
        blob("seal", redact=Redaction.NOTHING),
        json_("about", same, same, redact=Redaction.WORDS),
        blob("body_hash", length=32),
        blob("statement", length=32),
        blob("record_hash", length=32),
        integer("tokens", check=(0, None)),
        instant("begun_at", nullable=True),
        instant("ended_at", nullable=True),
        text_array("seen_by", nullable=True),
        text("author", nullable=True),
        uuid_("editor", nullable=True),
        uuid_array("readers"),
        text("idempotency_key", nullable=True, redact=Redaction.NEW_KEY),
        blob("draft_hash", nullable=True, redact=Redaction.EMPTIED),
        enum("vouched", TrustLabel),
        version(),
    ),
    uniques=(Unique(("body_hash",)), Unique(("author", "idempotency_key"), where=(("idempotency_key", False),))),
)
relations.RELATIONS = (*relations.RELATIONS, PAGE)
relations.MIRRORED = (*relations.MIRRORED, PAGE)
relations.BY_CODE[PAGE.code] = relations.BY_NAME[PAGE.name] = PAGE

import pyarrow as pa  # noqa: E402
import pytest  # noqa: E402
from support.configs import config  # noqa: E402
from support.inspection import inspect  # noqa: E402

import caliber  # noqa: E402
from caliber.model.errors import ConstraintViolation, InvalidRow, InvalidValue  # noqa: E402
from caliber.storage.compile.codec import codec_of, dump_json  # noqa: E402
from caliber.storage.compile.derived import completed  # noqa: E402

NAME = "Trillian Astra"
WHO = uuid.UUID("0190f3c2-7c00-7000-8000-00000000a1a1")
OTHER = uuid.UUID("0190f3c2-7c00-7000-8000-00000000a1a2")
WHEN = datetime(2026, 3, 4, 5, 6, 7, 890_123, tzinfo=UTC)
SEAL = bytes(range(256))
"""Bytes that are no text: one name replaced in them would ruin them."""


def packed(value: Any) -> bytes:
    return zlib.compress(dump_json(value).encode())


def page(title: str, body: str, **fields: Any) -> Page:
    said = {"who": [body, {title: 1}], "pad": "x" * 200}
    plain = {
        "page_id": uuid.uuid4(), "title": title, "body": body.encode(), "remark": None, "state": packed(said),
        "plain_state": dump_json(said).encode(), "seal": SEAL, "about": said,
    }  # fmt: skip
    return Page(**{**plain, **fields})


def main(path: str, knobs: dict[str, Any]) -> None:
    settings = config(path, embedding_provider=None, **knobs)
    caliber.create(settings)
    try:
        with caliber.open(settings) as memory:
            derived(memory)
            erased(memory)
    finally:
        caliber.purge(settings)


def derived(memory: Any) -> None:
    """Insert, update and load; each derives alike, and refuses what is not so."""
    pages, estimator = memory.storage.pages, inspect(memory).engine.estimator
    given = [
        page("one", "é text", remark="said", seen_by=("b", "a"), author="x"),
        page("two", "", begun_at=WHEN, ended_at=WHEN),
        page("three", "x" * 1_000, remark="", idempotency_key="k", author="x"),
    ]
    made = [completed(PAGE, each, estimator) for each in given]
    pages.insert(made[0])
    assert pages.get(made[0].page_id) == made[0]
    wrong = dataclasses.replace(made[1], statement=bytes(32))
    with pytest.raises(ConstraintViolation, match="statement"):
        pages.insert(wrong)
    with pytest.raises(InvalidValue, match="must not be before begun_at"):
        pages.insert(
            completed(PAGE, dataclasses.replace(made[1], ended_at=datetime(1999, 1, 1, tzinfo=UTC)), estimator)
        )
    changed = pages.update(made[0].page_id, body="another text", remark="other")
    assert changed == dataclasses.replace(
        completed(PAGE, dataclasses.replace(given[0], body=b"another text", remark="other"), estimator), version=2
    )
    with pytest.raises(ConstraintViolation, match="body_hash"):
        pages.update(made[0].page_id, body_hash=bytes(32))
    names = [column.name for column in PAGE.columns]
    rows = [dict(zip(names, codec_of(PAGE).encode(each)[1:], strict=True)) for each in made[1:]]
    schema = memory.storage.bulk_read("page").schema
    left_out = {rule.column for rule in PAGE.derived or ()} | {"version", "begun_at", "ended_at", "seen_by", "readers"}
    load = pa.table(
        {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in names if name not in left_out}
        | {name: pa.array([getattr(each, name) for each in made[1:]], pa.timestamp("us", "UTC"))
           for name in ("begun_at", "ended_at")}
    )  # fmt: skip
    with pytest.raises(InvalidRow, match="not the SHA-256 of body"):
        memory.storage.bulk_load("page", load.append_column("body_hash", [[bytes(32)] * 2]))
    memory.storage.bulk_load("page", load)
    assert [pages.get(each.page_id) for each in made[1:]] == made[1:]
    assert (
        memory.storage.bulk_load("page", memory.storage.bulk_read("page").read_all(), on_existing="skip").skipped == 3
    )
    assert memory.admin.verify() == []
    assert memory.admin.check() == []
    exported(memory, made[1:])


def exported(memory: Any, loaded: list[Page]) -> None:
    """Take records out and in again; those that nobody vouches for come in with the least trusted label."""
    assert memory.storage.exported["page"], "exported without being asked for"
    records = memory.storage.bulk_read("page").read_all()
    usage = caliber.model.Usage("page", loaded[0].page_id, 1, WHEN)
    memory.storage.usages.insert(usage)
    assert memory.admin.check() == []
    for each in loaded:
        memory.storage.pages.delete(each.page_id)
    assert "a page that is gone" in memory.admin.check()[0].what
    memory.storage.bulk_load("page", records.drop_columns("vouched"), on_existing="skip")
    assert [memory.storage.pages.get(each.page_id) for each in loaded] == loaded
    assert memory.admin.check() == []


def erased(memory: Any) -> None:
    """Forget a subject that is in every column, and in nothing else afterwards."""
    pages, estimator = memory.storage.pages, inspect(memory).engine.estimator
    naming = page(
        f"about {NAME}", f"{NAME} was here", remark=f"of {NAME}", seen_by=("a", NAME), author=NAME, editor=WHO,
        readers=(WHO, OTHER), idempotency_key="k", draft_hash=b"d" * 8, begun_at=WHEN,
    )  # fmt: skip
    utf_16 = dataclasses.replace(page("wide", ""), body=f"{NAME}!".encode("utf-16-le") + b"\xff")
    first, twin = page("t1", f"I am {NAME}"), page("t2", f"I am {NAME.upper()}")
    own, free = page(NAME, "of herself"), page("free", "of somebody else", idempotency_key="k", author="[forgotten]")
    every = [completed(PAGE, each, estimator) for each in (naming, utf_16, first, twin, own, free)]
    for each in every:
        pages.insert(each)
    pages.update(naming.page_id, body=f"{NAME} came back")  # what is kept of it for replay goes too
    report = memory.forget(entity=caliber.model.EntityRef(caliber.model.EntityType.USER, WHO), texts=(NAME,))
    assert report.proven, report
    assert (report.erased["page"], report.redacted["page"]) == (2, 3), report
    assert pages.get(own.page_id) is None
    assert pages.get(twin.page_id) is None, "another one says the same by now"
    assert pages.get(free.page_id) == every[-1]
    changed = pages.get(naming.page_id)
    mark = "[forgotten]"
    said = {"who": [f"{mark} was here", {f"about {mark}": 1}], "pad": "x" * 200}
    assert changed.idempotency_key.startswith("forgotten:")
    wanted = dataclasses.replace(
        naming, title=f"about {mark}", body=f"{mark} came back".encode(), remark=f"of {mark}", seen_by=("a", mark),
        author=mark, editor=None, readers=(OTHER,), idempotency_key=changed.idempotency_key, draft_hash=None,
        state=packed(said), plain_state=dump_json(said).encode(), about=said, version=3,
    )  # fmt: skip
    assert changed == completed(PAGE, wanted, estimator)
    assert changed.seal == SEAL
    assert pages.get(utf_16.page_id).body == f"{mark}!".encode("utf-16-le") + b"\xff"
    assert memory.admin.verify() == []
    assert memory.admin.check() == []


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
