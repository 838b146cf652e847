"""Decisions by rule: what becomes of a statement, given what is known about its person."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from typing import Final

from caliber.learning.rules.candidates import ANY_SLOT, Candidate, words_of
from caliber.model.knowledge import Note, NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.learning import LearningAction, PersonAttribute, PersonFact
from caliber.model.references import EntityRef
from caliber.model.trajectory import Turn

KNOWN: Final = "known already"
OLDER: Final = "older than what is known"
NOTHING_TO_END: Final = "ends nothing that is known"
_LEFT: Final = frozenset({PersonAttribute.HOME, PersonAttribute.EMPLOYER})
_WORK: Final = frozenset({PersonAttribute.JOB, PersonAttribute.EMPLOYER})
_IDLE: Final = frozenset({"unemployed", "retired", "between job"})
"""What a person is no longer who has a job."""
_TASTES: Final = frozenset({PersonAttribute.LIKES, PersonAttribute.DISLIKES})
NEW: Final = "new"
CHANGED: Final = "changed"
CORRECTED: Final = "corrected"
ENDED: Final = "holds no longer"


@dataclass(slots=True)
class Held:
    """A fact that holds as far as the batch has come: one that is stored, or one that a step adds."""

    person: EntityRef
    attribute: PersonAttribute
    slot: str
    value: str
    stated_at: datetime
    content: str
    note_type: NoteType
    stored: tuple[PersonFact, Note] | None = None
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Statement:
    """A candidate with the turn that makes it, the person it is about by reference and name, and its time.

    ``unnamed`` is the same person as far as it was spoken of without a name: "my daughter" before "my daughter Ines".
    """

    candidate: Candidate
    turn: Turn
    person: EntityRef
    name: str
    stated_at: datetime
    unnamed: EntityRef | None = None

    def held(self) -> Held:
        """Return the fact that the statement adds."""
        new = self.candidate
        return Held(self.person, new.attribute, new.slot, new.value, self.stated_at, new.content, new.note_type)


@dataclass(frozen=True, slots=True)
class Step:
    """The decision about a statement: ``target`` is the fact that it replaces or ends, ``made`` the one it adds.

    ``in_place`` is a correction: the target was never true.
    """

    action: LearningAction
    statement: Statement
    reason: str
    target: Held | None = None
    made: Held | None = None
    in_place: bool = False


@dataclass(slots=True)
class Decider:
    """Decides about the statements of a batch, one after the other."""

    held: list[Held]
    steps: list[Step] = field(default_factory=list)

    def decide(self, statements: Sequence[Statement]) -> list[Step]:
        """Return the steps for these statements, in their order."""
        for statement in statements:
            if statement.candidate.restates:
                self._restate(statement)
            elif statement.candidate.ends:
                self._end(statement)
            else:
                self._state(statement)
        return self.steps

    def _same(self, statement: Statement, attribute: PersonAttribute) -> list[Held]:
        return [
            each
            for each in self.held
            if each.holds
            and each.person in (statement.person, statement.unnamed)
            and each.attribute is attribute
            and each.slot == statement.candidate.slot
        ]

    def _end(self, statement: Statement) -> None:
        candidate = statement.candidate
        same = self._same(statement, candidate.attribute)
        if candidate.attribute in _LEFT and candidate.value:  # "I left Siemens", "I left Berlin"
            same += [each for other in _LEFT - {candidate.attribute} for each in self._same(statement, other)]
        if candidate.attribute is PersonAttribute.EMPLOYER and not candidate.value and not same:
            same = self._same(statement, PersonAttribute.JOB)  # "I quit my job"
        ended = [each for each in same if matches(each.value, candidate.value)]
        if candidate.slot == ANY_SLOT:
            ended = [each for each in self.held if each.holds and each.person in (statement.person, statement.unnamed)]
        if candidate.attribute is PersonAttribute.PET:  # "has two cats" as well as the cat by name
            ended = ended if candidate.value or len(ended) == 1 else []  # "my cat died", of two cats: which one?
            counted = [each for each in self.held if each.holds and each.person == statement.person]
            counted = [each for each in counted if each.attribute is PersonAttribute.PET and each not in ended]
            kind = _grown(candidate.slot)
            ended += [each for each in counted if kind <= _grown(each.value) and each.slot != candidate.slot]
        self._finish(statement, ended)

    def _finish(self, statement: Statement, ended: Sequence[Held]) -> None:
        """End facts, or the one member of a list that the statement names."""
        candidate = statement.candidate
        if not ended:
            self._step(LearningAction.NOTHING, statement, NOTHING_TO_END)
        for each in ended:
            if statement.stated_at < each.stated_at:
                self._step(LearningAction.NOTHING, statement, OLDER, each)
                continue
            each.holds = False
            rest = remaining(each.content, candidate.value)
            if rest is None:
                gone = dataclasses.replace(candidate, attribute=each.attribute)
                self._step(LearningAction.END, dataclasses.replace(statement, candidate=gone), ENDED, each)
            else:
                kept = _instead(each, candidate, rest, rest.partition(" ")[2])
                left = dataclasses.replace(statement, candidate=kept)
                self._step(LearningAction.UPDATE, left, CHANGED, each, self._made(left))

    def _restate(self, statement: Statement) -> None:
        """Correct or end the one fact that has the value which the statement names."""
        from caliber.learning.rules import correcting

        candidate = statement.candidate
        holding = [each for each in self.held if each.holds and each.stated_at <= statement.stated_at]
        if candidate.said:
            self._end_named(statement, holding)
            return
        if candidate.ends:
            barred = correcting.NAMED_BY_VERB if candidate.slot else correcting.LASTING
            fitting = [each for each in holding if each.attribute not in barred and _is(each, candidate.value)]
            if candidate.slot == "plan":
                fitting = [each for each in fitting if each.attribute is PersonAttribute.PLAN]
            if len({each.person for each in fitting}) == 1:
                of_one = dataclasses.replace(statement, person=fitting[0].person)
                self._finish(of_one, fitting)
            return
        changed = [(each, correcting.substituted(each.content, candidate.was, candidate.value)) for each in holding]
        fitting_new = [(each, content) for each, content in changed if content is not None]
        if len(fitting_new) != 1:
            return  # nothing that is known, or more than one: better keep both than end the wrong one
        ((each, content),) = fitting_new
        value = correcting.substituted(each.value, candidate.was, candidate.value) or candidate.value
        new = _instead(each, candidate, content, value, single=True)
        self._replace(dataclasses.replace(statement, candidate=new, person=each.person), each)

    def _end_named(self, statement: Statement, holding: Sequence[Held]) -> None:
        """End the facts of one matter whose words a clause names, where it tells that they are over."""
        candidate = statement.candidate
        if self.steps and (last := self.steps[-1]).action is not LearningAction.NOTHING:
            before = last.statement.candidate
            same_turn = last.statement.turn is statement.turn and last.statement.person == statement.person
            if same_turn and (before.start, before.end) == (candidate.start, candidate.end):
                return  # its rule has ended a fact already
        name, people = candidate.was.casefold(), (statement.person, statement.unnamed)
        own = [each for each in holding if each.person in people and name in each.content.casefold()]
        if not own:
            return
        from caliber.learning.rules import ending  # late: its patterns take long to compile

        plain = ending.plain_clause(candidate.said)
        plans = [
            (each, ending.moved(plain, each.content, each.value))
            for each in own
            if each.attribute is PersonAttribute.PLAN
        ]
        moved = [(each, content) for each, content in plans if content is not None]
        if len(moved) == 1:
            self._move(statement, *moved[0])
            return
        found = [(each, ending.ends(plain, each.attribute, each.slot, each.content, each.value)) for each in own]
        named = [(each, *words) for each, words in found if words is not None]
        most = max((hits for _, hits, _ in named), default=0)
        best = [(each, text) for each, hits, text in named if hits == most]
        if len({each.attribute for each, _ in best} - _WORK) > 1:
            best = [(each, text) for each, text in best if each.attribute not in _TASTES]
        if len(best) > 1 and not {each.attribute for each, _ in best} <= _WORK:
            return  # which one?
        for each, text in best:
            named_end = dataclasses.replace(candidate, value=text)
            self._finish(dataclasses.replace(statement, candidate=named_end), [each])

    def _move(self, statement: Statement, plan: Held, content: str) -> None:
        """Replace a plan by the same one on another day."""
        value = content.removeprefix("is ")
        new = _instead(plan, statement.candidate, content, value, single=True, changes=True)
        self._replace(dataclasses.replace(statement, candidate=new), plan)

    def _state(self, statement: Statement) -> None:
        candidate = statement.candidate
        same = self._same(statement, candidate.attribute)
        left = [each for each in self.held if each.holds and candidate.was and _is(each, candidate.was)]
        if left and all(each.attribute is not candidate.attribute for each in left):
            self._restate(statement)  # "I moved from Siemens to Bosch"
            return
        if candidate.attribute is PersonAttribute.PLAN and candidate.changes and not same:
            plans = [each for each in self.held if each.holds and each.attribute is candidate.attribute]
            same = [each for each in plans if words_of(candidate.slot) <= words_of(f"{each.content} {each.slot}")]
            same = same if len(same) == 1 else []
        known = _equal if candidate.single and candidate.changes else alike
        equal = next((each for each in same if known(each.value, candidate.value)), None)
        if equal is not None:
            self._step(LearningAction.NOTHING, statement, KNOWN, equal)
            return
        if candidate.inferred and same:
            self._step(LearningAction.NOTHING, statement, KNOWN, same[-1])
            return
        replaced = None
        if candidate.opposite is not None:
            contrary = self._same(statement, candidate.opposite)
            replaced = next((each for each in contrary if alike(each.value, candidate.value)), None)
        if replaced is None and same and (candidate.single or candidate.corrects):
            replaced = same[-1]
        if replaced is None and candidate.attribute in _WORK and not candidate.slot:
            idle = self._same(statement, PersonAttribute.JOB)
            replaced = next((each for each in idle if each.value in _IDLE), None)
        if replaced is not None and candidate.was and not _is(replaced, candidate.was):
            replaced = None  # "I moved from Graça to Alfama", who is known to live in Lisbon
        if replaced is None:
            made = self._made(statement)
            self._step(LearningAction.ADD, statement, NEW, None, made)
        else:
            self._replace(statement, replaced)

    def _replace(self, statement: Statement, replaced: Held) -> None:
        if statement.stated_at < replaced.stated_at:
            self._step(LearningAction.NOTHING, statement, OLDER, replaced)
            return
        replaced.holds = False
        corrects = statement.candidate.corrects
        reason = CORRECTED if corrects else CHANGED
        made = self._made(statement)
        self.steps.append(Step(LearningAction.UPDATE, statement, reason, replaced, made, in_place=corrects))

    def _made(self, statement: Statement) -> Held:
        made = statement.held()
        self.held.append(made)
        return made

    def _step(
        self,
        action: LearningAction,
        statement: Statement,
        reason: str,
        target: Held | None = None,
        made: Held | None = None,
    ) -> None:
        self.steps.append(Step(action, statement, reason, target, made))


def _instead(
    held: Held, said: Candidate, content: str, value: str, *, single: bool = False, changes: bool = False
) -> Candidate:
    """Return a statement that puts another content in the place of a fact, of the same matter."""
    return dataclasses.replace(
        said,
        attribute=held.attribute,
        slot=held.slot,
        content=content,
        value=value,
        note_type=held.note_type,
        ends=False,
        restates=False,
        single=said.single or single,
        changes=said.changes or changes,
    )


def alike(known: str, value: str) -> bool:
    """Return whether two values are the same, or the new one has less than the known one."""
    return words_of(value) <= words_of(known)


def _is(held: Held, named: str) -> bool:
    """Return whether words name the value of a fact, or one member of a list in it."""
    value, words = words_of(held.value), words_of(named)
    if not words:
        return False  # a sign such as 😭
    if held.attribute is PersonAttribute.PLAN and words <= words_of(held.content):
        return True  # "I dropped Rotterdam" of "Rotterdam on 12 April"
    if held.slot and (words_of(held.slot) == words or (held.slot in PARTNERS and named.casefold() in PARTNERS)):
        return True  # "I broke up with my girlfriend"
    if held.attribute is PersonAttribute.DIET:
        return value == words
    more = words - value
    return (value <= words and more <= _LIGHT | words_of(held.content)) or remaining(
        held.content, named, exact=True
    ) is not None


_LIGHT_TEXT = """
lesson class course thing stuff diet habit job trip plan practice club group team app phase idea business old whole
day week month year today yesterday last good ever and me i completely altogether now then
"""
_LIGHT: Final = frozenset(_LIGHT_TEXT.split())
"""Words beside the value of a fact with which it is still named."""
YOUNG: Final = {"puppy": "dog", "pup": "dog", "kitten": "cat", "bunny": "rabbit", "pony": "horse"}
PARTNERS: Final = frozenset(("wife", "husband", "partner", "girlfriend", "boyfriend", "gf", "bf", "fiancé", "spouse"))


def _equal(known: str, value: str) -> bool:
    return words_of(known) == words_of(value)


def _grown(animal: str) -> frozenset[str]:
    """Return the words for an animal, a young one by the word for its kind."""
    return frozenset(YOUNG.get(word, word) for word in words_of(animal))


def matches(known: str, value: str) -> bool:
    """Return whether a fact of the ``known`` value is one that the words of ``value`` end; none end any."""
    if not value:
        return True
    one, other = words_of(known), words_of(value)
    if not other or not one:
        return known == value
    return one <= other or other <= one


def remaining(content: str, ended: str, *, exact: bool = False) -> str | None:
    """Return the content of a fact such as "likes tea and jazz" without one member; None if none would be left.

    With ``exact`` the member must be just the one that ended, and no part of it.
    """
    from caliber.learning.rules.matching import joined, members  # late: its patterns take long to compile

    verb, _, listed = content.partition(" ")
    parts = members(listed)
    same = (lambda one, other: words_of(one) == words_of(other)) if exact else matches
    left = [part for part in parts if not same(part, ended)]
    return f"{verb} {joined(left)}" if ended and left and len(left) < len(parts) else None
