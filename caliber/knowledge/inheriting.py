"""Inherited trust: a summary, artifact or note gets the label of its least trusted source, or of its quotations.

A provider that quotes names the words it took; the output of any other may depend on every line that it read.

Source: design section 10; docs/decisions/0156-trust-labels.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from caliber.llm.protocols import SummarizationProvider
from caliber.model.providers import ExtractedArtifact, GeneratedNote, TrajectoryDigest
from caliber.model.trajectory import Artifact, Turn
from caliber.model.trust import TrustLabel, least_trusted
from caliber.text.sentences import UnitKind, split_sentences
from caliber.text.statements import wordings


class Source(NamedTuple):
    """A source text and its trust label."""

    text: str
    trust: TrustLabel


class Quoted:
    """The statements of a source: whole sentences, since a part of one can mean the opposite."""

    def __init__(self, source: Source) -> None:
        self.trust = source.trust
        self._wordings = {" ".join(source.text.split())}
        for sentence in split_sentences(source.text):
            self._wordings.update(wordings(sentence.text))
            if sentence.kind is UnitKind.CODE:
                self._wordings.add(" ".join(" ".join(sentence.text.splitlines()[1:-1]).split()))

    def says(self, sentence: str) -> bool:
        """Return whether a sentence of it is this one."""
        return sentence in self._wordings


class NoteSources:
    """The sources of a trajectory's notes."""

    def __init__(
        self,
        digest: TrajectoryDigest,
        summaries: Iterable[Source],
        artifacts: Iterable[Artifact],
        unlabelled: TrustLabel,
    ) -> None:
        # A goal or an outcome has no label: callers write them, as they write notes.
        told = [Source(text, unlabelled) for text in (digest.goal, digest.summary) if text]
        self._goal = digest.goal
        self._unlabelled = unlabelled
        self._all = [*summaries, *(Source(artifact.text, artifact.trust) for artifact in artifacts), *told]
        self._quoted: list[Quoted] | None = None

    def trust_of(self, note: GeneratedNote, provider: SummarizationProvider) -> TrustLabel:
        """Return the label of a note that a provider drew from these sources."""
        least = trust_of_all((source.trust for source in self._all), self._unlabelled)
        if not quotes(provider):
            return least
        if self._quoted is None:
            self._quoted = [Quoted(source) for source in self._all]
        quoted = trust_of_quotes(note.content, self._quoted)
        if quoted is None:
            return least
        # Statements without a note's subject are filed under the goal.
        content = note.content.casefold()
        is_named = self._goal is None or all(word in content for word in note.entity.casefold().split())
        return quoted if is_named else least_trusted(quoted, self._unlabelled)


def quotes(provider: SummarizationProvider) -> bool:
    """Return whether a provider only quotes: then its answers are contained in the source they name."""
    return getattr(provider, "quotes", False) is True


def trust_of_all(labels: Iterable[TrustLabel], otherwise: TrustLabel) -> TrustLabel:
    """Return the least trusted label of all, ``otherwise`` of none."""
    found = list(labels)
    return least_trusted(*found) if found else otherwise


def trust_of_quotes(text: str, sources: Sequence[Quoted]) -> TrustLabel | None:
    """Return the label of a text whose every sentence is one of a source; None when one is not.

    A sentence of several sources has the label of the most trusted of them, which contains it.
    """
    whole = _best(" ".join(text.split()), sources)
    if whole is not None:
        return whole
    found: TrustLabel | None = None
    # A text merged from several sources has one line for each, of whole sentences.
    for line in text.splitlines():
        for sentence in split_sentences(line):
            best = _best(" ".join(sentence.text.split()), sources)
            if best is None:
                return None
            found = best if found is None else least_trusted(found, best)
    return found


def _best(sentence: str, sources: Sequence[Quoted]) -> TrustLabel | None:
    """Return the most trusted label of the sources that contain a sentence."""
    having = [source.trust for source in sources if sentence and source.says(sentence)]
    return min(having, key=lambda label: label.distrust, default=None)


def trust_of_extracted(
    item: ExtractedArtifact, turns: Sequence[Turn], provider: SummarizationProvider
) -> TrustLabel | None:
    """Return the label of something extracted from turns; None where it has that of its source turn."""
    if quotes(provider) and any(turn.turn_number == item.source_turn for turn in turns):
        return None
    return trust_of_all((turn.trust for turn in turns), TrustLabel.WEB)
