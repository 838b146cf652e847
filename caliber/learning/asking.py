"""Learning with a language model: extraction, a check of each fact against the messages, one decision for each.

No answer is believed as it is: a fact has to quote the message that it is from, and to name nobody and nothing that the
message does not. So a model can neither invent a fact, nor carry one over from another user, nor pass on an
instruction that it was told to pass on.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final

from caliber.learning.deciding import (
    INSTRUCTION,
    KNOWN,
    NEW,
    NOTHING_TO_END,
    OLDER,
    Candidate,
    Held,
    Person,
    Refused,
    StatedCandidate,
    Step,
    is_instruction,
)
from caliber.llm.protocols import USER_PERSON, ExtractedFact, FactDecision, FactQuestion, LearningProvider
from caliber.model import arguments
from caliber.model.errors import InvalidResponse
from caliber.model.knowledge import NoteType
from caliber.model.learning import LearningAction, PersonAttribute
from caliber.model.providers import ExtractionTurn
from caliber.model.trajectory import Turn

UNSUPPORTED: Final = "not in the user's message"
TOO_LONG: Final = "too long for a fact"
NO_SUCH_FACT: Final = "the model named no fact that is known"
_STATEMENT_CHARS: Final = 400
_REASON_CHARS: Final = 200
_FACT: Final = {"person": str, "attribute": PersonAttribute, "value": str, "statement": str, "source_turn": int}
_DECISION: Final = {"action": LearningAction, "known": int | None, "reason": str}
_WORD: Final = re.compile(r"[^\W_]+")
_TASTES: Final = frozenset({PersonAttribute.LIKES, PersonAttribute.DISLIKES, PersonAttribute.DIET})


class Asking:
    """Asks a language model what messages teach, and what becomes of it."""

    def __init__(self, provider: LearningProvider, most_known: int) -> None:
        self._provider = provider
        self._most_known = most_known

    def read(self, user: str, turns: Sequence[Turn]) -> list[tuple[Turn, Candidate | Refused]]:
        """Return the facts that turns state, and what the model named that they do not state.

        Raises: LlmError kinds.
        """
        said = [turn for turn in turns if turn.text.strip()]
        asked = [ExtractionTurn(turn.turn_number, turn.role, turn.text, turn.name) for turn in said]
        by_number = {turn.turn_number: turn for turn in turns}
        found: list[tuple[Turn, Candidate | Refused]] = []
        for fact in self._listed(self._provider.extract_facts(user, asked), "facts") if asked else ():
            if not _is_a(fact, ExtractedFact, _FACT):
                raise InvalidResponse(provider=self._provider.model_id, reason="a fact is of another type")
            turn = by_number.get(fact.source_turn)
            if turn is None:
                found.append((turns[0], Refused(UNSUPPORTED, 0, 0, fact.attribute)))
            else:
                found.append((turn, _checked(fact, turn.text, user)))
        return found

    def decide(self, statements: Sequence[StatedCandidate], held: list[Held]) -> list[Step]:
        """Return the step for each statement. Raises: LlmError kinds; InvalidResponse for too few decisions."""
        known = [
            [each for each in held if each.person == statement.person][-self._most_known :] for statement in statements
        ]
        asked = [
            at
            for at, statement in enumerate(statements)
            if known[at] and not any(_equal(each.content, statement) for each in known[at])
        ]
        contents = [tuple(each.content for each in facts) for facts in known]
        questions = [FactQuestion(statements[at].name, statements[at].candidate.content, contents[at]) for at in asked]
        decided = self._listed(self._provider.decide_facts(questions), "decisions") if questions else []
        if len(decided) != len(questions):
            reason = f"{len(decided)} decisions for {len(questions)} statements"
            raise InvalidResponse(provider=self._provider.model_id, reason=reason)
        if not all(_is_a(each, FactDecision, _DECISION) for each in decided):
            raise InvalidResponse(provider=self._provider.model_id, reason="a decision is of another type")
        decisions = dict(zip(asked, decided, strict=True))
        steps: list[Step] = []
        for at, statement in enumerate(statements):
            steps.append(_step(statement, decisions.get(at), known[at], held))
        return steps

    def _listed(self, answer: object, items: str) -> Sequence[Any]:
        """Return the list that a provider answered. Raises: InvalidResponse where others wrote one without."""
        if not isinstance(answer, list | tuple):
            raise InvalidResponse(provider=self._provider.model_id, reason=f"the {items} are no list")
        return answer


def _is_a(answer: object, cls: type, kinds: Mapping[str, Any]) -> bool:
    """Return whether what a provider answered is of a class, and its fields of theirs: others may have written it."""
    return isinstance(answer, cls) and all(isinstance(getattr(answer, name), kind) for name, kind in kinds.items())


def _cleaned(text: str) -> str:
    """Return a text without control characters and lone surrogates; a break becomes a blank."""
    text = "".join(each for each in " ".join(text.split()) if unicodedata.category(each) not in ("Cc", "Cs"))
    return text.strip()


def _checked(fact: ExtractedFact, text: str, user: str) -> Candidate | Refused:
    """Return a fact as a candidate, or why the message does not state it."""
    person, statement = "".join(filter(str.isprintable, fact.person)).strip(), _cleaned(fact.statement)
    place = text.casefold().find(fact.value.strip().casefold())
    start, end = (place, place + len(fact.value.strip())) if place >= 0 else (0, 0)
    reason = None
    if len(statement) > _STATEMENT_CHARS:
        reason = TOO_LONG
    elif any(map(is_instruction, (statement, fact.statement, fact.value, person, fact.person))):
        reason = INSTRUCTION
    elif place < 0 or not fact.value.strip() or not _is_supported(person, statement, text, user):
        reason = UNSUPPORTED
    if reason is not None:
        return Refused(reason, start, end, fact.attribute)
    own = person.casefold() in (USER_PERSON, user.casefold())
    return Candidate(
        attribute=fact.attribute,
        value=fact.value.strip(),
        content=statement,
        start=start,
        end=end,
        note_type=NoteType.PREFERENCE if fact.attribute in _TASTES else NoteType.FACT,
        person=None if own else Person("", person),
    )


def _is_supported(person: str, statement: str, text: str, user: str) -> bool:
    """Return whether a message names the person of a fact, and every name and number that the statement has."""
    named = {word.casefold() for word in _WORD.findall(text)} | {word.casefold() for word in _WORD.findall(user)}
    who, stated = _WORD.findall(person), _WORD.findall(statement)
    if not who or not stated or len(person) > arguments.MAX_NAME_CHARS:
        return False
    exact = [word for word in stated if word[0].isupper() or word[0].isdigit()]
    exact += () if person.casefold() == USER_PERSON else who
    return all(word.casefold() in named for word in exact)


def _equal(content: str, statement: StatedCandidate) -> bool:
    return content.casefold().split() == statement.candidate.content.casefold().split()


def _step(statement: StatedCandidate, decision: FactDecision | None, known: Sequence[Held], held: list[Held]) -> Step:
    """Return the decision about a statement as a step; a decision that no known fact fits changes nothing."""
    same = [each for each in held if each.holds and each.person == statement.person and _equal(each.content, statement)]
    if same:
        return Step(LearningAction.NOTHING, statement, KNOWN, same[-1])
    if decision is None:
        return Step(LearningAction.ADD, statement, NEW, None, _made(statement, held))
    reason = _cleaned(decision.reason)[:_REASON_CHARS]
    if decision.action is LearningAction.NOTHING:
        return Step(LearningAction.NOTHING, statement, reason or KNOWN)
    if decision.action is LearningAction.ADD:
        return Step(LearningAction.ADD, statement, reason or NEW, None, _made(statement, held))
    if decision.known is None or not 0 <= decision.known < len(known):
        return Step(LearningAction.NOTHING, statement, NO_SUCH_FACT)
    target = known[decision.known]
    if not target.holds:  # another statement of these messages took its place
        ends = decision.action is LearningAction.END
        if ends:
            return Step(LearningAction.NOTHING, statement, NOTHING_TO_END)
        return Step(LearningAction.ADD, statement, reason or NEW, None, _made(statement, held))
    if statement.stated_at < target.stated_at:
        return Step(LearningAction.NOTHING, statement, OLDER, target)
    target.holds = False
    if decision.action is LearningAction.END:
        return Step(LearningAction.END, statement, reason, target)
    if target.attribute is statement.candidate.attribute:
        statement = dataclasses.replace(statement, candidate=dataclasses.replace(statement.candidate, slot=target.slot))
    return Step(LearningAction.UPDATE, statement, reason, target, _made(statement, held))


def _made(statement: StatedCandidate, held: list[Held]) -> Held:
    made = statement.held()
    held.append(made)
    return made
