"""Similar words found as a store grows are those found at once. # K-119, issue "Search in native memory", item 1"""

from __future__ import annotations

import random

import pytest
from support.configs import config

from caliber.engine.refusals import refusals
from caliber.kernels import Vocabulary
from caliber.llm.local import static
from caliber.llm.local.word_vectors import WordVectors
from caliber.search.ranking.similar import SimilarTerms
from caliber.text.words import Analyzer

TEXT = """
car vehicle truck bicycle ride drive road street house home flat kitchen cook bake bread cake sugar sweet sour cat dog
puppy horse animal doctor nurse hospital ill sick medicine happy glad joy sad angry cry laugh music song sing dance
guitar piano paint picture photo camera travel trip flight plane airport beach sea ocean swim 2023 v2 the of
"""


def test_grown_and_made_at_once_are_alike() -> None:
    analyzer = Analyzer("english")
    vocabulary, vectors = Vocabulary(analyzer), WordVectors(analyzer.language, analyzer.stems)

    def similar() -> SimilarTerms:
        return SimilarTerms(vectors, vocabulary, frozenset({"the", "of"}), least=0.3)

    words = TEXT.split()
    random.Random(7).shuffle(words)
    asked = [analyzer(word).terms[0] for word in ("car", "cook", "doctor", "2023", "the", "zebra", *words[-3:])]
    grown = similar()
    for at in range(0, len(words), 9):
        vocabulary.intern([" ".join(words[at : at + 9]).encode()])
        if at % 2:  # now and then nobody asks
            grown.of(asked)
    found = grown.of(asked)
    at_once = similar().of(asked)
    assert sum(len(terms) for terms, _ in at_once) > len(asked), "nothing is like anything"
    for (terms, near), (expected, how_near) in zip(found, at_once, strict=True):
        assert terms.tolist() == expected.tolist()
        assert near.tobytes() == how_near.tobytes()


def test_a_configuration_whose_similar_words_need_what_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 7: `caliber check` says what would keep every command from opening the store
    real = static.importlib.util.find_spec
    assert refusals(config("store.db")) == []
    monkeypatch.setattr(static, "installed_folder", static.installed_folder.__wrapped__)  # looks anew
    monkeypatch.setattr(
        static.importlib.util, "find_spec", lambda name, *rest: None if name == "wordllama" else real(name, *rest)
    )
    (refused,) = refusals(config("store.db"))
    assert str(refused) == "search.keyword.similar_words needs the extra 'embed': pip install 'caliber-memory[embed]'"
    assert refusals(config("store.db", search__keyword__similar_words="none")) == []


@pytest.mark.parametrize("language", ["english", "german", "none"])
@pytest.mark.parametrize("longest", [9, 5000])
def test_stems_of_many_words_are_those_of_each(language: str, longest: int) -> None:
    analyzer = Analyzer(language)
    words = [*TEXT.lower().split(), "élan", "häuser", "л" * 3, "a" * longest]
    assert analyzer.stems(words) == [analyzer.stem(word) for word in words]
    assert analyzer.stems([]) == []


def test_two_languages_share_no_stems() -> None:
    english, none = Analyzer("english"), Analyzer("none")
    asked = ["danc", "dancing"]
    first = WordVectors(english.language, english.stems).vectors(asked)
    second = WordVectors(none.language, none.stems).vectors(asked)
    again = WordVectors(english.language, english.stems).vectors(asked)
    assert (first == again).all()
    assert not (first == second).all()
