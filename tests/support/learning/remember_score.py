"""A scorer of facts learnt from labelled chat, by the rule of tests/data/remember: precision, corrections, recall."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPEN = Path(__file__).parents[2] / "data" / "remember" / "open4.json"
ATTRIBUTES = frozenset(
    {"home", "employer", "job", "name", "age", "birthday", "diet", "allergy", "likes", "dislikes", "pet", "family"}
    | {"language", "health", "plan", "other"}
)
# A kept value longer than the accepted wording by more words than this is a copy of the message, not a fact.
SPARE_WORDS = 12
_NEGATIONS = frozenset({"not", "no", "never", "without", "formerly", "former", "longer", "cannot"})


@dataclass(frozen=True)
class Kept:
    """A fact that a learner kept. An id that is held already replaces the fact held under it."""

    id: str
    subject: str
    attribute: str
    value: str


@dataclass(frozen=True)
class Learnt:
    """A learner's reaction to one message: the facts it kept and the ids of the earlier facts it ended."""

    kept: Sequence[Kept] = ()
    ended: Sequence[str] = ()


@dataclass
class Score:
    """Counts over conversations, and the three ratios made of them."""

    right: int = 0
    kept: int = 0
    wanted: int = 0
    found: int = 0
    corrected: int = 0
    due: int = 0
    labelled: int = 0
    wrong_ends: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Share of kept facts that are right; facts labelled optional count on neither side."""
        return self.right / self.kept if self.kept else 0.0

    @property
    def recall(self) -> float:
        """Share of labelled facts that were kept; optional ones do not count."""
        return self.found / self.wanted if self.wanted else 0.0

    @property
    def corrections(self) -> float:
        """Share of due corrections done right; each wrongful end counts as one more that is wrong."""
        total = self.due + self.wrong_ends
        return self.corrected / total if total else 0.0

    def __str__(self) -> str:
        return (
            f"precision {self.precision:.3f} ({self.right} of {self.kept}), "
            f"corrections {self.corrections:.3f} ({self.corrected} of {self.due} due and {self.wrong_ends} wrongful "
            f"ends, {self.labelled} labelled), recall {self.recall:.3f} ({self.found} of {self.wanted})"
        )


def conversations(path: Path = OPEN) -> list[dict[str, Any]]:
    """Return the labelled conversations of a file."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def score(talks: Iterable[Mapping[str, Any]], answers: Mapping[str, Learnt]) -> Score:
    """Return the score of ``answers``, one per message id; a message without one kept and ended nothing.

    Raises ValueError for an answer to an unknown message, an attribute that is none of ``ATTRIBUTES``, and an ended
    id that is not held.
    """
    total, unknown = Score(), set(answers)
    for talk in talks:
        _Talk(talk, total).run(answers)
        unknown.difference_update(message["message"] for message in talk["messages"])
    if unknown:
        raise ValueError(f"no such messages: {sorted(unknown)}")
    return total


class _Talk:
    """The facts a learner holds in one conversation, beside the labelled ones they were matched with."""

    def __init__(self, talk: Mapping[str, Any], total: Score) -> None:
        self.talk, self.total = talk, total
        self.labels: dict[str, Mapping[str, Any]] = {}  # labelled facts so far that nothing has ended
        self.matched: dict[str, str] = {}  # labelled fact to the kept id that matches it, also after its end
        self.held: dict[str, str | None] = {}  # kept id to its labelled fact, while held

    def run(self, answers: Mapping[str, Learnt]) -> None:
        for message in self.talk["messages"]:
            self._message(message, answers.get(message["message"], Learnt()))

    def _message(self, message: Mapping[str, Any], answer: Learnt) -> None:
        due = _corrections(message)
        earlier = {old for old, _ in due if self._holds(old)}
        allowed = {old for old, _ in due} | set(message.get("may_end", ()))
        self.labels.update((fact["fact"], fact) for fact in message["facts"])
        for ended in [*answer.ended, *(kept.id for kept in answer.kept if kept.id in self.held)]:
            self._end(message, ended, allowed)
        for old in allowed:
            self.labels.pop(old, None)
        for kept in answer.kept:
            self._keep(message, kept)
        self.total.wanted += sum(not fact.get("optional") for fact in message["facts"])
        for old, new in due:
            self._judge(message, old, new, old in earlier)

    def _end(self, message: Mapping[str, Any], ended: str, allowed: set[str]) -> None:
        if ended not in self.held:
            raise ValueError(f"{message['message']}: ends {ended!r}, which is not held")
        label = self.held.pop(ended)
        if label is not None and label not in allowed:
            self.total.wrong_ends += 1
            self._fault(message, f"ended {label}")

    def _keep(self, message: Mapping[str, Any], kept: Kept) -> None:
        if kept.attribute not in ATTRIBUTES:
            raise ValueError(f"{message['message']}: unknown attribute {kept.attribute!r}")
        free = [fact for key, fact in self.labels.items() if key not in self.matched]
        fits = [fact for fact in free if fits_label(kept, fact, self.talk["user"])]
        best = min(fits, key=lambda fact: bool(fact.get("optional")), default=None)
        self.held[kept.id] = best and best["fact"]
        if best is None:
            self.total.kept += 1
            self._fault(message, f"kept {kept.subject} | {kept.attribute} | {kept.value}")
            return
        self.matched[best["fact"]] = kept.id
        if not best.get("optional"):
            self.total.kept += 1
            self.total.right += 1
            self.total.found += 1

    def _judge(self, message: Mapping[str, Any], old: str, new: str | None, was_held: bool) -> None:
        self.total.labelled += 1
        replaced = new is not None and new in self.matched
        if not (was_held or replaced):
            return
        self.total.due += 1
        if not self._holds(old) and (replaced or new is None):
            self.total.corrected += 1
        else:
            self._fault(message, f"still holds {old}" if self._holds(old) else f"lacks {new}")

    def _holds(self, label: str) -> bool:
        return label in self.held.values()

    def _fault(self, message: Mapping[str, Any], fault: str) -> None:
        self.total.faults.append(f"{message['message']}: {fault} ({message['text'][:70]!r})")


def _corrections(message: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return each labelled fact that a message ends, with the one that takes its place."""
    replaced: list[tuple[str, str | None]] = [
        (old, fact["fact"]) for fact in message["facts"] for old in fact.get("ends", ())
    ]
    return replaced + [(old, None) for old in message["ends"]]


def fits_label(kept: Kept, fact: Mapping[str, Any], user: str) -> bool:
    """Return whether a kept fact has the subject, the attribute and an accepted wording of the value of a label."""
    if kept.attribute not in fact["attribute"]:
        return False
    if not any(_same_subject(kept.subject, subject, user) for subject in fact["subject"]):
        return False
    return any(_states(kept, wording) for wording in fact["value"])


def _same_subject(subject: str, accepted: str, user: str) -> bool:
    spoken = _words(subject)
    if accepted == "user":
        return spoken in (_words("user"), _words(user))
    return _find(spoken, _words(accepted)) is not None


def _states(kept: Kept, wording: str) -> bool:
    value, wanted = _words(kept.value), _words(wording)
    place = _find(value, wanted)
    if place is None or len(value) > len(wanted) + SPARE_WORDS:
        return False
    before = value[max(0, place - 3) : place]
    return kept.attribute == "dislikes" or not any(word in _NEGATIONS or word.endswith("n't") for word in before)


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFC", text).replace("\u2019", "'").casefold()
    return re.findall(r"\w+(?:'\w+)?", plain)


def _find(words: list[str], wanted: list[str]) -> int | None:
    places = range(len(words) - len(wanted) + 1)
    return next((place for place in places if words[place : place + len(wanted)] == wanted), None)
