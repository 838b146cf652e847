"""The whole of search once more, in plain Python: what a store holds and a question in, the answer out.

Written from docs/search.md and the knobs of ``caliber.config.search``, for tests to hold ``Caliber.search`` to. It
reads records as ``Caliber.storage`` gives them, one after another, with nothing kept, indexed or compiled; nothing of
``caliber.search`` or of its kernels is used. Numbers are f64, rounded to f32 where docs/search.md or the design's
section 5 says so, and added in the order of the formulas, so that answers can be compared bit for bit.
"""

from __future__ import annotations

import datetime
import itertools
import math
import struct
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from support.search.twin_text import NAME_PARTS, Language, Question, days_meant, parts_of, understand, words_of

from caliber.model.knowledge import NOBODY
from caliber.search import searcher
from caliber.search.ranking import floor as thresholds
from caliber.search.ranking import graph as graph_leg
from caliber.search.ranking import legs

KINDS = ("note", "artifact", "turn", "scope")
LEGS = ("vector", "keyword", "graph", "importance")
FREQUENCIES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256)
QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e", "\u055e")
LEAST = 1e-6
DIVERSE_POOL = 100
QUERY_WORDS_MAX = 1_024
SAYING_WORDS = 4
QUESTION_WORDS = 3.0
UNSEEN_TEXTS = 100
SIMILAR_MAX = 64
NEUTRAL_IMPORTANCE = 5.0
RRF_CONSTANT = 60
DAY_US = 86_400_000_000


def f32(value: float) -> float:
    """Return a number rounded to single precision."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def us(when: datetime.datetime | None) -> int | None:
    """Return an instant in microseconds since 1970."""
    if when is None:
        return None
    return (when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def day_us(day: datetime.date) -> int:
    return (day - datetime.date(1970, 1, 1)).days * DAY_US


# --- vectors: eight lanes, folded 4-2-1 -----------------------------------------------------------


def folded(products: Sequence[float]) -> float:
    lanes = [0.0] * 8
    for at, product in enumerate(products):
        lanes[at % 8] += product
    four = [lanes[at] + lanes[at + 4] for at in range(4)]
    return (four[0] + four[2]) + (four[1] + four[3])


def similarity(one: Sequence[float], other: Sequence[float], metric: str = "cosine") -> float:
    """Return how alike two vectors are, in single precision."""
    if metric == "l2":
        return f32(1.0 / (1.0 + math.sqrt(folded([(a - b) * (a - b) for a, b in zip(one, other, strict=True)]))))
    product = folded([a * b for a, b in zip(one, other, strict=True)])
    if metric == "inner_product":
        return f32(product)
    lengths = math.sqrt(folded([a * a for a in other])) * math.sqrt(folded([b * b for b in one]))
    return f32(min(max(product / lengths, -1.0), 1.0)) if lengths else 0.0


# --- what a store holds ---------------------------------------------------------------------------


@dataclass(eq=False)
class Record:
    """One record, with what searching needs of it."""

    kind: str
    id: uuid.UUID
    entity: Any
    head: str | None
    text: bytes
    at_us: int
    vectors: list[array[float]] = field(default_factory=list)
    before: Record | None = None
    after: Record | None = None
    document: bytes = b""
    parts: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    length: int = 0
    dated: bool = False
    asks: bool = False

    def add_vector(self, raw: bytes) -> None:
        self.vectors.append(array("f", raw))

    def read(self, language: Language) -> None:
        """Take in the words."""
        document = self.document = f"{self.head}: ".encode() + self.text if self.head else self.text
        meanings = [language.meaning(word) for word in words_of(document)]
        self.parts = tuple(part for meaning in meanings for part in meaning.parts)
        terms = [term for meaning in meanings for term in dict.fromkeys(meaning.terms)]
        self.counts = dict(Counter(terms))
        self.length = len(terms)
        self.dated = any(meaning.dated for meaning in meanings)
        self.asks = document.rstrip().endswith(tuple(mark.encode() for mark in QUESTION_MARKS))


@dataclass
class World:
    """All records of a store, its links and what was used when."""

    records: list[Record]
    edges: list[Any]
    used: dict[tuple[uuid.UUID, uuid.UUID | None], int]
    """The instant of the last use of a record, by its id and that of whose use it was."""
    readers: dict[str, uuid.UUID] = field(default_factory=dict)
    """The ids of the principals that the store knows, by name."""


def world_of(storage: Any, space_id: uuid.UUID | None, language: Language) -> World:
    """Return the contents of a store, read through ``Caliber.storage``."""
    records: list[Record] = []
    for note in storage.notes.all():
        at = us(note.occurred_at or note.created_at)
        records.append(Record("note", note.note_id, note, note.entity, note.content.encode(), at))
    for artifact in storage.artifacts.all():
        at = us(artifact.occurred_at or artifact.created_at)
        records.append(Record("artifact", artifact.artifact_id, artifact, None, artifact.content, at))
    for turn in storage.turns.all():
        at = us(turn.occurred_at or turn.created_at)
        records.append(Record("turn", turn.turn_id, turn, turn.name, turn.content, at))
    for scope in storage.scopes.all():
        records.append(
            Record("scope", scope.scope_id, scope, None, (scope.summary or "").encode(), us(scope.opened_at))
        )
    by_id = {record.id: record for record in records}
    for row in storage.embeddings.all() if space_id is not None else ():
        if row.space_id == space_id and row.owner_id in by_id:
            by_id[row.owner_id].add_vector(row.vector)
    used = {(usage.owner_id, usage.used_by): us(usage.last_accessed_at) for usage in storage.usages.all()}
    for record in records:
        record.read(language)
    link_turns(records)
    readers = {identity.name: identity.entity.id for identity in storage.identities.all()}
    return World(records, [edge for edge in storage.edges.all() if edge.removed_at is None], used, readers)


def link_turns(records: Iterable[Record]) -> None:
    """Link each turn with the one before and the one after it in its scope."""
    turns = sorted(
        (record for record in records if record.kind == "turn"),
        key=lambda record: (record.entity.scope_id, record.entity.sequence),
    )
    for turn in turns:
        turn.before = turn.after = None
    for one, other in itertools.pairwise(turns):
        if one.entity.scope_id == other.entity.scope_id:
            one.after, other.before = other, one


# --- one question ---------------------------------------------------------------------------------


@dataclass
class Given:
    """The inputs of the twin that it does not work out: a language, and the vectors of words and of the question."""

    language: Language
    word_vector: Callable[[str], Sequence[float]] | None = None
    query_vector: Sequence[float] | None = None
    metric: str = "cosine"
    degraded: str | None = None
    space: str = ""


@dataclass
class Hit:
    record: Record
    score: float
    breakdown: dict[str, float]
    found_by: tuple[str, ...]
    exact: float = 0.0
    """The score in double precision."""


@dataclass
class Answer:
    hits: list[Hit]
    status: str
    reason: str | None
    question: Question | None = None
    names: tuple[str, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    below: tuple[float | None, float | None, float, float] | None = None
    """Best and least similarity, best and least share of the question's words, if nothing reaches the floor."""


@dataclass
class Asked:
    """A question and what it is asked with."""

    text: str
    settings: Any
    kinds: Sequence[str] = KINDS
    limit: int = 10
    filter: Mapping[str, Any] = field(default_factory=dict)
    as_of_us: int = 0
    now_us: int = 0
    sees: Callable[[Sequence[str] | None], bool] = lambda visible_to: True
    used_by: uuid.UUID | None = NOBODY
    """Whose uses of records may show in the answer."""


class Twin:
    """One question to one store."""

    def __init__(self, world: World, given: Given, asked: Asked) -> None:
        self.world, self.given, self.asked, self.settings = world, given, asked, asked.settings
        kinds = [kind for kind in dict.fromkeys(asked.kinds) if _has_columns(world, kind, asked.filter)]
        self.in_force = [record for record in world.records if self._in_force(record)]
        self.visible = [record for record in self.in_force if record.kind in kinds]
        self.allowed = [record for record in self.visible if _matches(record.entity, asked.filter)]
        self.below: tuple[float | None, float | None, float, float] | None = None
        self.searched = any(record.kind in kinds for record in world.records)
        self.silent = {
            term for word in given.language.stop_words for term in given.language.meaning(word).terms
        }  # fmt: skip

    def _in_force(self, record: Record) -> bool:
        entity, asked = record.entity, self.asked
        if record.kind == "note":
            begun = entity.valid_from is None or us(entity.valid_from) <= asked.as_of_us
            going = entity.valid_until is None or us(entity.valid_until) > asked.as_of_us
            return begun and going and entity.active and asked.sees(entity.visible_to)
        if record.kind == "artifact":
            gone = entity.superseded_by or entity.rolled_back_at or entity.retired_at
            return not gone and (entity.expires_at is None or us(entity.expires_at) > asked.now_us)
        return record.kind == "turn" or entity.summary_tokens > 0

    def answer(self) -> Answer:
        """Return hits best first, and how the question was understood."""
        if not self.asked.text.strip():
            hits = self._recent()
            return Answer(hits, "ok" if hits else "empty", None)
        question = understand(self.asked.text, self.given.language, self._today, max_words=QUERY_WORDS_MAX)
        weights, degraded = self._weights()
        hits, names = self._found(question, weights) if self.searched else ([], ())
        status = "degraded" if degraded else "ok" if hits else "empty"
        return Answer(hits, status, degraded, question, names, weights, self.below)

    def _today(self) -> tuple[datetime.date, datetime.tzinfo, datetime.date]:
        """The day of the question and of the newest record, at UTC."""
        newest = min([self.asked.now_us, max((record.at_us for record in self.visible), default=self.asked.now_us)])
        start = datetime.datetime(1970, 1, 1)  # noqa: DTZ001
        days = [(start + datetime.timedelta(microseconds=at)).date() for at in (self.asked.now_us, newest)]
        return days[0], datetime.UTC, days[1]

    def _weights(self) -> tuple[dict[str, float], str | None]:
        weights = {leg: float(getattr(self.settings.weights, leg)) for leg in LEGS}
        degraded = None
        if self.given.query_vector is None:
            degraded = self.given.degraded if weights["vector"] else None
            weights["vector"] = 0.0
        if not self.settings.graph.conversation and not self._links():
            weights["graph"] = 0.0
        total = sum(weights.values())
        return ({leg: weight / total for leg, weight in weights.items()} if total else weights), degraded

    def _found(self, question: Question, weights: dict[str, float]) -> tuple[list[Hit], tuple[str, ...]]:
        settings = self.settings
        of_days = self._of_days(question)
        happened = [record for record in self.visible if self._happened(record, question.days)]
        if question.days is not None and not 0 < len(happened) < len(self.visible):
            question = replace(question, terms=list(dict.fromkeys([*question.terms, *question.day_terms])))
        own, whole = self._by_word(question)
        nearest = self._nearest() if weights["vector"] else []
        near = nearest[: settings.vector_candidates]
        vector = self._normalised(near)
        own_share, lent_share = self._shares(own, whole)
        graph = self._by_link(own_share, lent_share, vector, weights)
        finders = {
            "vector": {record for record, _ in near},
            "keyword": {record for record in self.visible if whole[record] > 0},
            "graph": {record for record in self.visible if graph[record] > 0},
        }
        added = set()
        if question.days is not None and (question.of_days or not (question.terms or question.prefixes)):
            added = of_days
            finders["keyword"] = finders["keyword"] if question.terms or question.prefixes else set()
        if settings.fusion == "rrf":
            own_share = self._ranks({record: own_share[record] + lent_share[record] for record in self.visible})
            lent_share = dict.fromkeys(self.visible, 0.0)
            vector, graph = self._ranks(vector), self._ranks(graph)
        names, boosts = self._boosts(question)
        total = (sum(weights.values()) + sum(max(weight, 0.0) for _, weight, _ in boosts)) or 1.0
        hits = []
        for record in self.allowed:
            found_by = tuple(leg for leg in LEGS if record in finders.get(leg, ()))
            if not found_by and record not in added:
                continue
            parts: list[tuple[str, float, float]] = [
                ("keyword", weights["keyword"], own_share[record]),
                ("neighbour_boost", weights["keyword"], lent_share[record]),
                ("vector", weights["vector"], vector[record]),
                ("graph", weights["graph"], graph[record]),
                ("importance", weights["importance"], self._importance(record)),
            ]
            parts += [(name, weight, scores(record)) for name, weight, scores in boosts]
            score, breakdown = 0.0, {}
            for name, weight, value in parts:
                if weight:
                    score += weight / total * value
                    if weight / total * value:
                        breakdown[name] = weight / total * value
            hits.append(Hit(record, f32(max(score, LEAST)), breakdown, found_by, max(score, LEAST)))
        if settings.boosts.recency and question.days is None:
            for kind in dict.fromkeys(hit.record.kind for hit in hits):
                self._newer_first([hit for hit in hits if hit.record.kind == kind], question, own)
        least = self._least_similarity() if weights["vector"] else None
        bound = question.of_days and self.settings.floor.words and any(hit.record in of_days for hit in hits)
        if bound:
            others = self._of_other_days(hits, of_days, question, dict(near), least, compared=weights["vector"] > 0)
            hits = [hit for hit in hits if hit.record in of_days or hit.record in others]
        else:
            hits = self._above_the_floor(hits, question, dict(near), graph, least, compared=weights["vector"] > 0)
        hits.sort(key=lambda hit: (-hit.score, hit.record.id))
        hits = self._diverse(hits)
        if hits or not self.settings.floor.words:
            beyond = [] if bound else self._beyond(nearest, {hit.record for hit in hits})
            if self.settings.floor.words:
                alike = dict(nearest)
                beyond = [hit for hit in beyond if not question.idle and alike[hit.record] >= least]
            hits += beyond
        return hits[: self.asked.limit], tuple(" ".join(name) for name in names)

    def _newer_first(self, hits: list[Hit], question: Question, own: Mapping[Record, float]) -> None:
        """Lower the statements of a thing below newer ones with another value, among the best of a kind."""
        best = sorted(hits, key=lambda hit: (-hit.score, hit.record.id))[:8]
        best = [hit for hit in best if 3 <= hit.record.length <= 32 and own[hit.record] > 0]
        scores = {hit.record: hit.exact for hit in best}
        before = dict(scores)
        language = self.given.language

        def follows(old: Record, new: Record) -> bool:
            """Return whether a newer record may state another value of what an older one states."""
            sizes = sorted((old.length, new.length))
            return (
                new.at_us > old.at_us
                and before[old] * 0.8 <= before[new]
                and 0.6 * sizes[1] <= sizes[0]
                and 0.6 * own[old] <= own[new]
            )

        for hit in sorted(best, key=lambda hit: -hit.record.at_us):
            old = hit.record
            for new in (other.record for other in best):
                if not follows(old, new) or old.head != new.head:
                    continue
                one, other = set(words_of(old.document)), set(words_of(new.document))
                common = len(one & other)
                asked = {term for word in one - other for term in language.meaning(word).terms} & set(question.terms)
                alike = common >= 3 and 0.6 * max(len(one), len(other)) <= common < min(len(one), len(other))
                if alike and not asked:
                    scores[old] = min(scores[old], scores[new] * (1 - 2**-20))
        for hit in best:
            if scores[hit.record] != hit.exact:
                hit.breakdown["outdated"] = scores[hit.record] - hit.exact
                hit.score, hit.exact = f32(scores[hit.record]), scores[hit.record]

    # --- days -------------------------------------------------------------------------------------

    def _happened(self, record: Record, days: tuple[datetime.date, datetime.date] | None) -> bool:
        return days is not None and day_us(days[0]) <= record.at_us < day_us(days[1]) + DAY_US

    def _of_days(self, question: Question) -> set[Record]:
        """Return the records of the days of a question: what happened on them, and what means them."""
        if question.days is None:
            return set()
        first, last = question.days
        found = {record for record in self.visible if self._happened(record, question.days)}
        for record in self.visible:
            far = max(day_us(first) - record.at_us, record.at_us - (day_us(last) + DAY_US - 1))
            if not record.dated or far > 31 * DAY_US:
                continue
            day = datetime.date(1970, 1, 1) + datetime.timedelta(record.at_us // DAY_US)
            for start, end in days_meant(record.document, day):
                within = first <= start and end <= last
                if within or ((end - start).days < 7 and start <= last and first <= end):
                    found.add(record)
        return found

    def _of_other_days(
        self,
        hits: list[Hit],
        of_days: set[Record],
        question: Question,
        near: Mapping[Record, float],
        least: float | None,
        *,
        compared: bool,
    ) -> set[Record]:
        """Return the hits of other days that hold most other words, where no record of the days is strong by these."""
        holding = Counter(term for record in self.visible for term in record.counts)
        told = [
            group
            for group, beginning in self._groups(question, holding)
            if (beginning or group[0][0] not in question.fillers) and any(holding[term] for term, _ in group)
        ]
        if len(told) < 2:
            return set()
        shares = self._covered(question, days=False)
        strong = self._strong(hits, question, near, shares, least, compared=compared)
        if strong & of_days:
            return set()
        return {hit.record for hit in hits if shares[hit.record] >= 0.6}

    # --- the floor --------------------------------------------------------------------------------

    def _least_similarity(self) -> float:
        """Return the similarity from which on a record counts as found; minus infinity where none was measured."""
        model, _, size = self.given.space.partition("@")
        known = self.settings.floor.similarity
        start, _, cut = model.rpartition("/")
        uncut = f"{start}@{size}" if start and cut.isdigit() else self.given.space
        least = known.get(self.given.space, known.get(uncut))
        return -math.inf if least is None else f32(least)

    def _above_the_floor(
        self,
        hits: list[Hit],
        question: Question,
        near: Mapping[Record, float],
        graph: Mapping[Record, float],
        least: float | None,
        *,
        compared: bool,
    ) -> list[Hit]:
        """Return the hits that count as found; keep what evidence there was where none does."""
        if not self.settings.floor.words or not hits:
            return hits
        shares = self._covered(question)
        strong = self._strong(hits, question, near, shares, least, compared=compared)
        if not strong:
            best = None if question.idle else max(near.values(), default=None)
            measured = None if least is None or math.isinf(least) else least
            self.below = (
                best,
                measured,
                max((shares[hit.record] for hit in hits), default=0.0),
                self._least_words(compared),
            )
            return []
        rest = f32(thresholds.REST)
        return [hit for hit in hits if hit.record in strong or hit.score >= rest or graph[hit.record] > 0]

    def _least_words(self, compared: bool) -> float:
        return self.settings.floor.words if compared else min(self.settings.floor.words, thresholds.WORDS_ALONE)

    def _strong(
        self,
        hits: list[Hit],
        question: Question,
        near: Mapping[Record, float],
        shares: Mapping[Record, float],
        least: float | None,
        *,
        compared: bool,
    ) -> set[Record]:
        """Return the hits that count as found by their own evidence."""
        quoted = list(question.phrases)
        if len(question.saying) >= SAYING_WORDS:
            quoted.append(question.saying)
        strong = set()
        for record in (hit.record for hit in hits):
            by_vector = record in near and not question.idle and near[record] >= least
            if shares[record] >= self._least_words(compared) or by_vector or _says_one_of(record.parts, quoted):
                strong.add(record)
        return strong

    def _covered(self, question: Question, *, days: bool = True) -> dict[Record, float]:
        """Return the share of the question, by rarity, that each record holds."""
        holding = Counter(term for record in self.visible for term in record.counts)
        texts = len(self.visible) + UNSEEN_TEXTS

        def rarity(count: int) -> float:
            return math.log(1 + (texts - count + 0.5) / (count + 0.5))

        total, held = 0.0, dict.fromkeys(self.visible, 0.0)
        for group, beginning in self._groups(question, holding):
            if not beginning and group[0][0] in question.fillers:
                continue
            if beginning:
                weight = rarity(min(len(self.visible), sum(holding[term] for term, _ in group)))
            else:
                weight = rarity(holding[group[0][0]])
            total += weight
            known = [(term, near) for term, near in group if holding[term]][:SIMILAR_MAX]
            for record in self.visible:
                shares = [near * min(rarity(holding[term]), weight) for term, near in known if term in record.counts]
                if shares:
                    held[record] += max(shares)
        happened = sum(self._happened(record, question.days) for record in self.visible)
        if days and happened:
            weight = rarity(happened)
            total += weight
            for record in self._of_days(question):
                held[record] += weight
        total = min(total, QUESTION_WORDS * rarity(0))
        return {record: share / total if total else 0.0 for record, share in held.items()}

    # --- words ------------------------------------------------------------------------------------

    def _by_word(self, question: Question) -> tuple[dict[Record, float], dict[Record, float]]:
        """Return each record's score by words, its own and with what neighbours lend."""
        settings, total = self.settings.keyword, len(self.visible)
        holding = Counter(term for record in self.visible for term in record.counts)
        mean = {
            kind: sum(found) / len(found)
            for kind in KINDS
            if (found := [record.length for record in self.visible if record.kind == kind])
        }
        own, whole = dict.fromkeys(self.visible, 0.0), dict.fromkeys(self.visible, 0.0)

        def rarity(count: int) -> float:
            return math.log(1 + (total - count + 0.5) / (count + 0.5))

        def saturated(worth: float, rare: float) -> float:
            return rare * worth / (worth + settings.saturate * rare) if settings.saturate > 0 else worth

        for group, beginning in self._groups(question, holding):
            held = [(term, near) for term, near in group if holding[term]][:SIMILAR_MAX]
            if not held:
                continue
            if beginning:
                rare = rarity(min(total, sum(holding[term] for term, _ in group)))
            else:
                rare = rarity(holding[group[0][0]])
            strengths = {term: near * min(rarity(holding[term]), rare) for term, near in held}
            reached = {
                record: max(
                    (
                        strength * ((settings.k1 + 1) * f / (f + room))
                        for term, strength in strengths.items()
                        if term in record.counts
                        for f in [max(step for step in FREQUENCIES if step <= record.counts[term])]
                        for room in [
                            settings.k1 * (1 - settings.b + settings.b * (record.length / mean[record.kind]))
                        ]
                    ),
                    default=0.0,
                )
                for record in self.visible
            }  # fmt: skip
            for record in self.visible:
                together = self._with_lent(record, reached)
                if reached[record]:
                    own[record] += saturated(reached[record], rare)
                if together:
                    whole[record] += saturated(together, rare)
        return own, whole

    def _with_lent(self, record: Record, reached: Mapping[Record, float]) -> float:
        settings, worth = self.settings.keyword, reached[record]
        if record.kind != "turn":
            return worth

        def of(other: Record | None) -> float:
            return 0.0 if other is None else reached.get(other, 0.0)

        before, after = record.before, record.after
        worth += settings.neighbour_boost * (of(before) + of(after))
        worth += legs.FAR_SHARE * settings.neighbour_boost * (of(before and before.before) + of(after and after.after))
        if before is not None and before.asks:
            worth += settings.neighbour_boost * of(before)
        return worth

    def _groups(self, question: Question, holding: Mapping[str, int]) -> list[tuple[list[tuple[str, float]], bool]]:
        """Return the terms that may match each word and their nearness, the word's own first."""
        out = [([(term, 1.0), *self._similar(term, holding)], False) for term in question.terms]
        for beginning in question.prefixes:
            begun = {
                term
                for record in self.visible
                for part in record.parts
                if part.startswith(beginning)
                for term in self.given.language.meaning(part).terms
                if term in record.counts
            }
            out.append(([(term, 1.0) for term in sorted(begun)], True))
        return out

    def _similar(self, term: str, holding: Mapping[str, int]) -> list[tuple[str, float]]:
        least = searcher.SIMILAR_MIN
        if self.given.word_vector is None or not self._speaks(term):
            return []
        vector = self.given.word_vector(term)
        if not any(vector):
            return []
        out = []
        for other in holding:
            if other != term and self._speaks(other):
                alike = similarity(vector, self.given.word_vector(other))
                near = min(max((alike - least) / (1 - least), 0.0), 1.0)
                if alike >= f32(least) and near > 0:
                    out.append((other, near))
        return sorted(out, key=lambda item: (-item[1], item[0]))

    def _speaks(self, term: str) -> bool:
        return term.isalpha() and term not in self.silent

    def _shares(
        self, own: Mapping[Record, float], whole: Mapping[Record, float]
    ) -> tuple[dict[Record, float], dict[Record, float]]:
        """Return scores by words between 0 and 1: own, and lent."""
        if self.settings.normalisation == "saturation":
            return (
                {record: own[record] / (own[record] + 1) for record in own},
                {record: whole[record] / (whole[record] + 1) - own[record] / (own[record] + 1) for record in own},
            )
        peak = max((whole[record] for record in self.allowed), default=0.0)
        if not peak:
            return dict.fromkeys(own, 0.0), dict.fromkeys(own, 0.0)
        return (
            {record: own[record] / peak for record in own},
            {record: whole[record] / peak - own[record] / peak for record in own},
        )

    # --- vectors ----------------------------------------------------------------------------------

    def _nearest(self) -> list[tuple[Record, float]]:
        """Return the records nearest to the question, those that a large limit is filled up with included."""
        query, least = self.given.query_vector, f32(self.settings.min_similarity)
        if query is None:
            return []
        found = []
        for record in self.allowed:
            if record.vectors:
                best = max(similarity(query, vector, self.given.metric) for vector in record.vectors)
                if best >= least:
                    found.append((record, best))
        found.sort(key=lambda item: (-item[1], item[0].id))
        return found[: max(self.settings.vector_candidates, self.settings.candidate_factor * self.asked.limit)]

    def _normalised(self, near: Sequence[tuple[Record, float]]) -> dict[Record, float]:
        scores = dict.fromkeys(self.visible, 0.0)
        for record, alike in near:
            best, floor = near[0][1], near[-1][1]
            if self.settings.normalisation == "saturation":
                scores[record] = min(max(alike, 0.0), 1.0)
            else:
                scores[record] = (alike - floor) / (best - floor) if best > floor else 1.0
        return scores

    def _beyond(self, nearest: Sequence[tuple[Record, float]], hits: set[Record]) -> list[Hit]:
        """Return the near records beyond the candidates that fill up a limit."""
        candidates = self.settings.vector_candidates
        out = []
        for rank, (record, _) in enumerate(nearest[candidates:], start=1):
            if record not in hits:
                score = LEAST * candidates / (candidates + rank)
                out.append(Hit(record, f32(score), {"vector": score}, ("vector",)))
        return out

    # --- links ------------------------------------------------------------------------------------

    def _links(self) -> dict[Record, list[tuple[Record, float]]]:
        """Return the linked pairs, both ways, among records that may be seen."""
        seen = {record.id: record for record in self.in_force}
        out: dict[Record, list[tuple[Record, float]]] = {}
        for edge in self.world.edges:
            ends = seen.get(edge.source.id), seen.get(edge.target.id)
            if ends[0] is not None and ends[1] is not None:
                out.setdefault(ends[0], []).append((ends[1], f32(edge.weight)))
                out.setdefault(ends[1], []).append((ends[0], f32(edge.weight)))
        return out

    def _by_link(
        self,
        own: Mapping[Record, float],
        lent: Mapping[Record, float],
        vector: Mapping[Record, float],
        weights: Mapping[str, float],
    ) -> dict[Record, float]:
        settings, out = self.settings.graph, dict.fromkeys(self.visible, 0.0)
        if not weights["graph"]:
            return out
        word, meaning = weights["keyword"], weights["vector"]
        base = {
            record: f32((word * (own[record] + lent[record]) + meaning * vector[record]) / ((word + meaning) or 1.0))
            for record in self.visible
        }
        seeds = sorted((record for record in base if base[record] > 0), key=lambda record: (-base[record], record.id))
        seeds = seeds[: graph_leg.SEEDS]
        if settings.conversation:
            for seed in seeds:
                for step in ("before", "after"):
                    beside, score = getattr(seed, step), base[seed]
                    for _ in range(graph_leg.DEPTH):
                        if beside is None or seed.kind != "turn":
                            break
                        score *= graph_leg.DECAY
                        out[beside] = max(out[beside], score)
                        beside = getattr(beside, step)
        links = self._links()
        best: dict[Record, float] = {seed: base[seed] for seed in seeds}
        brought: dict[Record, float] = {}
        step_scores = dict(best)
        for _ in range(graph_leg.DEPTH):
            fresh: dict[Record, float] = {}
            for one, score in step_scores.items():
                for other, weight in links.get(one, ()):
                    got = f32(score * weight * f32(graph_leg.DECAY))
                    if got > best.get(other, 0.0):
                        best[other] = brought[other] = fresh[other] = got
            step_scores = fresh
        for record, score in brought.items():
            if record in out:
                out[record] = max(out[record], score)
        return {record: min(score, 1.0) for record, score in out.items()}

    # --- boosts -----------------------------------------------------------------------------------

    def _boosts(self, question: Question) -> tuple[list[tuple[str, ...]], list[tuple[str, float, Any]]]:
        settings, names = self.settings.boosts, self._names(question.parts)
        out: list[tuple[str, float, Any]] = []
        if len(names) == 1:
            out.append(("mentioned", settings.mentioned, lambda record: float(self._name(record) == names[0])))
        if question.days is not None:
            first, last = day_us(question.days[0]), day_us(question.days[1]) + DAY_US - 1
            meant = self._of_days(question)
            slack = settings.date_slack_ms * 1_000

            def of_days(record: Record) -> float:
                early, late = (first - record.at_us) * 3.0, record.at_us - last
                gap = early if record.at_us < first else max(float(late), 0.0)
                if record in meant:
                    return 1.0
                return min(max(1.0 - gap / slack, 0.0), 1.0)

            out.append(("date", settings.date, of_days))
        if question.asks_time:
            out.append(("time", settings.time, lambda record: float(record.dated)))
        if question.phrases:
            out.append(("exact", settings.exact, lambda record: float(_says_one_of(record.parts, question.phrases))))
        out.append(("question", settings.question, lambda record: float(record.asks)))
        out.append(("recency", settings.recency, lambda record: self._recency(record.at_us)))
        return names, [boost for boost in out if boost[1]]

    def _names(self, parts: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the names in a question: the longest name of a visible record, from the left."""
        known = {name for record in self.visible if (name := self._name(record))}
        out: list[tuple[str, ...]] = []
        at = 0
        while at < len(parts):
            fits = [size for size in range(1, NAME_PARTS + 1) if tuple(parts[at : at + size]) in known]
            fits = [size for size in fits if at + size <= len(parts)]
            if fits:
                out.append(tuple(parts[at : at + max(fits)]))
            at += max(fits, default=1)
        return list(dict.fromkeys(out))

    def _name(self, record: Record) -> tuple[str, ...]:
        language = self.given.language
        parts = parts_of(record.head, language) if record.head else ()
        return () if all(part in language.stop_words for part in parts) else parts[:NAME_PARTS]

    def _importance(self, record: Record) -> float:
        own = record.entity.importance if record.kind == "note" else None
        return float((NEUTRAL_IMPORTANCE if own is None else own) / 10.0)

    def _recency(self, at_us: int) -> float:
        age = max(self.asked.now_us - at_us, 0)
        return 1.0 / (1.0 + age / (self.settings.boosts.recency_half_life_ms * 1_000))

    # --- order ------------------------------------------------------------------------------------

    def _ranks(self, scores: Mapping[Record, float]) -> dict[Record, float]:
        """Return reciprocal ranks among what may be found; 0 stays 0."""
        constant = RRF_CONSTANT
        order = sorted((record for record in self.allowed if scores[record] > 0), key=lambda r: (-scores[r], r.id))
        ranks = {record: (constant + 1) / (constant + rank) for rank, record in enumerate(order, start=1)}
        return {record: ranks.get(record, 0.0) for record in scores}

    def _diverse(self, hits: list[Hit]) -> list[Hit]:
        """Return hits in the order in which likeness to better ones lets them come."""
        share = self.settings.diversity
        if not share:
            return hits
        left, taken = hits[:DIVERSE_POOL], []
        alike = {hit.record: 0.0 for hit in left}
        while left:
            chosen = max(left, key=lambda hit: (1 - share) * hit.score - share * alike[hit.record])
            left.remove(chosen)
            taken.append(chosen)
            for hit in left:
                alike[hit.record] = max(alike[hit.record], self._likeness(chosen.record, hit.record))
        return taken + hits[DIVERSE_POOL:]

    def _likeness(self, one: Record, other: Record) -> float:
        if self.given.query_vector is None:
            return 0.0
        return max((similarity(a, b) for a in one.vectors for b in other.vectors), default=0.0)

    def _recent(self) -> list[Hit]:
        """Return the answer to an empty question."""
        hits = []
        for record in self.allowed:
            used_us = self.world.used.get((record.id, self.asked.used_by), record.at_us)
            recency = 0.5 * self._recency(max(record.at_us, used_us))
            importance = 0.5 * self._importance(record)
            parts = {"recency": recency, "importance": importance}
            hits.append(Hit(record, f32(recency + importance), parts, ("importance",)))
        hits.sort(key=lambda hit: (-hit.score, hit.record.id))
        return [hit for hit in hits if hit.score > 0][: self.asked.limit]


def _has_columns(world: World, kind: str, conditions: Mapping[str, Any]) -> bool:
    entity = next((record.entity for record in world.records if record.kind == kind), None)
    return entity is not None and set(conditions) <= {item.name for item in fields(entity)}


def _matches(entity: Any, conditions: Mapping[str, Any]) -> bool:
    for name, wanted in conditions.items():
        choices = wanted if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)
        value = getattr(entity, name)
        if value is None or not any(value == choice or str(value) == choice for choice in choices):
            return False
    return True


def _says_one_of(parts: Sequence[str], phrases: Sequence[tuple[str, ...]]) -> bool:
    return any(
        tuple(parts[at : at + len(phrase)]) == phrase
        for phrase in phrases
        for at in range(len(parts) - len(phrase) + 1)
    )
