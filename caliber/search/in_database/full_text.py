"""Term extraction for the database's full-text index: the words and parts under which a record is indexed.

Source: K-171, P-039; docs/decisions/0081.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Sequence
from typing import Final

from caliber.kernels import Vocabulary
from caliber.resident.documents import said_by
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row
from caliber.storage.sql.full_text import PART_MARK, TextEntry
from caliber.text.words import Analyzer, languages

RULES: Final = 2
"""Version of the term rules; increase it with every change: an index made by other rules must be rebuilt."""

_WORDS_KEPT: Final = 200_000
"""Size of the cache of words and their terms."""


def indexer_name(language: str) -> str:
    """Return the name of the rules that words of a language are analysed by."""
    return f"{language}/{RULES}"


def indexer_of(name: str) -> WordIndexer | None:
    """Return the indexer of a name; None for rules that this version does not have."""
    language, _, rules = name.partition("/")
    return WordIndexer(language) if rules == str(RULES) and language in languages() else None


class WordIndexer:
    """Makes index entries of records in one language. Safe to share between threads.

    Raises:  InvalidValue for an unknown language
    """

    def __init__(self, language: str) -> None:
        self.name = indexer_name(language)
        self._analyzer = Analyzer(language)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._vocabulary = Vocabulary(self._analyzer)
        self._tokens: list[tuple[str, int, tuple[str, ...]]] = []  # a word: its terms, how many, its other parts

    def digest(self, relation: Relation, row: Row) -> bytes | None:
        """Return the digest of a row's text; None for a scope without a summary."""
        text = said_by(relation, row)
        return None if text is None else hashlib.blake2b(text, digest_size=8).digest()

    def entries(self, relation: Relation, rows: Sequence[Row]) -> list[TextEntry | None]:
        """Return the entry of each row; None for a scope without a summary."""
        documents = [said_by(relation, row) for row in rows]
        with self._lock:
            if len(self._tokens) > _WORDS_KEPT:
                self._forget()
            words, offsets = self._vocabulary.intern([document or b"" for document in documents])
            self._learn()
            spans = [words[start:end].tolist() for start, end in itertools.pairwise(offsets.tolist())]
            return [
                None if document is None else self._entry(document, span)
                for document, span in zip(documents, spans, strict=True)
            ]

    def _entry(self, document: bytes, words: Sequence[int]) -> TextEntry:
        known = [self._tokens[word] for word in words]
        spelling = dict.fromkeys(part for _, _, parts in known for part in parts)
        tokens = " ".join([terms for terms, _, _ in known if terms] + list(spelling))
        digest = hashlib.blake2b(document, digest_size=8).digest()
        return TextEntry(tokens, sum(count for _, count, _ in known), digest)

    def _learn(self) -> None:
        """Take over the words that the vocabulary has met since: those alone, as each write comes by here."""
        vocabulary = self._vocabulary
        term_starts, term_ids = vocabulary.term_starts.array, vocabulary.term_ids.array
        part_starts, part_ids = vocabulary.part_starts.array, vocabulary.part_ids.array
        for word in range(len(self._tokens), len(vocabulary)):
            term_span = slice(int(term_starts[word]), int(term_starts[word + 1]))
            part_span = slice(int(part_starts[word]), int(part_starts[word + 1]))
            terms_of_word = [vocabulary.term_texts(at, at + 1)[0] for at in term_ids[term_span].tolist()]
            spelling = [vocabulary.part_texts(at, at + 1)[0] for at in part_ids[part_span].tolist()]
            others = tuple(f"{PART_MARK}{part}" for part in dict.fromkeys(spelling) if part not in terms_of_word)
            self._tokens.append((" ".join(terms_of_word), len(terms_of_word), others))
