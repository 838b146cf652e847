"""Snapshots of handoffs: the window of a task with its texts, packed text by text, and read as far as a reader may.

A snapshot holds what its giver could read. So each text keeps its source, and a reader gets the texts of records that
this reader may read by now. Source: C-383, C-402, K-039.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from caliber.access.visibility import Readers
from caliber.model.agents.delegation import Handoff, HandoffSnapshot
from caliber.model.errors import StorageError
from caliber.model.windows import ContextSection, ContextWindow, SourceRef
from caliber.pcp.checkpoints import window_as_json
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.erase import CHECKPOINT_HEAD
from caliber.storage.compile.codec import codec_of, dump_json
from caliber.storage.compile.damage import UNREADABLE

_HEAD: Final = len(CHECKPOINT_HEAD) + hashlib.sha256().digest_size
_MAX_BYTES: Final = 64 << 20


def packed(window: ContextWindow, records: ResidentSnapshot) -> bytes:
    """Return the snapshot of a window, in the layout of a checkpoint, which erasing knows.

    Each text is a section of its own with its source and, as a record may be deleted later, the task of that record.
    """
    body = window_as_json(window)
    parts = []
    for section, shown in zip(body["sections"], window.sections, strict=True):
        for text, source in _texts(shown):
            sources = [] if source is None else [_source(source, records)]
            parts.append({**section, "content": text, "sources": sources})
    body["sections"] = parts
    raw = zlib.compress(dump_json({"context_snapshot": body}).encode())
    return CHECKPOINT_HEAD + hashlib.sha256(raw).digest() + raw


def _texts(section: ContextSection) -> Iterator[tuple[str, SourceRef | None]]:
    """Yield the texts of a section, each with its source and what separates it from the next; the title first."""
    starts = [source.span[0] for source in section.sources]
    yield section.content[: starts[0] if starts else None], None
    for source, start, end in zip(section.sources, starts, [*starts[1:], None], strict=True):
        yield section.content[start:end], source


def _source(source: SourceRef, records: ResidentSnapshot) -> list[Any]:
    key = None if source.id is None else str(source.id)
    return [source.source_type.value, key, source.version, _task_of(source.id, records)]


def _task_of(record_id: uuid.UUID | None, records: ResidentSnapshot) -> str | None:
    """Return the task that alone decides who may read a record; None for a record with readers of its own."""
    found = None if record_id is None else records.locate(record_id.bytes)
    if found is None:
        return None
    rows, number = found
    relation, row, index = rows.relation, rows.packed(number), codec_of(rows.relation).index
    rights = relation.rights
    if rights.task is None or (rights.readers is not None and row[index(rights.readers)] is not None):
        return None
    task = row[index(rights.task)]
    return None if task is None else str(uuid.UUID(bytes=task))


def without_snapshot(handoff: Handoff) -> Handoff:
    """Return a handoff without the packed texts, which not everybody who sees the handoff may read."""
    return dataclasses.replace(handoff, snapshot=b"")


def unpacked(
    handoff: Handoff, readers: Readers, records: ResidentSnapshot, tokens: Callable[[str], int]
) -> HandoffSnapshot:
    """Return the snapshot of a handoff with the texts that ``readers`` may read, and the ``tokens`` of these.

    Raises: StorageError if damaged.
    """
    digest, body = handoff.snapshot[len(CHECKPOINT_HEAD) : _HEAD], handoff.snapshot[_HEAD:]
    try:
        if hashlib.sha256(body).digest() != digest:
            raise ValueError
        window = json.loads(zlib.decompressobj().decompress(body, _MAX_BYTES))["context_snapshot"]
        sections = _readable(window["sections"], readers, records)
        used = tokens("\n\n".join(section["content"] for section in sections))
        return HandoffSnapshot.from_json({**window, "sections": sections, "used_tokens": used})
    except (*UNREADABLE, zlib.error) as error:
        raise StorageError(f"the snapshot of handoff {handoff.handoff_id} is damaged") from error


def _readable(parts: list[dict[str, Any]], readers: Readers, records: ResidentSnapshot) -> list[dict[str, Any]]:
    """Return the sections of the texts that may be read; a section without any is left out."""
    sections: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for part in parts:
        name, sources = part["name"], part["sources"]
        if not sources:
            titles[name] = part["content"]
        elif all(_may_read(source, readers, records) for source in sources):
            sections.setdefault(name, [titles.get(name, "")]).append(part["content"])
    # Lines that end a section separate it from one behind, which may be hidden.
    return [{"name": name, "content": "".join(texts).rstrip("\n")} for name, texts in sections.items()]


def _may_read(source: list[Any], readers: Readers, records: ResidentSnapshot) -> bool:
    """Return whether a source of a text may be read: as it is now or, if it was deleted since, as its task may be."""
    if readers.everything or source[1] is None:
        return True
    found = records.locate(uuid.UUID(source[1]).bytes)
    if found is not None:
        return readers.allows(*found)
    task = source[3] if len(source) > 3 else None
    return task is not None and readers.sees_task(uuid.UUID(task).bytes)
