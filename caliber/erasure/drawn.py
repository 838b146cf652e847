"""Words that a subject wrote into tasks of others, and the records that may have been drawn from them.

Notes name the tasks that they were drawn from, and some artifacts no turn: none of them says whose words it repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from caliber.erasure.subject import MARK, Subject, folded_words
from caliber.model.access import PrincipalKind
from caliber.schema.erase import OF_PRINCIPALS, Erase, Layout, MadeFrom, Packed, Redaction
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.derived import unpack_content
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.text.sentences import split_sentences

_PART_CHARS: Final = 12
"""The length from which on a statement is known again inside a longer one: shorter ones are in many texts."""
Row = tuple[Any, ...]


class Drawn:
    """The words that go, by the tasks that they stand in, and the records that may repeat them.

    These are words of the subject in tasks of others, and those of its own tasks that a record is drawn from together
    with others. ``unclear`` are the ids of records that may say them in other words, ``earlier`` those of such records
    that an earlier erasure left: whose words they may say is not known by now.
    """

    def __init__(self, uow: UnitOfWork, subject: Subject, earlier: frozenset[bytes], *, of_person: bool) -> None:
        self._uow, self._subject, self._left, self._of_person = uow, subject, earlier, of_person
        self._said: dict[bytes, set[str]] = {}
        self._shared: set[bytes] = set()
        self._visited: frozenset[bytes] = frozenset()
        """The tasks of others that the subject wrote in."""
        self._owners: set[Row] = set()
        """Relation and ordinal of the records that may repeat the words: their earlier contents may, too."""
        self._of_no_task: set[str] = set()
        """Words that went of records without a task: an error may quote them."""
        self._repeating: set[bytes] = set()
        self._traced: dict[str, set[Row]] = {}
        self.unclear: dict[str, set[bytes]] = {}
        self.earlier: dict[str, set[bytes]] = {}

    def collect(self) -> None:
        """Read the words that the subject wrote into tasks, also those of earlier contents, before any of them goes."""
        written: dict[Row, bytes] = {}
        values: dict[MadeFrom, set[Row]] = {}
        relations = [each for each in self._uow.catalog.relations if each.erase is not None]
        for relation in relations:
            trait, place = trait_of(relation), codec_of(relation).index
            if trait.sources is not None:
                for row in self._rows(relation):
                    tasks = split_ids(row[place(trait.sources)] or b"")
                    self._shared |= tasks if len(tasks) > 1 else set()
            if relation.rights.task is None or relation.text is None:
                continue
            made = [each for each in trait.made_from if each.empties is None]
            used = [each for other in relations for each in trait_of(other).made_from if each.relation == relation.name]
            if not (trait.owned or made or has_author(relation)):
                continue
            for row in self._rows(relation):
                drawn = any(tuple(row[place(name)] for name in each.columns) in values.get(each, ()) for each in made)
                if drawn or self.is_by_subject(relation, row):
                    written[relation.name, row[0]] = task = row[place(relation.rights.task)]
                    self._said.setdefault(task, set()).update(_statements(relation, row))
                    for each in used:
                        values.setdefault(each, set()).add(tuple(row[place(name)] for name in each.target))
        for relation in relations:
            if (owner := trait_of(relation).version_of) is None:
                continue
            place = codec_of(relation).index
            for row in self._rows(relation):
                of = tuple(row[place(name)] for name in owner)
                author = self._kept_author(relation, row)
                task = written.get(of) if author is None else None
                if task is None and self.is_by_subject(relation, row) and relation.rights.task is not None:
                    task = row[place(relation.rights.task)]
                if task is not None:
                    self._said.setdefault(task, set()).update(_kept_statements(relation, row))
        self._visited = frozenset(self._said)

    def take(self, relation: Relation, row: Row) -> None:
        """Take note of words that went: of an own task that a record was drawn from with others, and of no task."""
        if relation.text is None or relation.erase is None:
            return
        if relation.rights.task is None:
            self._of_no_task.update(_statements(relation, row))
            return
        task = row[codec_of(relation).index(relation.rights.task)]
        if task in self._shared and task not in self._visited:
            self._said.setdefault(task, set()).update(_statements(relation, row))

    def rest(self, relation: Relation, row: Row) -> dict[str, Any] | None:
        """Return the text columns of a record without the words that went; None if nothing is left of one.

        Only of a record that was merged from several sources something is left.
        """
        assert relation.erase is not None
        place = codec_of(relation).index
        key = row[place(relation.key[0])]
        left: dict[str, Any] = {}
        tasks = self._tasks(relation, row) if self._said else set()
        said = {each for task in tasks for each in self._said[task]}
        if not said:
            if key in self._left:
                self.earlier.setdefault(relation.plural, set()).add(key)
            return left
        assert relation.text is not None
        if any(_is_said(own, said) for own in _statements(relation, row)):
            if relation.erase.sources is None:
                return None
            for name in relation.text.searched:
                text = row[place(name)]
                if text is not None and (kept := _without(text, said)) != text:
                    if not kept:
                        return None
                    left[name] = kept
        if self._of_person:
            self.unclear.setdefault(relation.plural, set()).add(key)
        self._owners.add((relation.name, row[0]))
        self._repeating.add(key)
        return left

    def repeats_kept(self, relation: Relation, row: Row) -> bool:
        """Return whether an earlier content of a record repeats words that went."""
        assert relation.erase is not None
        place = codec_of(relation).index
        of = tuple(row[place(name)] for name in relation.erase.version_of or ())
        if of not in self._owners:
            return False
        said = self._all_said()
        return any(_is_said(own, said) for own in _kept_statements(relation, row))

    def words(self, relation: Relation, row: Row) -> Callable[[str], str] | None:
        """Return a function that marks a text which repeats words that went; None for a record of other tasks.

        These are copies: questions of windows, values before a correction in events, outcomes of tasks.
        """
        if not (self._said or self._of_no_task) or relation.erase is None:
            return None
        place, own_task = codec_of(relation).index, relation.rights.task
        named = [row[place(name)] for name in (relation.key[0], own_task) if name is not None]
        said = {each for task in named if task in self._visited for each in self._said[task]}
        if relation.text is not None and row[place(relation.key[0])] not in self._visited:
            return None  # words of others
        if any(row[place(name)] in self._repeating for name in relation.erase.hangs_on):
            said = self._all_said()
        if own_task is not None and row[place(own_task)] is None and _is_of_program(relation, row):
            said |= self._of_no_task
        if not said:
            return None
        # The state of a checkpoint holds ids and words of the program, and no text; a raw form goes whole.
        is_text = any(
            isinstance(each.redaction, Packed) and each.redaction.layout not in (Layout.CHECKPOINT, Layout.RAW)
            for each in relation.columns
        )
        return _marking(said, is_text=is_text)

    def quotes(self, relation: Relation, row: Row, words: Callable[[str], str] | None) -> Callable[[str], str] | None:
        """Return a function that marks a report of the program which repeats words that went.

        In a record of a task these are its ``words``, in others those of records without a task.
        """
        if relation.rights.task is None or row[codec_of(relation).index(relation.rights.task)] is not None:
            return words
        return _marking(self._of_no_task, is_text=False) if self._of_no_task else None

    def _all_said(self) -> set[str]:
        return {each for statements in self._said.values() for each in statements}

    def _rows(self, relation: Relation) -> Iterator[Row]:
        return (row for page in self._uow.pages(relation) for row in page)

    def _kept_author(self, relation: Relation, row: Row) -> str | None:
        """Return the label of who wrote an earlier content, if the content was kept with it: it may be another one."""
        kind, place = trait_of(relation).version_of, codec_of(relation).index
        owner = None if kind is None else self._uow.catalog.by_name.get(row[place(kind[0])])
        if owner is None or not has_author(owner):
            return None
        kept = _kept(relation, row)
        return next((kept[name] for name in _authors(owner) if kept.get(name) is not None), None)

    def _is_kept_of_subject(self, relation: Relation, row: Row) -> bool:
        """Return whether the subject wrote an earlier content of a record of a task, as its label states."""
        assert relation.rights.task is not None
        author = self._kept_author(relation, row)
        return (
            author is not None
            and row[codec_of(relation).index(relation.rights.task)] is not None
            and _is_user(self._subject, author)
        )

    def is_by_subject(self, relation: Relation, row: Row) -> bool:
        """Return whether the subject wrote a record, or an earlier content of one."""
        place = codec_of(relation).index
        if trait_of(relation).version_of is not None and self._is_kept_of_subject(relation, row):
            return True
        if any(row[place(name)] in self._subject.ids for name in trait_of(relation).owned):
            return True
        return has_author(relation) and is_author(self._subject, relation, row)

    def _tasks(self, relation: Relation, row: Row) -> set[bytes]:
        """Return the tasks with such words that a record of no certain source is of."""
        erase, place = relation.erase, codec_of(relation).index
        if erase is None or relation.text is None:
            return set()
        tasks: set[bytes] = set()
        if erase.sources is not None:
            tasks = split_ids(row[place(erase.sources)] or b"")
        elif relation.rights.task is not None and any(made.empties is None for made in erase.made_from):
            tasks = {row[place(relation.rights.task)]}
        tasks &= self._said.keys()
        return set() if tasks and self._is_traced(relation, row) else tasks

    def _is_traced(self, relation: Relation, row: Row) -> bool:
        """Return whether a record was made from a stored one that stays: of those that went it has gone."""
        assert relation.erase is not None
        place = codec_of(relation).index
        for made in relation.erase.made_from:
            values = tuple(row[place(name)] for name in made.columns)
            if made.relation not in self._traced:
                other = self._uow.catalog.by_name[made.relation]
                at = [codec_of(other).index(name) for name in made.target]
                rows = (each for page in self._uow.pages(other) for each in page)
                self._traced[made.relation] = {tuple(each[number] for number in at) for each in rows}
            if values in self._traced[made.relation]:
                return True
        return False


def _statements(relation: Relation, row: Row) -> Iterator[str]:
    assert relation.text is not None
    for name in relation.text.searched:
        yield from _statements_of(row[codec_of(relation).index(name)])


def _kept_statements(relation: Relation, row: Row) -> Iterator[str]:
    """Yield the statements in an earlier content of a record."""
    for value in _kept(relation, row).values():
        yield from _statements_of(value if isinstance(value, str | bytes) else None)


def _kept(relation: Relation, row: Row) -> dict[str, Any]:
    """Return the earlier content that a row keeps."""
    packed = (each.name for each in relation.columns if isinstance(each.redaction, Packed))
    return {
        name: value
        for column in packed
        for name, value in unpack_content(row[codec_of(relation).index(column)]).items()
    }


def _statements_of(value: str | bytes | None) -> Iterator[str]:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
    for part in (text, *text.splitlines(), *(sentence.text for sentence in split_sentences(text))):
        if statement := _statement(part):
            yield statement


def _statement(text: str) -> str:
    return folded_words(text).strip(" .!;,:*_-•")


def is_author(subject: Subject, relation: Relation, row: Row) -> bool:
    """Return whether a user who is the subject wrote a record of a task; one of its own tasks goes with that."""
    if relation.rights.task is None or row[codec_of(relation).index(relation.rights.task)] is None:
        return False
    names = (row[codec_of(relation).index(each)] for each in _authors(relation))
    return any(_is_user(subject, name) for name in names if name is not None)


def _is_user(subject: Subject, author: str) -> bool:
    label = author.rpartition("@")[0]
    return label.startswith(f"{PrincipalKind.HUMAN}:") and subject.is_principal(label)


def _authors(relation: Relation) -> list[str]:
    return [each.name for each in relation.columns if each.redaction is Redaction.AUTHOR]


def split_ids(ids: bytes) -> set[bytes]:
    """Return the ids that a column holds side by side, of 16 bytes each."""
    return {ids[at : at + 16] for at in range(0, len(ids), 16)}


def has_author(relation: Relation) -> bool:
    """Return whether records of a task name the one who wrote them, by a label."""
    return relation.rights.task is not None and bool(_authors(relation))


def trait_of(relation: Relation) -> Erase:
    """Return the trait of a relation that is walked."""
    assert relation.erase is not None  # others are not
    return relation.erase


def _is_of_program(relation: Relation, row: Row) -> bool:
    """Return whether a record has columns for principals, and all are empty: a report of the program itself."""
    acting = [codec_of(relation).index(each.name) for each in relation.columns if each.redaction in OF_PRINCIPALS]
    return bool(acting) and all(row[at] is None for at in acting)


def _marking(said: set[str], *, is_text: bool) -> Callable[[str], str]:
    """Return a function that marks a text which repeats one of the statements; with ``is_text`` a short word, too."""

    def marked(text: str) -> str:
        own = _statement(text)
        is_free = is_text or " " in own or len(own) >= _PART_CHARS  # no word of the program
        return MARK if own and is_free and _is_said(own, said) else text

    return marked


def _is_said(own: str, said: set[str]) -> bool:
    return own in said or any(_is_part(own, each) or _is_part(each, own) for each in said)


def _is_part(part: str, whole: str) -> bool:
    return len(part) >= _PART_CHARS and part in whole


def _without(text: str, said: set[str]) -> str:
    """Return a text without the sentences that repeat a statement, or an empty text if no word is left."""
    lines = []
    for line in text.splitlines():
        sentences = [sentence.text for sentence in split_sentences(line)]
        kept = [each for each in sentences if not _is_said(_statement(each), said)]
        if len(kept) < len(sentences):
            lines.append(" ".join(kept))
        elif not _is_said(_statement(line), said):
            lines.append(line)
    left = "\n".join(line for line in lines if line.strip())
    # A statement of several lines, too.
    return "" if not _statement(left) or _is_said(_statement(left), said) else left
