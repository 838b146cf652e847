"""TextRank summarization: the most central sentences of a text, in their order, within a token budget.

PageRank by power iteration over the similarities of sentence embeddings. The same text, model and budget give the
same summary: similarities are rounded before they are used, sums run in a fixed order, ties go to the earlier place.

Source: Mihalcea and Tarau, TextRank (2004); docs/decisions/0014-rules-without-a-language-model.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from caliber.model.errors import InvalidValue, SummarizationFailed
from caliber.model.providers import TokenCounter
from caliber.text.naming import STOP_WORDS
from caliber.text.sentences import Sentence, UnitKind, iter_sentences, prefix_end

_TURN: Final = re.compile(r"(?:\A|\n\n)([^\s:][^:\n]{0,60}): ")
_ROLES: Final = frozenset({"user", "assistant", "system", "tool"})
_WORDS: Final = """
hi hello hey thanks thank welcome good great nice lovely wonderful awesome amazing cool sure alright nope yep yeah
wow haha lol oh ah bye goodbye night morning evening idea ideas sound sounds sounded really glad happy hear see look
looking looks soon sorry course absolutely definitely exactly right true totally interesting fun wait talk catch
later take care luck congrats congratulations enjoy works perfect agree got get today day everything something
anything thing things doing going know think tell say let hope feel well pleasure problem worries same here
"""
_COURTESIES: Final = frozenset(_WORDS.split())
_TALK_WORD: Final = re.compile(r"\w[\w'’]{0,63}")
_FIGURE: Final = re.compile(
    r"\d|\b(?:yesterday|tonight|tomorrow)\b"
    r"|\b(?:last|next|this) (?:week|weekend|month|year|summer|winter|spring|fall|autumn)\b"
)
_NAME: Final = re.compile(r"(?<=[a-zà-ÿ,;’'] )(?!I\b|I['’])[A-ZÀ-Þ][\w’'-]+")
_OUTCOME: Final = re.compile(
    r"\b(?:decided?|agreed|settled|chosen?|chose|picked|booked|bought|ordered|cancel+ed|moved|instead|due|deadline|must"
    r"|(?:we|i)(?:['’]ll| will|['’]m going to)|going with|plan(?:s|ned)? to|allergic|no longer)\b",
    re.IGNORECASE,
)
_FACT: Final = 2.0
"""The weight of a figure or day, a name, or an outcome, beside that of any sentence."""
_ENOUGH: Final = 3
"""Words of content that a sentence without figure, name or outcome needs."""
_LONG: Final = 12
"""Characters of a run of letters that holds several words, in scripts without spaces."""


class Utterance(NamedTuple):
    """A sentence of a turn. ``weight``: from 1, the more outcome of the talk the sentence holds."""

    turn: int
    speaker: str
    sentence: Sentence
    weight: float

    @property
    def asks(self) -> bool:
        """True for a question."""
        return self.sentence.text.rstrip("\"'”’)*_ ").endswith(("?", "？"))


def turns_of(text: str) -> list[tuple[str, str]]:
    """Return the turns of a conversation as (speaker, words); none for another text."""
    found = list(_TURN.finditer(text))
    count = Counter(match[1] for match in found)
    known = [match for match in found if match[1] in _ROLES or count[match[1]] > 1]
    if 2 * len(found) < text.count("\n\n"):  # long turns may hold labels of other things
        found = known
    if not known or len(found) < 2 or found[0].start():
        return []
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [(match[1], text[match.end() : end]) for match, end in zip(found, ends, strict=True)]


def utterances(turns: list[tuple[str, str]]) -> Iterator[Utterance]:
    """Yield the sentences with some content: no greetings, thanks or code."""
    speakers = frozenset(speaker for speaker, _ in turns)
    for number, (speaker, words) in enumerate(turns):
        for sentence in iter_sentences(words):
            if sentence.kind in (UnitKind.PROSE, UnitKind.ITEM) and (weight := _talk_weight(sentence.text, speakers)):
                yield Utterance(number, speaker, sentence, weight)


def _talk_weight(text: str, speakers: frozenset[str]) -> float:
    """Return the weight of a sentence: 0 without content; decisions, figures, days and names of others count most."""
    if not speakers.isdisjoint(_TALK_WORD.findall(text)):
        text = _TALK_WORD.sub(lambda word: "" if word[0] in speakers else word[0], text)
    words = [word.casefold().replace("’", "'") for word in _TALK_WORD.findall(text)]
    words = [word for word in words if word not in STOP_WORDS and word.partition("'")[0] not in _COURTESIES]
    facts = bool(_FIGURE.search(text)) + bool(_NAME.search(text)) + bool(_OUTCOME.search(text))
    if not words or not (facts or len(words) >= _ENOUGH or max(map(len, words)) > _LONG):
        return 0.0
    return 1.0 + _FACT * facts


Unit = TypeVar("Unit")

# These constants are part of the extractive model, as weights are of a trained one.
_DAMPING = 0.85
_TOLERANCE = 1e-7
_MAX_ITERATIONS = 100
_SIMILARITY_DECIMALS = 6
_REDUNDANT = 0.9
# A sentence of less than half the even share is aside from the matter; a summary need not fill its budget.
_CENTRAL = 0.5
_MAX_WORDS_COUNTED = 25

# Bounds on the work for a text of any size: a longer text is read in this many evenly spaced pieces, and of more
# sentences one of each piece is ranked.
MAX_CHARS_READ = 2_000_000
STRETCHES = 64
MAX_SENTENCES = 600
_MAX_CHARS_EMBEDDED = 1_000

_WORD = re.compile(r"\w{1,64}")
_MORE = "…"


class Embedder(Protocol):
    """A model that compares sentences."""

    def embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a row per text. Shapes: f32[len(texts), dimensions]."""
        ...


def summarize(text: str, max_tokens: int, count_tokens: TokenCounter, embedder: Embedder) -> str:
    """Return at most ``max_tokens`` of the text's own sentences; a text that fits comes back whole.

    Code blocks, tables and headings are left out where there is prose. Of a conversation enter the sentences
    with decisions, figures and names first, each with its speaker, and a question with its answer; courtesies give "".

    Raises: InvalidValue unless ``max_tokens`` >= 1; SummarizationFailed for an empty text or a budget of no character.
    """
    if max_tokens < 1:
        raise InvalidValue(field="max_tokens", reason="must be at least 1")
    if not text or text.isspace():
        raise SummarizationFailed(reason="empty text")
    turns = turns_of("".join(stretches(text)))
    said = list(utterances(turns))
    if turns and not said:
        return ""
    if count_tokens(text) <= max_tokens:
        return text.strip()
    if turns:
        return _of_talk(said, max_tokens, count_tokens, embedder)
    sentences = _candidates(text)
    scores, similar = _rank(sentences, embedder)
    order = sorted(range(len(sentences)), key=lambda index: (-scores[index], index))
    central = [index for index in order if scores[index] * len(sentences) >= _CENTRAL]
    chosen = _fill([_rendered(sentence) for sentence in sentences], central, similar, max_tokens, count_tokens)
    while chosen:
        summary = _joined([sentences[index] for index in sorted(chosen)])
        if count_tokens(summary) <= max_tokens:
            return summary
        chosen.pop()
    return _cut(_rendered(sentences[order[0]]), max_tokens, count_tokens)


def _of_talk(said: list[Utterance], max_tokens: int, count_tokens: TokenCounter, embedder: Embedder) -> str:
    """Return the weightiest sentences of a conversation with their speakers, in order."""
    said = _sampled(
        list({_rendered(each.sentence): each for each in reversed(said)}.values())[::-1],
        lambda one: one.weight * _weight(one.sentence),
    )
    scores, similar = _rank([each.sentence for each in said], embedder)
    order = sorted(range(len(said)), key=lambda at: (-said[at].weight, -scores[at], at))
    chosen: set[int] = set()
    for at in order:
        new = {at}
        if said[at].asks:  # a question without its answer tells nothing of what came of it
            new |= {next((each for each in order if _answers(said[each], said[at])), at)}
        alike = any(similar[at, other] > _REDUNDANT for other in chosen)
        if (len(new) > said[at].asks and not alike) and count_tokens(_talked(said, chosen | new)) <= max_tokens:
            chosen |= new
    if chosen:
        return _talked(said, chosen)
    best = next((at for at in order if not said[at].asks), order[0])
    return _cut(_talked(said, {best}), max_tokens, count_tokens)


def _answers(one: Utterance, question: Utterance) -> bool:
    return one.turn == question.turn + 1 and one.speaker != question.speaker and not one.asks


def _talked(said: Sequence[Utterance], chosen: Collection[int]) -> str:
    """Return sentences of a conversation, a line for each turn."""
    lines: dict[int, str] = {}
    for at in sorted(chosen):
        turn, text = said[at].turn, _rendered(said[at].sentence)
        lines[turn] = f"{lines[turn]} {text}" if turn in lines else f"{said[at].speaker}: {text}"
    return "\n".join(lines.values())


def page_rank(similar: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the stationary probabilities of a walk over a weighted graph.

    Shapes: similar f64[n, n], not negative, zero on its diagonal; prior f64[n], positive; result f64[n], sum 1.
    """
    prior = prior / prior.sum()
    out = similar.sum(axis=1)
    lonely = out == 0.0
    # Row i holds the transition probabilities from i. A sentence that resembles no other goes anywhere.
    chances = similar / np.where(lonely, 1.0, out)[:, None]
    rank = prior.copy()
    for _ in range(_MAX_ITERATIONS):
        # Products and a sum over the first axis, not a BLAS call: the order of additions is then always the same.
        flow = (chances * rank[:, None]).sum(axis=0) + rank[lonely].sum() * prior
        following = (1.0 - _DAMPING) * prior + _DAMPING * flow
        change = float(np.abs(following - rank).sum())
        rank = following
        if change < _TOLERANCE:
            break
    return rank


def _candidates(text: str) -> list[Sentence]:
    units = [unit for stretch in stretches(text) for unit in iter_sentences(stretch)]
    spoken = [unit for unit in units if _WORD.search(unit.text)] or units
    for kinds in (
        {UnitKind.PROSE, UnitKind.ITEM},
        {UnitKind.TABLE, UnitKind.HEADING, UnitKind.CODE},
    ):
        first: dict[str, Sentence] = {}
        for unit in spoken:
            if unit.kind in kinds:
                # A verbatim repetition would only vote for itself.
                first.setdefault(" ".join(unit.text.split()), unit)
        unique = list(first.values())
        if unique:
            break
    return _sampled(unique, _weight)


def _sampled(units: list[Unit], weight: Callable[[Unit], float]) -> list[Unit]:
    """Return at most ``MAX_SENTENCES``, the weightiest of each stretch."""
    count = len(units)
    if count <= MAX_SENTENCES:
        return units
    bounds = [stratum * count // MAX_SENTENCES for stratum in range(MAX_SENTENCES + 1)]
    # ``max`` keeps the first of equals.
    return [max(units[low:high], key=weight) for low, high in pairwise(bounds)]


def stretches(text: str) -> list[str]:
    if len(text) <= MAX_CHARS_READ:
        return [text]
    size = MAX_CHARS_READ // STRETCHES
    out = []
    for index in range(STRETCHES):
        start = index * (len(text) - size) // (STRETCHES - 1)
        if start:
            # Begin after a line, or at least after a word.
            for mark in ("\n", " "):
                found = text.find(mark, start, start + size // 4)
                if found >= 0:
                    start = found + 1
                    break
        out.append(text[start : start + size])
    return out


def _weight(sentence: Sentence) -> float:
    words = {word.casefold() for word in _WORD.findall(sentence.text[:_MAX_CHARS_EMBEDDED])}
    return 1.0 + min(len(words), _MAX_WORDS_COUNTED)


def _rank(sentences: Sequence[Sentence], embedder: Embedder) -> tuple[list[float], NDArray[np.float64]]:
    vectors = embedder.embed_batch([sentence.text[:_MAX_CHARS_EMBEDDED] for sentence in sentences]).astype(np.float64)
    norms = np.sqrt((vectors * vectors).sum(axis=1))
    vectors /= np.where(norms == 0.0, 1.0, norms)[:, None]
    # Products may differ in their last bits from one machine to the next; rounded, they do not.
    similar = np.round(vectors @ vectors.T, _SIMILARITY_DECIMALS)
    edges = similar.copy()
    np.fill_diagonal(edges, 0.0)
    count = len(sentences)
    if count > 1:
        # Dense embeddings make all sentences slightly similar: only the excess over the mean counts.
        edges = np.maximum(edges - edges.sum(axis=0).sum() / (count * (count - 1)), 0.0)
        np.fill_diagonal(edges, 0.0)
    prior = np.log1p(np.array([_weight(sentence) for sentence in sentences]))
    return [round(float(score), 12) for score in page_rank(edges, prior)], similar


def _fill(
    texts: Sequence[str],
    order: Sequence[int],
    similar: NDArray[np.float64],
    max_tokens: int,
    count_tokens: TokenCounter,
) -> list[int]:
    """Return the sentences that fit, best first, none of them nearly a repetition of another."""
    chosen: list[int] = []
    remaining = max_tokens
    separator = count_tokens("\n")
    for index in order:
        if remaining < 1:
            break
        if any(similar[index, other] > _REDUNDANT for other in chosen):
            continue
        cost = count_tokens(texts[index]) + (separator if chosen else 0)
        if cost <= remaining:
            chosen.append(index)
            remaining -= cost
    return chosen


def _rendered(sentence: Sentence) -> str:
    return sentence.text if sentence.kind is UnitKind.CODE else " ".join(sentence.text.split())


def _joined(sentences: Sequence[Sentence]) -> str:
    out: list[str] = []
    before: Sentence | None = None
    for sentence in sentences:
        if before is not None:
            flowing = before.kind is sentence.kind is UnitKind.PROSE and before.paragraph == sentence.paragraph
            out.append(" " if flowing else "\n")
        out.append(_rendered(sentence))
        before = sentence
    return "".join(out)


def _cut(text: str, max_tokens: int, count_tokens: TokenCounter) -> str:
    """Return the beginning of the text, marked as cut where there is room for the mark."""
    per_token = len(text) / max(1, count_tokens(text))
    for mark in (_MORE, ""):
        room = max_tokens - count_tokens(mark)
        if room < 1:
            continue
        try:
            cut = text[: prefix_end(text, 0, room, count_tokens, per_token)].rstrip() + mark
        except InvalidValue:
            continue
        if count_tokens(cut) <= max_tokens:
            return cut
    raise SummarizationFailed(reason=f"max_tokens = {max_tokens} cannot hold a single character")
