"""Binary format of a window's record: packs and unpacks its inputs and its candidate columns.

The record is enough to explain and replay the window, in about ten bytes a candidate. Ids and content hashes are kept
for included records; every other record is named by its ordinal, which is never reused. Ages are kept in whole seconds:
the canonical order is the order of the columns, so nothing finer is needed (docs/decisions/0018).

Format 4: ``CWR`` and a version byte, then a zlib stream of: length and JSON of the inputs, length and f32-LE of the
query vector, number of candidates, columns. A column is its width in bytes (0: all zero) and its bytes by planes.
Everything decided before the budget is filled (passages, duplicates, values) is recorded, not computed again.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    AGE_US,
    CONSIDERED,
    DECIDED,
    ERROR,
    FIELDS,
    GROUP,
    LEAD,
    ORDINAL,
    ROW,
    SECTION,
    SOURCE,
    STORED_TOKENS,
    TURN_NUMBER,
    VALUE,
    VERSION,
    Candidates,
    entered,
    positions_as_tie,
)
from caliber.context.conversation import SPOKEN
from caliber.context.filling.filled import NO_RESERVE, Reserve
from caliber.context.inputs import WindowFacts
from caliber.context.plan import INT32_MAX, SOURCES, Measures, has_records
from caliber.context.record.rules import (
    packed_cut,
    packed_cut_off,
    packed_one_shot,
    typed,
    unpacked_cut,
    unpacked_cut_off,
    unpacked_one_shot,
)
from caliber.context.texts import RenderedTexts
from caliber.context.trace import Decided
from caliber.kernels import sha256_batch
from caliber.kernels.tokens.counting import Cut
from caliber.model.context import DecisionCode
from caliber.model.errors import StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import ScopeId, SpaceId, TrajectoryId, WindowId
from caliber.model.windows import Position

MAGIC: Final = b"CWR"
FORMAT: Final = 4
RECORD_MAX_BYTES: Final = 1 << 26
CANDIDATES_MAX: Final = 1 << 20
"""A record that unpacks to more bytes or candidates than this is not one of ours."""
HASH_BYTES: Final = 16
_LEVEL: Final = 2
"""Digests and ids do not compress: more effort takes twice as long and saves a hundredth."""
_WIDTHS: Final = (0, 1, 2, 4, 8)
_SECOND_US: Final = 1_000_000
_ONE_F32: Final = np.uint32(0x3F800000)
_UNDECIDED: Final = (
    DecisionCode.EXCLUDED_RELEVANCE,
    DecisionCode.EXCLUDED_DOSAGE,
    DecisionCode.EXCLUDED_ERROR,
    DecisionCode.EXCLUDED_DUPLICATE,
    DecisionCode.EXCLUDED_CONFLICT,
)
_CODES: Final = frozenset(int(code) for code in DecisionCode)
_CUT: Final = (DecisionCode.INCLUDED_TRUNCATED, DecisionCode.INCLUDED_COMPRESSED)


@dataclass(frozen=True, slots=True)
class Record:
    """A window's record, unpacked.

    Shapes: codes ``uint8[n]`` as finally decided; sizes ``int64[n]`` lengths, -1 where no text was looked at; shown
    the same after cuts.
    Units: ``ids`` and ``hashes`` by place in the canonical order, for what was included; ``cuts`` for what was cut;
    ``counts`` as in ``Decided``; ``erased`` the places whose content was forgotten, ``erased_sections`` whether texts
    of the caller's own were; ``shortened`` says of records that entered in short how much of them did.
    """

    facts: WindowFacts
    ranked: Candidates
    codes: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    shown: NDArray[np.int64]
    ids: Mapping[int, uuid.UUID]
    hashes: Mapping[int, bytes]
    cuts: Mapping[int, Cut]
    reserve: Reserve
    counts: Mapping[int, int] | None
    erased: frozenset[int] = frozenset()
    erased_sections: bool = False
    shortened: Mapping[int, Cut] = field(default_factory=dict)

    @property
    def known_cuts(self) -> Mapping[int, tuple[int, Cut]]:
        """The length and place of each cut."""
        return {place: (int(self.shown[place]), cut) for place, cut in self.cuts.items()}

    @property
    def undecided(self) -> NDArray[np.uint8]:
        """The codes as ranking gave them, before any budget."""
        return np.where(np.isin(self.codes, _UNDECIDED), self.codes, CONSIDERED).astype(np.uint8)


def content_hash(text: str) -> bytes:
    """Return the digest by which replay recognises a text."""
    return sha256(text.encode("utf-8")).digest()[:HASH_BYTES]


def content_hashes(texts: Sequence[str]) -> bytes:
    """Return the digests of texts, one after another."""
    digests = sha256_batch([text.encode("utf-8") for text in texts])
    return digests[:, :HASH_BYTES].tobytes()


# --- packing ------------------------------------------------------------------------------------


def pack_record(facts: WindowFacts, decided: Decided, rendered: RenderedTexts) -> bytes:
    """Return a window's record.

    Raises: StorageError for more candidates than a record holds.
    """
    if len(decided.ranked) > CANDIDATES_MAX:
        raise StorageError(f"a window of more than {CANDIDATES_MAX} candidates cannot be kept")
    ranked, codes, sizes = decided.ranked, decided.filled.codes, decided.sizes
    source = ranked[SOURCE]
    turns = np.flatnonzero(source == SPOKEN)
    by_ordinal = np.lexsort((ranked[ORDINAL], source))
    groups = ranked[GROUP][turns]
    if (groups >= 0).any():
        labels = np.unique(groups[groups >= 0])
        groups = np.where(groups >= 0, np.searchsorted(labels, groups) + 1, 0)
    else:
        groups = groups + 1
    age_s = ranked[AGE_US] // _SECOND_US
    kept = included_with_id(ranked, codes)
    ids = ranked.ids[kept].astype(">u8").tobytes()
    meta = json.dumps(_meta(facts, decided, rendered), ensure_ascii=False, separators=(",", ":")).encode()
    vector = b"" if facts.query_embedding is None else np.asarray(facts.query_embedding, "<f4").tobytes()
    parts = [
        struct.pack("<I", len(meta)),
        meta,
        struct.pack("<I", len(vector)),
        vector,
        struct.pack("<I", len(ranked)),
        _column(source),
        _column(ranked[SECTION]),
        _column(ranked[ORDINAL]),
        _column(ranked[VERSION]),
        _column(_zigzag(_deltas(age_s[by_ordinal]))),
        _column((ranked.relevance.view(np.uint32) ^ _ONE_F32).astype(np.int64)),
        *(_column(_zigzag(part.astype(np.int64))) for part in ranked.parts),
        _column(np.where(sizes >= 0, sizes, ranked[STORED_TOKENS])),
        _column(codes),
        _column(_zigzag(_deltas(ranked[TURN_NUMBER]))),
        _column(groups),
        *(_column(_zigzag(ranked[name])) for name in DECIDED),
        np.frombuffer(ids, np.uint8).reshape(len(kept), 16).T.tobytes(),
        content_hashes([rendered.whole.get(place) or rendered.texts[place] for place in kept.tolist()]),
    ]
    return MAGIC + bytes((FORMAT,)) + zlib.compress(b"".join(parts), _LEVEL)


def included_with_id(ranked: Candidates, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the places of included records."""
    included = entered(codes)
    return included[has_records(ranked[SOURCE].take(included))]


def _deltas(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.diff(values, prepend=np.int64(0))


def _zigzag(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return (values << 1) ^ (values >> 63)


def _column(values: NDArray[Any]) -> bytes:
    raw = values.astype(np.uint64)
    top = int(raw.max()) if len(raw) else 0
    width = next(w for w in _WIDTHS if top < 1 << (8 * w))
    planes = raw.astype("<u8").view(np.uint8).reshape(len(raw), 8)[:, :width].T
    return bytes((width,)) + planes.tobytes()


def _meta(facts: WindowFacts, decided: Decided, rendered: RenderedTexts) -> dict[str, Any]:
    measures, counts = facts.measures, decided.counts
    out: dict[str, Any] = {
        "window": facts.window_id.hex,
        "trajectory": facts.trajectory_id.hex,
        "scope": None if facts.scope_id is None else facts.scope_id.hex,
        "principal": facts.principal,
        "epoch": facts.position.epoch,
        "sequence": facts.position.sequence,
        "config": facts.config_hash,
        "evaluator": facts.evaluator,
        "max_tokens": facts.max_tokens,
        "now_us": facts.now_us,
        "as_of_us": facts.as_of_us,
        "query": facts.query,
        "query_from": facts.query_from,
        "space": None if facts.space_id is None else facts.space_id.hex,
        "extra": dict(facts.extra_sections),
        "degraded": list(facts.degraded),
        "parts": list(decided.ranked.part_names),
        "measures": [
            measures.estimator,
            measures.numerator,
            measures.denominator,
            measures.additive,
            measures.separator,
            list(measures.headers),
        ],
        "reserve": [decided.reserve.total, list(decided.reserve.sections)],
        "counts": None if counts is None else sorted(counts.items()),
        "cut": [packed_cut(place, int(decided.shown[place]), cut) for place, cut in sorted(rendered.cuts.items())],
        "cut_offs": [packed_cut_off(item) for item in facts.cut_offs],
    }
    # Fields for injection rules are present only where there are such rules.
    if facts.once:
        out["once"] = [packed_one_shot(shot) for shot in facts.once]
    if facts.declared:
        out["own"] = sorted(facts.declared.items())
    if rendered.shortened:
        out["short"] = [packed_cut(place, 0, cut) for place, cut in sorted(rendered.shortened.items())]
    return out


# --- unpacking ----------------------------------------------------------------------------------


def unpack_record(raw: bytes) -> Record:
    """Return the contents of a record made by ``pack_record``.

    Raises: StorageError for anything that is not a complete record of a known format.
    """
    if len(raw) < 4 or raw[:3] != MAGIC:
        raise _broken("it does not begin like one")
    if raw[3] != FORMAT:
        raise _broken(f"its format {raw[3]} is not known to this version")
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(raw[4:], RECORD_MAX_BYTES)
    except zlib.error as error:
        raise _broken("it is damaged") from error
    if not unpacker.eof or unpacker.unused_data or unpacker.unconsumed_tail:
        raise _broken("it ends early, or has something after its end")
    return unpack_body(body)


def principal_of(raw: bytes) -> str:
    """Return the principal of a window's record.

    Raises: StorageError.
    """
    return unpack_record(raw).facts.principal


def unpack_body(body: bytes) -> Record:
    """Return the record in an unpacked stream.

    Raises: StorageError.
    """
    reader = _Reader(body)
    try:
        meta = json.loads(reader.take(reader.length()))
        vector = reader.take(reader.length())
        facts = _facts(meta, vector)
        filling = _filling(meta)
        parts = tuple(typed(name, str) for name in typed(meta["parts"], list))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken("its inputs cannot be read") from error
    return _columns(reader, facts, filling, parts)


def _facts(meta: Any, vector: bytes) -> WindowFacts:
    def text(name: str) -> str:
        out: str = typed(meta[name], str)
        return out

    def number(name: str) -> int:
        out: int = typed(meta[name], int)
        return out

    extra = typed(meta["extra"], dict)
    cut_offs = tuple(unpacked_cut_off(typed(item, list)) for item in typed(meta["cut_offs"], list))
    query = meta["query"]
    embedding = np.frombuffer(vector, "<f4").astype(np.float32) if vector else None
    return WindowFacts(
        window_id=WindowId(uuid.UUID(hex=text("window"))),
        trajectory_id=TrajectoryId(uuid.UUID(hex=text("trajectory"))),
        scope_id=None if meta["scope"] is None else ScopeId(uuid.UUID(hex=text("scope"))),
        principal=text("principal"),
        position=Position(text("epoch"), number("sequence")),
        config_hash=text("config"),
        evaluator=text("evaluator"),
        measures=_measures(meta["measures"]),
        max_tokens=number("max_tokens"),
        now_us=number("now_us"),
        as_of_us=number("as_of_us"),
        query=None if query is None else typed(query, str),
        query_from=text("query_from"),
        query_embedding=embedding,
        space_id=None if meta["space"] is None else SpaceId(uuid.UUID(hex=text("space"))),
        extra_sections={typed(name, str): typed(value, str) for name, value in extra.items()},
        cut_offs=cut_offs,
        degraded=tuple(typed(reason, str) for reason in typed(meta["degraded"], list)),
        declared={typed(source, int): typed(name, str) for source, name in typed(meta.get("own", []), list)},
        once=tuple(unpacked_one_shot(*typed(item, list)) for item in typed(meta.get("once", []), list)),
    )


def _measures(raw: Any) -> Measures:
    name, numerator, denominator, additive, separator, headers = typed(raw, list)
    out = Measures(
        typed(name, str),
        typed(numerator, int),
        typed(denominator, int),
        typed(additive, bool),
        typed(separator, int),
        tuple(typed(header, int) for header in typed(headers, list)),
    )
    if min(out.numerator, out.denominator) < 1 or min(out.separator, *out.headers) < 0:
        raise ValueError("no estimator measures like this")
    return out


@dataclass(frozen=True, slots=True)
class _Filling:
    """Inputs of the fill that are not columns. Units: ``cut`` are lengths by place."""

    cut: Mapping[int, int]
    cuts: Mapping[int, Cut]
    reserve: Reserve = NO_RESERVE
    counts: Mapping[int, int] | None = None
    erased: frozenset[int] = frozenset()
    erased_sections: bool = False
    shortened: Mapping[int, Cut] = field(default_factory=dict)


def _filling(meta: Any) -> _Filling:
    rows = [unpacked_cut(row) for row in typed(meta["cut"], list)]
    total, sections = typed(meta["reserve"], list)
    counts = meta["counts"]
    erased, sections_too = typed(meta.get("erased", [[], False]), list)
    short = {place: cut for place, _, cut in map(unpacked_cut, typed(meta.get("short", []), list))}
    out = _Filling(
        cut={place: size for place, size, _ in rows},
        cuts={place: cut for place, _, cut in rows},
        reserve=Reserve(typed(total, int), tuple((typed(s, int), typed(n, int)) for s, n in sections)),
        counts=None if counts is None else {typed(s, int): typed(n, int) for s, n in typed(counts, list)},
        erased=frozenset(typed(place, int) for place in typed(erased, list)),
        erased_sections=typed(sections_too, bool),
        shortened=short,
    )
    held = (out.reserve.total, *(length for _, length in out.reserve.sections), *(out.counts or {}).values())
    if min(held) < 0:
        raise ValueError("nothing is filled like this")
    return out


def _columns(reader: _Reader, facts: WindowFacts, filling: _Filling, names: tuple[str, ...]) -> Record:
    count = reader.length()
    if count > min(CANDIDATES_MAX, reader.rest):
        raise _broken("it ends early, or holds too many candidates")
    numbers = np.zeros((FIELDS, count), np.int64)
    numbers[ROW] = -1
    source = numbers[SOURCE] = reader.column(count)
    if set(np.unique(source).tolist()) - SOURCES - facts.declared.keys():
        raise _broken("it names a source that does not exist")
    turns = np.flatnonzero(source == SPOKEN)
    for name in (SECTION, ORDINAL, VERSION):
        numbers[name] = reader.column(count)
    by_ordinal = np.lexsort((numbers[ORDINAL], source))
    numbers[AGE_US, by_ordinal] = np.cumsum(_unzigzag(reader.column(count))) * _SECOND_US
    bits = reader.column(count)
    relevance = (bits.astype(np.uint32) ^ _ONE_F32).view(np.float32)
    parts = [_unzigzag(reader.column(count)) for _ in names]
    if any(bool(((part > INT32_MAX) | (part < -INT32_MAX)).any()) for part in parts):
        raise _broken("a part of a relevance is too large")
    sizes = reader.column(count)
    codes = reader.column(count)
    if not set(np.unique(codes).tolist()) <= _CODES or not np.isfinite(relevance).all():
        raise _broken("it holds a decision or a relevance that does not exist")
    numbers[TURN_NUMBER] = np.cumsum(_unzigzag(reader.column(count)))
    numbers[GROUP] = -1
    numbers[GROUP, turns] = reader.column(len(turns)) - 1
    for name in DECIDED:
        numbers[name] = _unzigzag(reader.column(count))
    if (numbers[VALUE] != numbers[VALUE].astype(np.float32)).any() or (numbers[LEAD] < 0).any():
        raise _broken("it values candidates as nothing is")
    numbers[ERROR] = codes == DecisionCode.EXCLUDED_ERROR
    looked_at = ~np.isin(codes, _UNDECIDED)
    numbers[STORED_TOKENS] = np.where(looked_at, 0, sizes)
    adds = np.array(parts, np.int32).reshape(len(names), count)
    ids = np.zeros((count, 2), np.uint64)
    ranked = Candidates(numbers, relevance, positions_as_tie(count), ids, names, adds)
    kept = included_with_id(ranked, codes.astype(np.uint8))
    raw = np.frombuffer(reader.take(16 * len(kept)), np.uint8).reshape(16, len(kept)).T.tobytes()
    if len(kept):
        ranked.ids[kept] = np.frombuffer(raw, ">u8").reshape(len(kept), 2)
    hashes = reader.take(HASH_BYTES * len(kept))
    reader.end()
    places = kept.tolist()
    sizes = np.where(looked_at, sizes, -1)
    shown = sizes.copy()
    for place, size in filling.cut.items():
        if not 0 <= place < count or codes[place] not in _CUT or not 0 <= size <= sizes[place]:
            raise _broken("it cuts what it does not include")
        shown[place] = size
    return Record(
        facts=facts,
        ranked=ranked,
        codes=codes.astype(np.uint8),
        sizes=sizes,
        shown=shown,
        ids={place: uuid.UUID(bytes=raw[16 * at : 16 * at + 16]) for at, place in enumerate(places)},
        hashes={place: hashes[HASH_BYTES * at : HASH_BYTES * (at + 1)] for at, place in enumerate(places)},
        cuts=filling.cuts,
        reserve=filling.reserve,
        counts=filling.counts,
        erased=filling.erased,
        erased_sections=filling.erased_sections,
        shortened=filling.shortened,
    )


def _unzigzag(values: NDArray[np.int64]) -> NDArray[np.int64]:
    raw = values.view(np.uint64)
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64)


class _Reader:
    """Reads a stream and never past its end."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._body):
            raise _broken("it ends early")
        out = self._body[self._at : end]
        self._at = end
        return out

    @property
    def rest(self) -> int:
        return len(self._body) - self._at

    def length(self) -> int:
        (value,) = struct.unpack("<I", self.take(4))
        return int(value)

    def column(self, count: int) -> NDArray[np.int64]:
        width = self.take(1)[0]
        if width not in _WIDTHS:
            raise _broken("a column has an impossible width")
        planes = np.frombuffer(self.take(width * count), np.uint8).reshape(width, count)
        out = np.zeros((count, 8), np.uint8)
        out[:, :width] = planes.T
        return out.view("<u8").reshape(count).astype(np.uint64).view(np.int64)

    def end(self) -> None:
        if self._at != len(self._body):
            raise _broken("it has something after its end")


def _broken(reason: str) -> StorageError:
    return StorageError(f"a window's record cannot be read: {reason}")
