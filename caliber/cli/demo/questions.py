"""Generator of the demo's questions from the imported content, each with the words that a right answer contains."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from caliber.cli.demo.steps import KNOWLEDGE
from caliber.cli.output import printable
from caliber.model.context import SectionType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import ArtifactType, TurnRole
from caliber.text import sections

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.model.windows import ContextWindow

_KEY: Final = "file:"
_ANSWER_CHARS: Final = 320
_TRIED: Final = 12
_SCOPES: Final = 6
_TOPICS: Final = 8
_TITLE_CHARS: Final = 64
_RECORD_CHARS: Final = 1_600
"""Longest decision record that is used: a small window holds it whole."""


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


_VERBS: Final = _words(
    """
    add adopt allow avoid begin bound build cache change check choose compress count create cut declare document
    drop embed enable encode explain export extract fix forget freeze give group handle hide hold implement
    import improve introduce join keep let limit load lock make mark measure merge move name parse pin prefer
    print read record reduce refactor refuse remember remove rename render replace replay report reserve retry
    return rewrite run search send share ship show skip sort speed split start stop store stream summarize
    support switch take test time track turn update upgrade use validate verify wait warn write
    """
)
_FINITE: Final = _words(
    "is are was were has have had may can cannot must will does do goes go lives stays takes leaves"
)
_RELATIVE: Final = _words("who whoever what whatever where wherever which whichever that how why when")
_PREFIX: Final = re.compile(r"^[\w./()!*-]{1,32}: +")
_REFERENCE: Final = re.compile(r"\s*\(#\d+\)$")
_PLAIN: Final = re.compile(r"[\w `'./_-]+")
_WHY: Final = re.compile(r"^\W*(why|context|rationale|reasons?)\b", re.IGNORECASE)
_DECISION: Final = re.compile(r"^\W*decision\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"^(ADR[- ]?)?[\d.]+\s*[:.)-]*\s*", re.IGNORECASE)
_LEAD: Final = re.compile(r"^\[.+?, (\d{1,2} \w+ \d{4})\] ")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z_-]{4,}")
_COMMON: Final = _words(
    """
    about added adding after again allow also another before being between branch bump cannot change changed
    changes commit could default docs does every files first fixed fixes from github have https improve initial
    into itself just like major make makes merge minor more never only other others pull readme release remove
    removed request section should since some support test tests than that their them then there these they this
    those through typo under update updated upgrade using version what when where which while will with without
    would your
    """
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the stored words that answer it; None if unknown."""

    text: str
    answer: str | None = None


def questions_about(memory: Caliber, trajectory_id: uuid.UUID, source: str) -> list[Question]:
    """Return two questions that an import can answer: about a decision or a document, and about past work."""
    documents = _about_documents(memory)
    first = _about_a_decision(memory, trajectory_id) or next(documents, None)
    second = _about_a_commit(memory, trajectory_id) if source == "git" else None
    out = [item for item in (first, second or next(documents, None)) if item is not None]
    topics = _topics(memory, trajectory_id, " ".join(item.text for item in out).lower())
    for form in ("What do we know about {}?", "What else is there to know about {}?"):
        if len(out) < 2:
            topic = _best_known(memory, topics, form)
            out.append(Question(form.format(topic) if topic else "What is there to know?"))
    return out


def shown_answer(window: ContextWindow, answer: str) -> str | None:
    """Return an answer as a window holds it, or None; earlier turns begin with speaker and day."""
    words = " ".join(answer.split())
    for section in window.sections:
        lines = section.content.splitlines()
        if words not in " ".join(section.content.split()):
            continue
        at = next((number for number, line in enumerate(lines) if words in " ".join(line.split())), None)
        if at is None or section.section_type is not SectionType.RECALL:
            return words
        # The first line of a passage has the day; the lines after it only the speaker.
        lead = next((found for line in lines[at::-1] if (found := _LEAD.match(line))), None)
        line = lines[at].strip()
        speaker, _, text = line.partition(": ")
        return line if lead is None or _LEAD.match(line) else f"[{speaker}, {lead[1]}] {text}"
    return None


# --- decisions and documents ---------------------------------------------------------------------


def _about_a_decision(memory: Caliber, trajectory_id: uuid.UUID) -> Question | None:
    best: tuple[tuple[int, bool, int, str], Question] | None = None
    for artifact in memory.storage.artifacts.list_by_trajectory(trajectory_id):
        key = artifact.idempotency_key or ""
        if artifact.artifact_type is not ArtifactType.DESIGN_DECISION or not key.startswith(_KEY):
            continue
        path = key.removeprefix(_KEY).rpartition(":")[0]
        title = _NUMBER.sub("", printable(sections.title_of(path, artifact.text))).strip(" .")
        paragraphs = [part.strip() for part in re.split(r"\n\s*\n", artifact.text) if part.strip()]
        why = _paragraph(paragraphs, _WHY)
        answer = _beginning(why or _paragraph(paragraphs, _DECISION) or "")
        certain, text = decided(title)
        if not answer or len(title) > _TITLE_CHARS or len(artifact.text) > _RECORD_CHARS:
            continue
        rank = (certain, why is not None, len(artifact.text), path)
        if best is None or rank > best[0]:
            best = (rank, Question(text, answer))
    return None if best is None else best[1]


def decided(title: str) -> tuple[int, str]:
    """Return a question about a decision of this title, and how surely it is English."""
    words = title.split()
    plain = [word.lower().strip(",:;") for word in words]
    if not plain or plain[0] in _RELATIVE:
        return 0, f"Why did we decide “{title}”?"
    lowered = title if any(char.isupper() for char in words[0][1:]) else title[0].lower() + title[1:]
    if _FINITE & set(plain[1:5]) and not set(plain[:4]) & _RELATIVE:
        return 2, f"Why did we decide that {lowered}?"
    if plain[0] in _VERBS:
        return 3, f"Why did we decide to {lowered}?"
    if len(plain) <= 3:
        return 1, f"Why did we decide on {lowered}?"
    return 0, f"Why did we decide “{title}”?"


def _about_documents(memory: Caliber) -> Iterator[Question]:
    """Yield questions about sections of documents, the most telling first."""
    found: list[tuple[tuple[bool, int, int, int], str, Any]] = []
    for note in memory.storage.notes.all():
        if note.entity_type != "document" or " § " not in note.entity or len(note.content) < 200:
            continue
        path, _, title = printable(note.entity).partition(" § ")
        heading = _NUMBER.sub("", re.sub(r" [(][0-9]+[)]$", "", title.split(" › ")[-1])).strip(" .:!")
        # A heading that asks is the best question; next a telling one near the top.
        asks = heading.endswith("?")
        telling = {word.lower() for word in _WORD.findall(heading)} - _COMMON
        rank = (asks, min(3, len(telling)), -path.count("/"), len(note.content))
        if 3 < len(heading) <= 60 and (asks or heading.split()[0].lower() not in _RELATIVE):
            found.append((rank, heading, note))
    seen: set[str] = set()
    for _, heading, note in sorted(found, key=lambda item: item[:2], reverse=True)[:_TRIED]:
        text = heading if heading.endswith("?") else f"What should I know about {heading}?"
        if heading.lower() not in seen and _finds(memory, text, "note", note.note_id):
            seen.add(heading.lower())
            yield Question(text, _beginning(note.content))


def _paragraph(paragraphs: list[str], kind: re.Pattern[str]) -> str | None:
    """Return the first paragraph of a kind: one that begins so, or the one below such a heading."""
    for at, part in enumerate(paragraphs):
        if not kind.match(part):
            continue
        if not part.startswith("#") and len(part.split()) > 3:
            return part
        below = part.partition("\n")[2].strip() or (paragraphs[at + 1] if at + 1 < len(paragraphs) else "")
        if below and not below.startswith("#"):
            return below
    return None


def _beginning(text: str) -> str:
    """Return whole sentences from the beginning of a text, a short paragraph of them."""
    words = " ".join(printable(text).split())
    if len(words) <= _ANSWER_CHARS:
        return words
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)", words[:_ANSWER_CHARS])]
    return words[: ends[-1]] if ends else words[:_ANSWER_CHARS].rpartition(" ")[0]


# --- past work ----------------------------------------------------------------------------------------


def _about_a_commit(memory: Caliber, trajectory_id: uuid.UUID) -> Question | None:
    """Return a question about the date of a commit that a search distinguishes from all others."""
    subjects = _subjects(memory, trajectory_id)
    times = Counter(subject for _, subject in subjects)
    asked: list[tuple[int, str, uuid.UUID, str]] = []
    for turn_id, subject in subjects:
        words = _REFERENCE.sub("", _PREFIX.sub("", subject)).rstrip(" .").split()
        verb = verb_of(words[0]) if words else None
        rest = " ".join(words[1:])
        if verb is None or not 3 <= len(words) <= 9 or not _PLAIN.fullmatch(rest) or times[subject] > 1:
            continue
        telling = {word.lower() for word in _WORD.findall(rest)} - _COMMON
        asked.append((-len(telling), f"When did we {verb} {rest}?", turn_id, subject))
    for _, text, turn_id, subject in sorted(asked, key=lambda item: item[:2])[:_TRIED]:
        if _finds(memory, text, "turn", turn_id):
            return Question(text, subject)
    return None


def _finds(memory: Caliber, text: str, kind: str, record_id: uuid.UUID) -> bool:
    """Return whether a search distinguishes a record from all others of its kind."""
    hits = memory.search(text, kinds=(kind,), limit=1).hits
    return bool(hits) and hits[0].id == record_id


def verb_of(word: str) -> str | None:
    """Return the verb that a commit's subject begins with, as questions have it: fix of Fix, Fixes and Fixed."""
    plain = word.lower()
    for form in (plain, *_stems(plain)):
        if form in _VERBS:
            return form
    return None


def _stems(word: str) -> Iterator[str]:
    if word.endswith("ed"):
        yield from (word[:-2], word[:-1], word[:-3] if word[-4:-3] == word[-3:-2] else word[:-2])
    elif word.endswith("s"):
        yield from (word[:-1], word[:-2])


def _subjects(memory: Caliber, trajectory_id: uuid.UUID) -> list[tuple[uuid.UUID, str]]:
    return [
        (turn.turn_id, printable(turn.text.split("\n", 1)[0]).strip())
        for scope in memory.storage.scopes.list_by_trajectory(trajectory_id)[-_SCOPES:]
        for turn in memory.storage.turns.list_by_scope(scope.scope_id)
        if turn.role is TurnRole.USER
    ]


# --- where nothing better is known ---------------------------------------------------------------


def _best_known(memory: Caliber, topics: Iterable[str], form: str) -> str | None:
    """Return the topic that most documents are about; without an embedding provider, the first."""
    best: tuple[float, str] | None = None
    for topic in topics:
        hits = memory.search(form.format(topic), kinds=KNOWLEDGE, limit=1).hits
        score = hits[0].score if hits else 0.0
        if best is None or score > best[0]:
            best = (score, topic)
    return None if best is None else best[1]


def _topics(memory: Caliber, trajectory_id: uuid.UUID, avoided: str) -> list[str]:
    """Return recurring topics, most frequent first: pairs of adjacent words in commits, then single words."""
    subjects = [subject for _, subject in _subjects(memory, trajectory_id)]
    names: list[Any] = [note.entity for note in memory.storage.notes.all()]
    pairs: Counter[str] = Counter()
    singles: Counter[str] = Counter()
    for subject in subjects:
        words = [word.lower() for word in _WORD.findall(subject)]
        singles.update(set(words) - _COMMON)
        pairs.update({f"{one} {two}" for one, two in pairwise(words) if not {one, two} & _COMMON and one != two})
    written = {word.lower() for name in names for word in _WORD.findall(name)}
    # A word in almost every subject is a habit, not a topic.
    most = max(3, len(subjects) // 2)
    out: list[str] = []
    for counts, least in ((pairs, 3), (singles, 2)):
        topics = [
            (-count * (2 if set(topic.split()) & written else 1), topic)
            for topic, count in counts.items()
            if least <= count <= most and topic not in avoided
        ]
        out.extend(topic for _, topic in sorted(topics)[:_TOPICS])
    return out or sorted(word for word in written - _COMMON if word not in avoided)[:_TOPICS]
