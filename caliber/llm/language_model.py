"""Summary and extraction provider backed by a language model: builds prompts, validates the JSON answers.

A text that exceeds the model's limit is sent in parts. No text can change the instructions: texts are passed as data of
a JSON document, beside the prompt.

Source: C-103, C-233, C-260, C-497, K-111, M-108, M-109; docs/decisions/0047-answers-are-checked.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from caliber.llm.prompts import load_prompts, prompts_id
from caliber.llm.protocols import ExtractedFact, FactDecision, FactQuestion
from caliber.llm.remote.answers import Answer
from caliber.llm.remote.chat import ChatModel, ModelQuestion
from caliber.llm.retry import Retry
from caliber.llm.texts import LongText, LongTextMode, chunk_text
from caliber.model.errors import InvalidValue, SummarizationFailed
from caliber.model.knowledge import NoteType
from caliber.model.learning import LearningAction, PersonAttribute
from caliber.model.providers import (
    ConsolidationAction,
    ConsolidationDecision,
    ConsolidationMember,
    ExtractedArtifact,
    ExtractionTurn,
    GeneratedNote,
    MergedNote,
    TokenCounter,
    TrajectoryDigest,
)
from caliber.model.time import from_us
from caliber.model.trajectory import ArtifactType
from caliber.text.naming import MAX_ENTITY_CHARS
from caliber.text.note_rules import fold_statement, require_mergeable, unite_notes

if TYPE_CHECKING:
    from caliber.config.providers import ChatConfig

T = TypeVar("T")

_TEXT: Final = {"type": "string"}
_SHARE: Final = {"type": "number"}
_WHOLE: Final = {"type": "integer"}
MAX_ITEMS: Final = 100
"""Most artifacts, notes or decisions taken from one answer."""
MAX_ITEM_CHARS: Final = 4_000
_REASON_CHARS: Final = 1_000
_PART_OF_INPUT: Final = 4
"""Share of the input that a summary of a part may take: four such parts become one, so summarizing in steps ends."""


def _table(**fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def _list_of(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _one_of(members: Iterable[StrEnum]) -> dict[str, Any]:
    return {"type": "string", "enum": [member.value for member in members]}


_SUMMARY: Final = _table(summary=_TEXT)
_ARTIFACT: Final = _table(artifact_type=_one_of(ArtifactType), content=_TEXT, confidence=_SHARE, source_turn=_WHOLE)
_LESSONS: Final = _one_of(
    (
        NoteType.CONVENTION,
        NoteType.STRATEGY,
        NoteType.GOTCHA,
        NoteType.FACT,
        NoteType.PREFERENCE,
        NoteType.RELATIONSHIP,
        NoteType.PROCEDURE,
        NoteType.META,
    )
)
_NOTE: Final = _table(entity=_TEXT, entity_type=_TEXT, note_type=_LESSONS, content=_TEXT, confidence=_SHARE)
_DECISION: Final = _table(
    cluster=_WHOLE,
    action=_one_of(ConsolidationAction),
    survivor={"type": ["integer", "null"]},
    content={"type": ["string", "null"]},
)
_ARTIFACTS: Final = _table(artifacts=_list_of(_ARTIFACT))
_NOTES: Final = _table(notes=_list_of(_NOTE))
_DECISIONS: Final = _table(decisions=_list_of(_DECISION))
_CONTENT: Final = _table(content=_TEXT)
_FACTS: Final = _table(
    facts=_list_of(
        _table(person=_TEXT, attribute=_one_of(PersonAttribute), value=_TEXT, statement=_TEXT, message=_WHOLE)
    )
)
_ACTIONS: Final = _table(
    actions=_list_of(
        _table(fact=_WHOLE, action=_one_of(LearningAction), known={"type": ["integer", "null"]}, reason=_TEXT)
    )
)
_CONTRADICTION: Final = _table(contradiction={"type": "boolean"})


class LanguageModelProvider:
    """A ``SummarizationProvider`` that asks a language model. Threads may share it.

    Raises: InvalidConfigValue when the prompts cannot be read.
    """

    def __init__(self, model: ChatModel, settings: ChatConfig, count_tokens: TokenCounter) -> None:
        self._model = model
        self._settings = settings
        self._count_tokens = count_tokens
        self._retry: Retry | None = None
        self._prompts = load_prompts(settings.prompts)
        self._model_id = f"{model.name}:{model.model}+{prompts_id(self._prompts)}"

    @property
    def model_id(self) -> str:
        """The model and its prompts: both determine its answers."""
        return self._model_id

    def summarize(self, text: str, max_tokens: int) -> str:
        """Return a summary that never counts more than ``max_tokens``; a text that fits comes back whole.

        A text longer than ``chat.max_input_tokens`` is summarized in parts first, then the summaries.

        Raises: InvalidValue, SummarizationFailed, and what ``ChatModel.ask`` raises.
        """
        if max_tokens < 1:
            raise InvalidValue(field="max_tokens", reason="must be at least 1")
        if not text or text.isspace():
            raise SummarizationFailed(reason="empty text")
        while self._count_tokens(text) > self._settings.max_input_tokens:
            most = max(1, self._settings.max_input_tokens // _PART_OF_INPUT)
            text = "\n\n".join(self._summary(part, most) for part in self._parts(text))
        if self._count_tokens(text) <= max_tokens:
            return text.strip()
        return self._summary(text, max_tokens)

    def extract_artifacts(self, turns: Sequence[ExtractionTurn]) -> list[ExtractedArtifact]:
        """Return the artifacts that the model finds, in order of turns, nothing twice. Raises: as ``summarize``."""
        numbers = {turn.turn_number for turn in turns}

        def read(answer: Answer) -> list[ExtractedArtifact]:
            return [self._artifact(item, numbers) for item in self._items(answer, "artifacts")]

        found: dict[tuple[ArtifactType, str], ExtractedArtifact] = {}
        for group in self._packed(self._readable(turns)):
            for artifact in self._ask("extract_artifacts", {"turns": group}, _ARTIFACTS, read):
                key = (artifact.artifact_type, fold_statement(artifact.content))
                first = found.setdefault(key, artifact)
                if artifact.confidence > first.confidence:
                    found[key] = replace(first, confidence=artifact.confidence)
        return sorted(found.values(), key=lambda artifact: artifact.source_turn or 0)

    def generate_notes(
        self,
        trajectory: TrajectoryDigest,
        scope_summaries: Sequence[str],
        artifacts: Sequence[ExtractedArtifact],
    ) -> list[GeneratedNote]:
        """Return the lessons that the model finds, at most one note per (entity, entity_type, note_type).

        Raises: as ``summarize``.
        """
        material = [("summaries", part) for summary in scope_summaries for part in self._fitting(summary)]
        kept = [
            ("artifacts", {"artifact_type": artifact.artifact_type.value, "content": part})
            for artifact in artifacts
            for part in self._fitting(artifact.content)
        ]
        goal, outcome = self._shortened(trajectory.goal), self._shortened(trajectory.summary)
        if not material and not kept and goal is None and outcome is None:
            return []

        def read(answer: Answer) -> list[GeneratedNote]:
            return [self._note(item) for item in self._items(answer, "notes")]

        notes: list[GeneratedNote] = []
        for group in self._packed([*material, *kept]) or [[]]:
            document: dict[str, Any] = {"goal": goal, "outcome": outcome, "summaries": [], "artifacts": []}
            for field, item in group:
                document[field].append(item)
            notes += self._ask("generate_notes", document, _NOTES, read)
        return unite_notes(notes)

    def merge_notes(self, a: GeneratedNote, b: GeneratedNote) -> MergedNote:
        """Return one note with the content of both; ``b`` is the newer one, the higher confidence stays.

        Raises: InvalidValue (K-111), and as ``summarize``.
        """
        require_mergeable(a, b)
        material = {"entity": a.entity, "older": self._shortened(a.content), "newer": self._shortened(b.content)}
        content = self._ask("merge_notes", material, _CONTENT, lambda answer: self._text(answer, "content"))
        return MergedNote(a.entity, a.entity_type, a.note_type, content, max(a.confidence, b.confidence))

    def verify_contradiction(self, a: str, b: str) -> bool:
        """Return whether the model holds that the two cannot both be true. Raises: as ``summarize``."""
        if not a.strip() or not b.strip():
            return False

        def read(answer: Answer) -> bool:
            return answer.only(["contradiction"]).field("contradiction").flag()

        return self._ask(
            "verify_contradiction", {"a": self._shortened(a), "b": self._shortened(b)}, _CONTRADICTION, read
        )

    def decide_consolidation(self, clusters: Sequence[Sequence[ConsolidationMember]]) -> list[ConsolidationDecision]:
        """Return one decision per cluster, in their order.

        A cluster of fewer than two, or too long for the model to be given whole, is kept without asking.

        Raises: as ``summarize``.
        """
        decisions = [_kept(cluster) for cluster in clusters]
        documents: list[dict[str, Any]] = [
            {"cluster": number, "members": [_member(place, member) for place, member in enumerate(cluster)]}
            for number, cluster in enumerate(clusters)
            if len(cluster) > 1
        ]
        limit = self._settings.max_input_tokens
        asked = [document for document in documents if self._count_tokens(_json(document)) <= limit]
        for group in self._packed(asked, MAX_ITEMS):
            numbers: list[int] = [document["cluster"] for document in group]

            def read(answer: Answer, numbers: list[int] = numbers) -> list[ConsolidationDecision]:
                return self._decisions(answer, numbers, clusters)

            made = self._ask("decide_consolidation", {"clusters": group}, _DECISIONS, read)
            for number, decision in zip(numbers, made, strict=True):
                decisions[number] = decision
        return decisions

    def extract_facts(self, user: str, turns: Sequence[ExtractionTurn]) -> list[ExtractedFact]:
        """Return the facts about people that the model finds in a user's messages. Raises: as ``summarize``."""
        numbers = {turn.turn_number for turn in turns}

        def read(answer: Answer) -> list[ExtractedFact]:
            return [self._fact(item, numbers) for item in self._items(answer, "facts")]

        messages = [
            {"number": turn.turn_number, "content": part} for turn in turns for part in self._fitting(turn.content)
        ]
        found: list[ExtractedFact] = []
        for group in self._packed(messages):
            found += self._ask("extract_facts", {"user": user, "messages": group}, _FACTS, read)
        return found

    def decide_facts(self, questions: Sequence[FactQuestion]) -> list[FactDecision]:
        """Return one decision per statement, in their order. Raises: as ``summarize``."""
        documents: list[dict[str, Any]] = [
            {
                "fact": number,
                "person": question.person,
                "statement": question.statement,
                "known": [{"number": place, "statement": known} for place, known in enumerate(question.known)],
            }
            for number, question in enumerate(questions)
        ]
        decisions: list[FactDecision] = []
        for group in self._packed(documents, MAX_ITEMS):

            def read(answer: Answer, group: list[dict[str, Any]] = group) -> list[FactDecision]:
                items = self._items(answer, "actions")
                if len(items) != len(group):
                    answer.field("actions").refuse(f"has {len(items)} items for {len(group)} statements")
                return [_fact_decision(item, asked) for item, asked in zip(items, group, strict=True)]

            decisions += self._ask("decide_facts", {"facts": group}, _ACTIONS, read)
        return decisions

    def retried(self, retry: Retry) -> LanguageModelProvider:
        """Return this provider with every question behind ``retry``: parts that were answered are not asked again."""
        other = copy(self)
        other._retry = retry
        return other

    def close(self) -> None:
        """Close the connections; requests under way end with Unavailable."""
        self._model.close()

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self, call: str, material: Mapping[str, Any], schema: Mapping[str, Any], read: Callable[[Answer], T]) -> T:
        """Return the answer, parsed by ``read``; parsing is part of the request, so that a bad answer is requested
        again.
        """
        question = ModelQuestion(call, self._prompts[call], material, schema)

        def ask() -> T:
            return read(self._model.ask(question))

        return ask() if self._retry is None else self._retry(ask)

    def _summary(self, text: str, max_tokens: int) -> str:
        per_token = len(text) / self._count_tokens(text)
        material = {"max_characters": max(1, int(max_tokens * per_token)), "text": text}
        # A model counts characters badly: a text that is too long is cut at a sentence, within bounds.
        most = 16 * max(len(text), 1_000)
        summary = self._ask(
            "summarize", material, _SUMMARY, lambda answer: answer.only(["summary"]).field("summary").text(most)
        )
        return self._cut(summary.strip(), max_tokens)

    def _cut(self, text: str, max_tokens: int) -> str:
        rule = LongText(LongTextMode.CHUNK_MEAN, max_tokens, self._count_tokens)
        try:
            return chunk_text(text, rule).texts[0].strip()
        except InvalidValue as error:
            raise SummarizationFailed(reason=f"{max_tokens} tokens hold no character") from error

    # --- input limits ------------------------------------------------------------------------------

    def _parts(self, text: str) -> Sequence[str]:
        rule = LongText(LongTextMode.CHUNK_MEAN, self._settings.max_input_tokens, self._count_tokens)
        return chunk_text(text, rule).texts

    def _fitting(self, text: str | None) -> Sequence[str]:
        """Return a text in parts that leave room for the rest of the prompt; nothing for a blank one."""
        if text is None or not text.strip():
            return ()
        rule = LongText(LongTextMode.CHUNK_MEAN, max(1, self._settings.max_input_tokens // 2), self._count_tokens)
        return chunk_text(text, rule).texts

    def _shortened(self, text: str | None) -> str | None:
        """Return as much of a text as stands beside others; None for a blank one."""
        if text is None or not text.strip():
            return None
        return self._cut(text, max(1, self._settings.max_input_tokens // _PART_OF_INPUT))

    def _readable(self, turns: Sequence[ExtractionTurn]) -> list[dict[str, Any]]:
        return [
            {"number": turn.turn_number, "role": turn.role.value, "name": turn.name, "content": part}
            for turn in turns
            for part in self._fitting(turn.content)
        ]

    def _packed(self, items: Sequence[T], most: int | None = None) -> list[list[T]]:
        """Return items in groups that the model may be given at once, in order."""
        limit = self._settings.max_input_tokens
        groups: list[list[T]] = []
        room = 0
        for item in items:
            tokens = self._count_tokens(_json(item))
            if not groups or tokens > room or len(groups[-1]) == most:
                groups.append([])
                room = limit
            groups[-1].append(item)
            room -= tokens
        return groups

    # --- reading answers -------------------------------------------------------------------------

    def _items(self, answer: Answer, field: str) -> list[Answer]:
        return answer.only([field]).field(field).items(MAX_ITEMS)

    def _text(self, answer: Answer, field: str) -> str:
        return answer.only([field]).field(field).text(MAX_ITEM_CHARS).strip()

    def _decisions(
        self, answer: Answer, numbers: Sequence[int], clusters: Sequence[Sequence[ConsolidationMember]]
    ) -> list[ConsolidationDecision]:
        items = self._items(answer, "decisions")
        if len(items) != len(numbers):
            answer.field("decisions").refuse(f"has {len(items)} items for {len(numbers)} clusters")
        for item, number in zip(items, numbers, strict=True):
            item.only(["cluster", "action", "survivor", "content"]).field("cluster").whole(number, number)
        return [self._decision(item, clusters[number]) for item, number in zip(items, numbers, strict=True)]

    def _artifact(self, item: Answer, numbers: set[int]) -> ExtractedArtifact:
        item.only(["artifact_type", "content", "confidence", "source_turn"])
        turn = item.field("source_turn")
        if turn.value not in numbers or isinstance(turn.value, bool | float):
            turn.refuse("is the number of no turn")
        return ExtractedArtifact(
            item.field("artifact_type").choice(ArtifactType),
            item.field("content").text(MAX_ITEM_CHARS).strip(),
            item.field("confidence").fraction(),
            turn.value,
        )

    def _fact(self, item: Answer, numbers: set[int]) -> ExtractedFact:
        item.only(["person", "attribute", "value", "statement", "message"])
        turn = item.field("message")
        if turn.value not in numbers or isinstance(turn.value, bool | float):
            turn.refuse("is the number of no message")
        return ExtractedFact(
            item.field("person").text(MAX_ENTITY_CHARS).strip(),
            item.field("attribute").choice(PersonAttribute),
            item.field("value").text(MAX_ITEM_CHARS).strip(),
            item.field("statement").text(MAX_ITEM_CHARS).strip(),
            turn.value,
        )

    def _note(self, item: Answer) -> GeneratedNote:
        item.only(["entity", "entity_type", "note_type", "content", "confidence"])
        return GeneratedNote(
            item.field("entity").text(MAX_ENTITY_CHARS).strip(),
            item.field("entity_type").text(MAX_ENTITY_CHARS).strip(),
            item.field("note_type").choice(NoteType),
            item.field("content").text(MAX_ITEM_CHARS).strip(),
            item.field("confidence").fraction(),
        )

    def _decision(self, item: Answer, cluster: Sequence[ConsolidationMember]) -> ConsolidationDecision:
        keys = tuple(member.key for member in cluster)
        action = item.field("action").choice(ConsolidationAction)
        if action is ConsolidationAction.SUPERSEDE:
            survivor = item.field("survivor").whole(0, len(cluster) - 1)
            return ConsolidationDecision(action, keys, survivor=keys[survivor])
        if action is ConsolidationAction.MERGE:
            content = item.field("content").text(MAX_ITEM_CHARS).strip()
            return ConsolidationDecision(action, keys, content=content)
        return ConsolidationDecision(action, keys)


def _fact_decision(item: Answer, asked: Mapping[str, Any]) -> FactDecision:
    item.only(["fact", "action", "known", "reason"]).field("fact").whole(asked["fact"], asked["fact"])
    action = item.field("action").choice(LearningAction)
    known = None
    if action in (LearningAction.UPDATE, LearningAction.END):
        known = item.field("known").whole(0, len(asked["known"]) - 1)
    reason = item.optional("reason")
    return FactDecision(action, known, "" if reason is None else reason.text(_REASON_CHARS).strip())


def _kept(cluster: Sequence[ConsolidationMember]) -> ConsolidationDecision:
    return ConsolidationDecision(ConsolidationAction.KEEP, tuple(member.key for member in cluster))


def _member(place: int, member: ConsolidationMember) -> dict[str, Any]:
    # Its key belongs to the caller; the model refers to it by position.
    created = from_us(member.created_us).isoformat(timespec="seconds")
    return {"member": place, "created": created, "content": member.content}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
