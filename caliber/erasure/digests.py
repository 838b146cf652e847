"""By what content can be known again that is gone: its digests, and those of the texts that vectors were made of."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from typing import Any

from caliber.embedding.space_provider import embedded_text
from caliber.model.knowledge import Note
from caliber.model.trajectory import Scope, Turn, TurnSummary


def digests_of(entity: Any) -> set[bytes]:
    """Return the digests by which content of a record can be known again: its own, and that of its vector."""
    kept = (getattr(entity, name, None) for name in ("content_hash", "fingerprint", "goal_hash"))
    out = {digest for digest in kept if digest is not None}
    if isinstance(entity, Turn):
        out |= {_sha(entity.content), _sha(embedded_text(entity.name, entity.text).encode("utf-8", "surrogatepass"))}
    elif isinstance(entity, Note):
        out.add(_sha(embedded_text(entity.entity, entity.content).encode("utf-8", "surrogatepass")))
    elif hasattr(entity, "record_id"):
        values = (getattr(entity, item.name) for item in dataclasses.fields(entity))
        out |= {_sha(value.encode("utf-8", "surrogatepass")) for value in values if type(value) is str}
    elif isinstance(entity, TurnSummary):
        out = {_sha(entity.content.encode("utf-8", "surrogatepass"))}
    elif isinstance(entity, Scope):
        out = set() if entity.summary is None else {_sha(entity.summary.encode("utf-8", "surrogatepass"))}
    return out


def _sha(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def digests_of_body(body: str) -> set[bytes]:
    """Return the digest of each content in a kept version."""
    values = json.loads(body).values()
    return {
        _sha(base64.b64decode(value["b64"]) if isinstance(value, dict) else value.encode("utf-8", "surrogatepass"))
        for value in values
        if isinstance(value, str) or (isinstance(value, dict) and "b64" in value)
    }
