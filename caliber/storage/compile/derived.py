"""Computation and verification of derived columns (hashes, token counts, fingerprints), of one row or in bulk.

A relation declares them (``caliber.schema.derived``). Values are in the form that drivers store: instants in
microseconds, lists of texts as JSON. ``pack_content`` makes JSON of replaced content for ``content_version``, which
replay reads.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from caliber.kernels import sha256_batch, sha256_spans
from caliber.kernels.tokens.counting import estimate_tokens, estimate_tokens_spans
from caliber.kernels.tokens.estimators import Estimator
from caliber.schema.derived import Derived, Fingerprint, RecordHash, Sha256, Tokens
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import UNREADABLE, Row, codec_of, damaged, dump_json

HASH_BYTES: Final = 32

# --- one record ---------------------------------------------------------------------------------------


def derive(
    relation: Relation, stored: Mapping[str, Any], estimator: Estimator | None, rules: Iterable[Derived] | None = None
) -> dict[str, Any]:
    """Return the derived columns whose sources are all among ``stored``, or those of them that ``rules`` name.

    A hash of a missing value is left out. ``estimator`` may be None where no tokens are to be counted.
    """
    out: dict[str, Any] = {}
    for rule in relation.derived or () if rules is None else rules:
        if stored.keys() >= rule.sources:
            value = _VALUES[type(rule)](rule, stored, estimator)
            if value is not None:
                out[rule.column] = value
    return out


def derived_value(relation: Relation, column: str, estimator: Estimator | None, **stored: Any) -> Any:
    """Return one derived column from the values of its sources; None for a hash of a missing value."""
    for rule in relation.derived or ():
        if rule.column == column:
            return _VALUES[type(rule)](rule, stored, estimator)
    raise KeyError(column)


def derived_of(
    relation: Relation, record: Any, estimator: Estimator | None, rules: Iterable[Derived]
) -> dict[str, Any]:
    """Return the columns that rules derive from a record, or from an object with its attributes."""
    codec = codec_of(relation)
    return derive(relation, dict(zip(codec.names, codec.encode(record), strict=True)), estimator, rules)


def completed(relation: Relation, record: Any, estimator: Estimator | None, changed: Set[str] | None = None) -> Any:
    """Return a record with its derived columns; with ``changed`` only those that depend on changed columns."""
    rules = relation.derived or ()
    if changed is not None:
        rules = tuple(rule for rule in rules if not changed.isdisjoint(rule.sources))
    if not rules:
        return record
    return dataclasses.replace(record, **derived_of(relation, record, estimator, rules))


def wrong_hash(relation: Relation, stored: Mapping[str, Any], kind: type[Derived] = Derived) -> Derived | None:
    """Return the first rule whose hash does not match its source; None if all match."""
    rules = [rule for rule in relation.derived or () if rule.exact and isinstance(rule, kind)]
    right = derive(relation, stored, None, rules)
    return next((rule for rule in rules if stored[rule.column] != right.get(rule.column, stored[rule.column])), None)


def hashed(relations: Iterable[Relation]) -> tuple[Relation, ...]:
    """Return the relations with a column that is the SHA-256 of another one."""
    return tuple(each for each in relations if any(isinstance(rule, Sha256) for rule in each.derived or ()))


def reason_of(relation: Relation, rule: Derived) -> str:
    """Return why another value than that of an exact rule is wrong."""
    return (
        f"not the SHA-256 of {rule.of[0]}" if isinstance(rule, Sha256) else f"not that of what the {relation.name} says"
    )


def _sha256(rule: Derived, stored: Mapping[str, Any], _: Estimator | None) -> bytes | None:
    value = stored[rule.of[0]]
    if value is None:
        return None
    return sha256(value.encode() if isinstance(value, str) else value).digest()


def _tokens(rule: Derived, stored: Mapping[str, Any], estimator: Estimator | None) -> int | None:
    if estimator is None:
        return None
    tokens = 0
    for name in rule.of:
        value = stored[name]
        if isinstance(value, str):
            tokens += estimate_tokens(value, estimator=estimator)
        elif value is not None:
            tokens += estimator.tokens_of_bytes(value)
    return tokens


def _record_hash(rule: Derived, stored: Mapping[str, Any], _: Estimator | None) -> bytes:
    present = ((name, stored[name]) for name in rule.of if stored[name] is not None)
    plain = {
        name: sha256(value).hexdigest()
        if isinstance(value, bytes)
        else int(value)
        if isinstance(value, bool)
        else value
        for name, value in present
    }
    return sha256(dump_json(plain).encode("utf-8", "surrogatepass")).digest()


def _statement(rule: Fingerprint, stored: Mapping[str, Any]) -> bytes:
    readers = stored[rule.readers]
    parts = [stored[name] for name in rule.of]
    parts.append(None if readers is None else [*sorted(json.loads(readers)), stored[rule.author]])
    parts += [stored[name] for name in rule.later if stored[name] is not None]
    return json.dumps(parts, ensure_ascii=False).encode()


_VALUES: Final[Mapping[type[Derived], Callable[[Any, Mapping[str, Any], Estimator | None], Any]]] = {
    Sha256: _sha256,
    Tokens: _tokens,
    RecordHash: _record_hash,
    Fingerprint: lambda rule, stored, _: sha256(_statement(rule, stored)).digest(),
}

# --- whole columns ------------------------------------------------------------------------------------

Spans = Callable[[str], tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]]
"""Gives a column of texts or bytes as one buffer, and the edges of its values in it."""
Values = Callable[[str], Sequence[Any]]
"""Gives the values of a column as drivers take them."""


def derive_column(rule: Derived, rows: int, spans: Spans, values: Values, estimator: Estimator) -> npt.NDArray[Any]:
    """Return a derived column; a missing source counts as no bytes.

    Shapes: hashes uint8[rows, 32], tokens int64[rows]
    """
    if isinstance(rule, Sha256):
        return sha256_spans(*spans(rule.of[0]))
    if isinstance(rule, Tokens):
        counts = (estimate_tokens_spans(*spans(name), estimator=estimator) for name in rule.of)
        return sum(counts, np.zeros(rows, np.int64))
    names = sorted(rule.sources)
    columns = zip(*map(values, names), strict=True) if names else [()] * rows
    records = [dict(zip(names, row, strict=True)) for row in columns]
    if isinstance(rule, Fingerprint):
        return sha256_batch([_statement(rule, record) for record in records])
    hashes = b"".join(_record_hash(rule, record, None) for record in records)
    return np.frombuffer(hashes, np.uint8).reshape(rows, HASH_BYTES)


def pack_content(relation: Relation, row: Row) -> str:
    """Return the content columns of a row as JSON; bytes as base64."""
    body: dict[str, Any] = {}
    offset = 1 if relation.ordinal else 0
    for name in relation.content_columns:
        value = row[relation.index(name) + offset]
        body[name] = {"b64": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value
    return dump_json(body)


def unpack_content(body: str) -> dict[str, Any]:
    """Return the content packed by ``pack_content``. Raises: StorageError for a damaged body."""
    try:
        loaded: dict[str, Any] = json.loads(body)
        return {
            name: base64.b64decode(value["b64"]) if isinstance(value, dict) and "b64" in value else value
            for name, value in loaded.items()
        }
    except UNREADABLE:
        raise damaged("a kept version of a record is damaged", relation="content_version") from None
