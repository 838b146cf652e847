"""Content hashes by which erased content is recognised elsewhere: its own, and those of embedded texts."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from caliber.embedding.embedding_target import embedded_text
from caliber.schema.derived import Tokens
from caliber.schema.erase import Redaction
from caliber.schema.relation import ColumnType, Relation
from caliber.storage.compile.kept_content import unpack_content


def digests_of(relation: Relation, entity: Any) -> set[bytes]:
    """Return the digests by which content of a record can be known again: its own, and that of its vector."""
    kept, contents = _columns(relation)
    out = {digest for digest in (getattr(entity, name) for name in kept) if digest is not None}
    out |= {_sha(_raw(content)) for content in (getattr(entity, name) for name in contents) if content is not None}
    text = relation.text
    if text is not None and text.embedded is not None and (body := getattr(entity, text.embedded)) is not None:
        head = None if text.head is None else getattr(entity, text.head)
        shown = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        out.add(_sha(_raw(embedded_text(head, shown))))
    return out


@functools.lru_cache(maxsize=512)
def _columns(relation: Relation) -> tuple[list[str], list[str]]:
    """Return the columns of a relation that hold digests, and those of its contents."""
    rules = relation.derived or ()
    kept = [each.name for each in relation.columns if each.redaction is Redaction.DIGEST]
    kept += [rule.column for rule in rules if relation.column(rule.column).type is ColumnType.BYTES]
    return kept, [name for rule in rules if isinstance(rule, Tokens) for name in rule.of]


def _raw(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")


def _sha(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def digests_of_body(body: str) -> set[bytes]:
    """Return the digest of each content in a kept version."""
    return {_sha(_raw(value)) for value in unpack_content(body).values() if isinstance(value, str | bytes)}
