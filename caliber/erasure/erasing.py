"""Erasure transaction: deletes a subject's records in every relation, and redacts mentions in the others.

Each relation declares how a subject is found in it (``caliber.schema.erase``). A subject owns the records under its id;
trajectories and sessions it began; notes about it and turns it said; records derived from those alone (summaries,
extracted artifacts, notes of an erased trajectory); and everything that depends on a deleted record: versions kept for
replay, vectors, links, counters, events.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from caliber.access.owners import OF_PEOPLE
from caliber.erasure.drawn import Drawn, has_author, is_author, split_ids, trait_of
from caliber.erasure.redaction import Redactor, digests_of, digests_of_body
from caliber.erasure.subject import Subject
from caliber.kernels.tokens.estimators import Estimator
from caliber.model.errors import AmbiguousSubject
from caliber.schema.erase import COPIES, OF_PRINCIPALS, Erase, Layout, MadeFrom, Packed, Redaction
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import UnitOfWork

_SHARED_FROM: Final = 20
_SHARED_PART: Final = 0.5
_ALL_TIME_US: Final = 3_650 * 86_400_000_000


@dataclass
class Outcome:
    """The outcome of a walk. ``hashes`` are digests of contents that went, for a later search for them.

    ``unclear`` are the ids of records that may have been drawn from words of the subject, ``earlier`` those of such
    records that an earlier erasure left.
    """

    erased: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    unclear: dict[str, set[bytes]] = field(default_factory=dict)
    earlier: dict[str, set[bytes]] = field(default_factory=dict)
    windows_closed: int = 0
    hashes: set[bytes] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """True when there was nothing to do."""
        return not self.erased and not self.redacted

    def add(self, other: Outcome) -> None:
        """Add the counts of a later walk."""
        self.erased += other.erased
        self.redacted += other.redacted
        for mine, found in ((self.unclear, other.unclear), (self.earlier, other.earlier)):
            for name, ids in found.items():
                mine.setdefault(name, set()).update(ids)
        self.windows_closed += other.windows_closed
        self.hashes |= other.hashes

    @property
    def counts(self) -> dict[str, int]:
        """All counts, by what they count."""
        out = {f"erased {name}": count for name, count in sorted(self.erased.items())}
        out |= {f"redacted {name}": count for name, count in sorted(self.redacted.items())}
        return out | {"windows closed": self.windows_closed}


@dataclass(frozen=True)
class Wanted:
    """The target of a walk."""

    subject: Subject
    even_if_shared: bool = False
    of_person: bool = True
    """False for a task alone: what repeats its words in other words is nobody's to judge."""


class Walk:
    """One walk over a store, inside one write transaction."""

    def __init__(
        self, uow: UnitOfWork, wanted: Wanted, estimator: Estimator, earlier: frozenset[bytes] = frozenset()
    ) -> None:
        self._uow = uow
        self._row: tuple[Any, ...] = ()
        self._now = self._row
        """The present row: as it was read, and as this transaction has changed it."""
        self._wanted = wanted
        self._subject = wanted.subject
        self._redactor = Redactor(wanted.subject, estimator)
        self.outcome = Outcome()
        self._seen_changes = 0
        self._deleted: set[tuple[str, int]] = set()
        self._changed: set[bytes] = set()
        self._touched = self._redactor.lost.touched
        self._gone = self._redactor.gone
        self._drawn = Drawn(uow, wanted.subject, earlier, of_person=wanted.of_person)
        self._hung: dict[str, dict[tuple[Any, ...], list[Any]]] = {}
        self._relations = sorted(
            (relation for relation in uow.catalog.relations if relation.erase is not None), key=self._turn_of
        )
        self._went: dict[tuple[str, tuple[str, ...]], set[tuple[Any, ...]]] = {
            (made.relation, made.target): set() for each in self._relations for made in trait_of(each).made_from
        }
        """Of relations that others are made from: the values of rows that went, in the columns that others name."""

    def _turn_of(self, relation: Relation) -> int:
        """Return the order of a relation: owners, derived records, dependent records, copies, caches."""
        erase = trait_of(relation)
        if erase.cache is not None:
            return 4
        if _copies(relation):
            return 3
        if erase.hangs_on or any(each.redaction is Redaction.QUOTES for each in relation.columns):
            return 2
        return int(
            bool(erase.made_from) or erase.sources is not None or relation in self._uow.catalog.declared_relations
        )

    def run(self) -> Outcome:
        """Erase and redact all data of the subject.

        Raises: AmbiguousSubject when the names of the subject also name others.
        """
        self._uow.check_catalog()
        self._uow.keeps_content = False  # what is replaced from now on is being erased
        for relation in self._relations:
            if trait_of(relation).kind is not None and not self._wanted.even_if_shared:
                self._refuse_shared(relation, trait_of(relation))
        for relation in self._relations:
            refused = trait_of(relation).refused
            if refused is not None:
                self._refuse_declared(relation, refused)
        self._drawn.collect()
        for relation in self._relations:
            self._hung[relation.name] = self._hanging(relation, trait_of(relation))
        for relation in self._relations:
            self._walk(relation, trait_of(relation))
        self.outcome.windows_closed = self._redactor.closed
        self.outcome.unclear, self.outcome.earlier = self._drawn.unclear, self._drawn.earlier
        return self.outcome

    def _hanging(self, relation: Relation, erase: Erase) -> dict[tuple[Any, ...], list[Any]]:
        """Return the ids that records hang on, by key, of columns that the deletion of their target empties."""
        codec = codec_of(relation)
        emptied = [key.column for key in relation.foreign_keys if key.on_delete == "set null"]
        places = [codec.index(column) for column in erase.hangs_on if column in emptied]
        pages = self._uow.pages(relation) if places else ()
        return {
            codec.key_of(row): ids for page in pages for row in page if any(ids := [row[place] for place in places])
        }

    def _refuse_declared(self, relation: Relation, reason: str) -> None:
        """Refuse a word of a declaration: it belongs to no record, and occurs in everybody's."""
        for entity in self._each(relation):
            if self._redactor.without(relation, entity) is not entity:
                key = getattr(entity, relation.key[0])
                raise AmbiguousSubject(reason=reason.format(key=key), key=key)

    def _refuse_shared(self, relation: Relation, erase: Erase) -> None:
        """Refuse a name of several kinds of things, and one that occurs in most records."""
        kinds: dict[str, set[str]] = {}
        records = naming = 0
        texts = [name for name in relation.content_columns if relation.column(name).type is ColumnType.TEXT]
        for entity in self._each(relation):
            records += 1
            naming += any(self._subject.mentioned(getattr(entity, name) or "") for name in (*erase.names, *texts))
            for name in (getattr(entity, name) for name in erase.names):
                if name is not None and self._subject.named(name):
                    kind = getattr(entity, erase.kind or "")
                    kinds.setdefault(" ".join(name.casefold().split()), set()).add("" if kind in erase.people else kind)
        shared = max((len(types) for types in kinds.values()), default=0)
        if shared > 1:
            raise AmbiguousSubject(
                reason=f"a name is shared by {shared} kinds of entities; give texts that name one only, or pass "
                "even_if_shared=True",
                kinds=shared,
            )
        if records >= _SHARED_FROM and naming > _SHARED_PART * records:
            found: dict[str, Any] = {relation.plural: naming}
            raise AmbiguousSubject(
                reason=f"{naming} of {records} {relation.plural} contain it, more than half; give rarer texts, "
                "or pass even_if_shared=True",
                **found,
            )

    # --- records -------------------------------------------------------------------------------------

    def _walk(self, relation: Relation, erase: Erase) -> None:
        """Erase records that are the subject's own, and redact the others."""
        if erase.cache is not None:
            self._empty(relation, erase.cache)
        if erase.cache is not None or erase.refused is not None:
            return
        if _copies(relation):
            self._redactor.lost.records = self._lost_records()
        goes = self._going(relation, erase)
        emptied = [(made.empties, made) for made in erase.made_from if made.empties is not None]
        for entity in self._each(relation):
            if goes():
                if erase.stub is not None and getattr(entity, erase.stub.column) == erase.stub.value:
                    self._redact_if_changed(relation, entity, dataclasses.replace(entity, **dict(erase.stub.left)))
                else:
                    self._erase(relation, entity)
                continue
            rest = self._drawn.rest(relation, self._now) if relation.text is not None else {}
            if rest is None:
                self._erase(relation, entity)
                continue
            words = self._drawn.words(relation, self._now)
            self._redactor.also, self._redactor.quotes = words, self._drawn.quotes(relation, self._now, words)
            changed = self._redactor.without(relation, entity)
            if rest and changed is not None:
                without = {name: self._subject.without(text) for name, text in rest.items()}
                changed = self._redactor.changed(relation, changed, without)
            lost: dict[str, Any] = {name: None for name, made in emptied if self._is_of_gone(relation, made)}
            if changed is not None and any(getattr(entity, name) is not None for name in lost):
                changed = self._redactor.changed(relation, changed, lost)
            if changed is None or (
                changed is not entity
                and self._uow.has_twin(relation, self._now, codec_of(relation).encode(changed, self._row[0]))
            ):
                self._erase(relation, entity)
            else:
                self._redact_if_changed(relation, entity, changed)

    def _each(self, relation: Relation) -> Iterator[Any]:
        """Yield the entities of a relation that are still there, as this transaction has them by now."""
        codec = codec_of(relation)
        for page in self._uow.pages(relation):
            for row in page:
                if not relation.ordinal or (relation.name, row[0]) not in self._deleted:
                    self._row = row
                    self._now = self._uow.current(relation, row)
                    yield codec.decode(self._now)

    def _going(self, relation: Relation, erase: Erase) -> Callable[[], bool]:
        """Return a function that returns whether the present record is deleted."""
        place = codec_of(relation).index
        lost = self._gone | self._changed if erase.quotes else self._gone
        ids, gone, went, drawn = self._subject.ids, self._gone, self._is_of_gone, self._drawn
        needed = [place(each.name) for each in relation.columns if each.type is ColumnType.UUID and not each.nullable]
        needed += [place(name) for name in erase.owned]
        readers = None if relation.rights.readers is None else place(relation.rights.readers)
        names, hangs = ([place(name) for name in columns] for columns in (erase.names, erase.hangs_on))
        hung, key_of = self._hung[relation.name], codec_of(relation).key_of
        is_named = {place(name): self._names(relation.column(name)) for name in erase.names}
        made_from = [made for made in erase.made_from if made.empties is None]
        is_authored = has_author(relation)
        doubtful = self._subject.doubtful if erase.people else None
        kind = place(erase.kind) if erase.people and erase.kind is not None else 0
        sources = None if erase.sources is None else place(erase.sources)
        digest = None if erase.digest is None else place(erase.digest)
        version = None if erase.version_of is None else [place(name) for name in erase.version_of]

        def people_of(row: tuple[Any, ...]) -> list[bool]:
            names = [] if readers is None else json.loads(row[readers] or "[]")
            return [self._subject.is_principal(name) for name in names if name.startswith(OF_PEOPLE)]

        def is_about_person(row: tuple[Any, ...], doubtful: Subject) -> bool:
            if row[kind] not in erase.people or not any(doubtful.named(row[at] or "") for at in names):
                return False
            people = people_of(row)
            return not people or any(people)

        def goes() -> bool:
            row = self._now
            return (
                any(row[at] in ids for at in needed)
                or any(row[at] in ids or row[at] in lost for at in hangs)
                or (bool(hung) and any(each in ids or each in lost for each in hung.get(key_of(row), ())))
                or any(row[at] is not None and named(row[at]) for at, named in is_named.items())
                or (is_authored and is_author(self._subject, relation, row))
                or (bool(people := people_of(row)) and all(people))
                or (doubtful is not None and is_about_person(row, doubtful))
                or (sources is not None and bool(row[sources]) and split_ids(row[sources]) <= gone)
                or (digest is not None and row[digest] in self.outcome.hashes)
                or (version is not None and tuple(row[at] for at in version) in self._touched)
                or any(went(relation, made) for made in made_from)
                or (version is not None and (drawn.is_by_subject(relation, row) or drawn.repeats_kept(relation, row)))
            )

        return goes

    def _names(self, column: Column) -> Callable[[str], bool]:
        """Return the function that returns whether a value of a column names the subject, and nothing else."""
        exact = column.redaction in OF_PRINCIPALS
        return self._subject.is_principal if exact else self._subject.named

    def _is_of_gone(self, relation: Relation, made: MadeFrom) -> bool:
        place = codec_of(relation).index
        return tuple(self._now[place(name)] for name in made.columns) in self._went[made.relation, made.target]

    def _erase(self, relation: Relation, entity: Any) -> None:
        """Delete the present record, and the records that it owns."""
        self._uow.track(relation, self._row)
        self._uow.delete(relation, entity)
        if not relation.mirrored:
            self.outcome.erased[relation.name] += 1
            self._remember(relation, self._now)
        self._note_deleted()

    def _note_deleted(self) -> None:
        for change in self._uow.changes[self._seen_changes :]:
            if change.operation == DELETE:
                self._note_gone(change.relation, change.row)
        self._seen_changes = len(self._uow.changes)

    def _note_gone(self, relation: Relation, row: tuple[Any, ...]) -> None:
        self._deleted.add((relation.name, row[0]))
        self.outcome.erased[relation.name] += 1
        if relation.content_columns:
            self._touched.add((relation.name, row[0]))
        if relation.erase is not None and not relation.erase.hangs_on:
            self._gone.add(row[relation.index(relation.key[0]) + 1])
        self.outcome.hashes |= digests_of(relation, codec_of(relation).decode(row))
        self._drawn.take(relation, row)
        self._remember(relation, row)

    def _remember(self, relation: Relation, row: tuple[Any, ...]) -> None:
        """Record the keys of a deleted row by which others refer to it: derived records, and versions of its record."""
        codec = codec_of(relation)
        for (name, target), values in self._went.items():
            if name == relation.name:
                values.add(tuple(row[codec.index(column)] for column in target))
        if relation.erase is not None and relation.erase.version_of is not None:
            kind, ordinal = (row[codec.index(name)] for name in relation.erase.version_of)
            self._touched.add((kind, ordinal))
        for column in relation.columns:
            if isinstance(column.redaction, Packed) and column.redaction.layout is Layout.VERSION:
                self.outcome.hashes |= digests_of_body(row[codec.index(column.name)])

    def _redact_if_changed(self, relation: Relation, entity: Any, changed: Any) -> None:
        """Write a record that no longer names the subject."""
        if changed == entity:
            return
        if relation.versioned:
            self._uow.track(relation, self._row)
            self._uow.update(relation, changed)
            self._note_deleted()  # the summary of a turn
        else:
            self._uow.upsert(relation, changed)
        self.outcome.redacted[relation.name] += 1
        before, after = (digests_of(relation, each) for each in (entity, changed))
        self.outcome.hashes |= before - after
        if relation.content_columns:
            self._touched.add((relation.name, self._row[0]))
            self._changed.add(self._row[relation.index(relation.key[0]) + 1])

    def _lost_records(self) -> frozenset[str]:
        """Return the ids of deleted or redacted records: copies of their content are elsewhere."""
        touched = (
            change.row[change.relation.index(change.relation.key[0]) + 1]
            for change in self._uow.changes
            if change.relation.content_columns and (change.relation.name, change.row[0]) in self._touched
        )
        return frozenset(str(uuid.UUID(bytes=raw)) for raw in (*self._gone, *self._subject.ids, *touched))

    def _empty(self, relation: Relation, statement: str) -> None:
        """Empty a cache when something went: it may hold copies."""
        if not self.outcome.is_empty:
            dropped = self._uow.execute(statement, self._uow.now_us + _ALL_TIME_US)
            if dropped:
                self.outcome.erased[relation.name] += dropped


def _copies(relation: Relation) -> bool:
    return any(isinstance(each.redaction, Packed) and each.redaction.layout in COPIES for each in relation.columns)
