"""Words that are written in more than one way: names spelt like stop words, letters and digits of other scripts.

Source: issue "A window that one would put into a prompt", point 4.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.databases("one")


@pytest.fixture
def words(backend: Any, start: Any) -> Any:
    """An agent whose store is searched by words alone."""
    weights = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}
    return start(backend.open(backend.config(embedding_provider=None, search__weights=weights)))


def contents(memory: Any, query: str) -> list[str]:
    return [hit.content for hit in memory.search(query).hits]


@pytest.mark.parametrize(("query", "note"), [
    ("Where does Will live?", "Will lives in Leeds"),
    ("Who is Will?", "Will lives in Leeds"),
    ("Tell me about Will, please", "Will lives in Leeds"),
    ("will", None),
    ("Will", "Will lives in Leeds"),
    ("Is Will's flat in Leeds?", "Will lives in Leeds"),
    ("The Who", "We saw The Who in concert"),
    ("IT", "Bob moved to the IT department"),
    ("who is in IT?", "Bob moved to the IT department"),
    ("what is it", None),
    ("What is it? It is all of them", None),
    ("WHAT IS IT", None),
    ("it", None),
    ("I am not", None),
    ("I'll do so", None),
])  # fmt: skip
def test_names_spelt_like_stop_words_are_found(words: Any, query: str, note: str | None) -> None:
    notes = ("Will lives in Leeds", "We saw The Who in concert", "Bob moved to the IT department", "Tea keeps me awake")
    for each in notes:
        words.note(each)
    assert contents(words.memory, query)[:1] == ([] if note is None else [note])


def test_a_name_is_a_word_beside_others(words: Any) -> None:
    words.note("the leak is mended")
    analysis = words.memory.search("Did Will mend the leak?").analysis
    assert (analysis.words, analysis.stop_words) == (("will", "mend", "leak"), ("did", "the"))


@pytest.mark.parametrize(("note", "queries"), [
    ("İstanbul çok güzel", ["istanbul", "İstanbul", "ISTANBUL", '"istanbul"', "istan*"]),
    ("ısparta is far", ["isparta", "ISPARTA"]),
    ("a train to Łódź", ["lodz", "łódź", "ŁÓDŹ"]),
    ("room १२ of ٤٥", ["12", "१२", "45", "٤٥"]),
    ("smørrebrød for lunch", ["smorrebrod", "Smørrebrød"]),
    ("we passed🎉🎉 today", ["🎉", "🎉🎉", "passed", "so 🎉!"]),
    ("good 👍🏽", ["👍", "👍🏽"]),
    ("sunny ☀️ in 🇵🇪", ["☀", "☀️", "🇵🇪"]),
    ("from 東京🗼", ["🗼", "東京", "東京🗼"]),
])  # fmt: skip
def test_letters_and_digits_are_found_as_they_are_typed_elsewhere(words: Any, note: str, queries: list[str]) -> None:
    words.note(note)
    words.note("apples and pears ❤️ 👩‍💻 🇹🇷")
    assert [query for query in queries if contents(words.memory, query) != [note]] == []
