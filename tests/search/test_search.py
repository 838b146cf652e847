"""Search end to end, over a real store: bad input, what questions are understood as, and what is found through changes.

Source: issue "Search in native memory".
"""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from support.drawn import needs
from support.inspection import inspect
from support.providers import CountingEmbeddings, outage

from caliber.model import Edge, EdgeRelation, EntityRef, EntityType, ResultStatus
from caliber.model.errors import CaliberError, InputError, InvalidValue
from caliber.search.ranking.graph import DECAY
from caliber.search.searcher import QUERY_WORDS_MAX

pytestmark = pytest.mark.databases("one")

MARCH, MAY, JULY = (datetime(2023, month, 8, 12, tzinfo=UTC) for month in (3, 5, 7))


@pytest.fixture
def words(backend: Any, start: Any) -> Any:
    """An agent whose store is searched by words alone."""
    return start(backend.open(backend.config(embedding_provider=None, search__weights=WORDS)))


WORDS = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}


def contents(memory: Any, query: str, **options: Any) -> list[str]:
    return [hit.content for hit in memory.search(query, **options).hits]


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["", "   \n\t"])
def test_empty_query_asks_for_what_is_recent_and_important(words: Any, empty: str) -> None:
    # issue, Bad input; M-043
    words.note("slight", importance=1)
    words.note("grave", importance=10)
    words.note("middling", importance=5)
    result = words.memory.search(empty, kinds=["note"])
    assert [hit.content for hit in result.hits] == ["grave", "middling", "slight"]
    assert result.analysis.words == ()
    assert set(result.hits[0].breakdown) == {"recency", "importance"}


def test_query_of_a_megabyte_is_cut_and_says_so(words: Any) -> None:
    # issue, Bad input
    words.note("the backup moved to the vault")
    result = words.memory.search("backup " + " ".join(f"w{at}" for at in range(150_000)))
    assert result.analysis.cut
    assert len(result.analysis.words) <= QUERY_WORDS_MAX
    assert [hit.content for hit in result.hits] == ["the backup moved to the vault"]
    assert not words.memory.search("backup").analysis.cut
    assert words.memory.search("x" * 1_000_000).hits == ()
    # Days, too, are looked for only where words are.
    assert words.memory.search("backup " + "x " * 500_000 + "on 3 May 2023").analysis.days is None


def test_query_of_only_stop_words_looks_for_them(words: Any) -> None:
    # issue, Bad input
    words.note("to be or not to be")
    words.note("apples and pears")
    result = words.memory.search("to be or not")
    assert [hit.content for hit in result.hits] == ["to be or not to be"]
    assert result.analysis.stop_words == ()
    other = words.memory.search("where are the apples")
    assert (other.analysis.words, other.analysis.stop_words) == (("appl",), ("where", "are", "the"))


@pytest.mark.parametrize("signs", ["*", '""', "???", "'", "\x00", "- ( ) AND:", '"*"', "\u200b"])
def test_query_without_a_word_finds_nothing(words: Any, signs: str) -> None:
    words.note("apples and pears")
    result = words.memory.search(signs)
    assert (result.status, result.hits) == (ResultStatus.EMPTY, ()) or "and" in result.analysis.words


@pytest.mark.parametrize(("options", "says"), [
    ({"limit": 0}, "limit"),
    ({"limit": 1000}, "999"),
    ({"kinds": ["poem"]}, "note, artifact, turn, scope"),
    ({"filter": {"colour": "red"}}, "colour"),
    ({"kinds": ["note"], "filter": {"role": "user"}}, "role"),
    ({"kinds": [["note"]]}, "note, artifact, turn, scope"),
    ({"filter": {"note_type": [["fact"]]}}, "must be one of"),
    ({"filter": {"entity": 2023}}, "filter.entity: must be text"),
    ({"filter": {"entity": [["thing"]]}}, "filter.entity: must be text"),
    ({"filter": {"trajectory_id": 5}}, "filter.trajectory_id: must be an id"),
    ({"filter": {"trajectory_id": b"0123456789abcdef"}}, "filter.trajectory_id: must be an id"),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused_and_says_what_can(words: Any, options: dict[str, Any], says: str) -> None:
    # issue, Bad input
    words.note("x")
    with pytest.raises(InvalidValue, match=says) as caught:
        words.memory.search("x", **options)
    assert isinstance(caught.value, InputError)


def test_contradictory_filters_are_empty_and_no_error(words: Any) -> None:
    # issue, Bad input
    words.note("a fact", note_type="fact", entity="sky")
    assert contents(words.memory, "fact", filter={"note_type": "fact", "entity": "sky"}) == ["a fact"]
    for given in (
        {"note_type": "gotcha", "entity": "sky"},
        {"note_type": []},
        {"entity": "nobody"},
        {"note_type": "fact", "role": "user"},
    ):
        result = words.memory.search("fact", filter=given)
        assert (result.status, result.hits) == (ResultStatus.EMPTY, ()), given


def test_unknown_language_is_refused_and_says_which_there_are(backend: Any) -> None:
    # issue, Bad input
    with pytest.raises(CaliberError, match=r"search\.keyword\.language(?s:.*)swedish"):
        backend.config(search__keyword__language="klingon")


def test_what_happened_twice_is_kept_and_found_twice(words: Any) -> None:
    """A statement is kept once: about the same thing, and the same time."""
    one, two = (words.note("went swimming in the lake", occurred_at=month) for month in (MAY, JULY))
    assert one.note_id != two.note_id
    assert words.note("went swimming in the lake", occurred_at=MAY).note_id == one.note_id
    for query, found in (("I went swimming in July 2023", [two, one]), ("swimming in July 2023", [two])):
        hits = words.memory.search(query, kinds=["note"]).hits
        assert [hit.id for hit in hits] == [note.note_id for note in found], query


def test_weights_on_vectors_without_a_provider_are_refused_at_once(backend: Any) -> None:
    # M-042: such a store would be degraded for ever, so it is not opened
    weights = {"vector": 0.4, "keyword": 0.3, "graph": 0.2, "importance": 0.1}
    with pytest.raises(CaliberError, match=r"search\.weights\.vector"):
        backend.config(embedding_provider=None, search__weights=weights)


def test_outage_of_the_provider_is_degraded_and_words_still_find(backend: Any, start: Any) -> None:
    # M-040
    provider = CountingEmbeddings()
    agent = start(backend.open(embedding_provider=provider))
    agent.note("the backup moved")
    agent.memory.flush()
    assert agent.memory.search("where is the backup").status == ResultStatus.OK
    provider.failure = outage
    nothing = agent.memory.search("zebra")
    assert (nothing.status, nothing.hits) == (ResultStatus.DEGRADED, ()), "an outage is never an empty list"
    result = agent.memory.search("which backup")
    assert result.analysis.weights["vector"] == 0
    assert math.isclose(sum(result.analysis.weights.values()), 1)
    assert result.status == ResultStatus.DEGRADED
    assert result.reason == "query_not_embedded: request_failed"
    assert [hit.content for hit in result.hits] == ["the backup moved"]
    assert [hit.found_by for hit in result.hits] == [("keyword",)]


# --- texts of every kind --------------------------------------------------------------------------


def test_binary_and_nul_content_harms_nothing(words: Any) -> None:
    words.say(b"\x00\xff\xfe\x80 zebra \xc3")
    words.say("left\x00right")
    words.say(bytes(range(256)))
    words.say(b"")
    hit = words.memory.search("zebra").hits[0]
    assert (hit.kind, "zebra" in hit.content, hit.found_by) == ("turn", True, ("keyword",))
    assert contents(words.memory, "right")[0] == "left\x00right"
    assert contents(words.memory, "left")[0] == "left\x00right"


def test_turn_of_a_megabyte_is_indexed_to_its_end(words: Any) -> None:
    # P-039: the whole text, never a preview
    words.say("filler words " * 80_000 + "quokka")
    words.say("something short")
    hit = words.memory.search("quokka").hits[0]
    assert hit.content.endswith("quokka")
    assert hit.snippet.endswith("quokka")
    assert len(hit.snippet) < 200


@pytest.mark.parametrize(("text", "query"), [
    ("我们把备份移到东京", "备份"),
    ("東京タワーに行きました", "東京"),
    ("서울에서 회의", "회의"),
    ("Привет, мир", "МИР"),
    ("café crème", "cafe"),
    ("Straße gesperrt", "STRASSE"),
    ("ﬁnal report", "final"),  # a ligature
])  # fmt: skip
def test_texts_of_other_scripts_are_found(words: Any, text: str, query: str) -> None:
    words.note(text)
    words.note("nothing of the kind")
    assert contents(words.memory, query) == [text]


@pytest.mark.parametrize(("query", "finds"), [
    ("backup_host", {"set backup_host first", "the BackupHost class", "our backup is a host"}),
    ("BackupHost", {"set backup_host first", "the BackupHost class", "our backup is a host"}),
    ("jobs/backup.py", {"run jobs/backup.py"}),
    ("host", {"set backup_host first", "the BackupHost class", "our backup is a host"}),
    ("jobs", {"run jobs/backup.py"}),
])  # fmt: skip
def test_identifiers_are_found_whole_and_by_their_parts(words: Any, query: str, finds: set[str]) -> None:
    for text in ("set backup_host first", "the BackupHost class", "our backup is a host", "run jobs/backup.py"):
        words.note(text)
    found = contents(words.memory, query, kinds=["note"])
    assert finds <= set(found)
    if query != "host":
        exact = {"backup_host": {"set backup_host first", "the BackupHost class"}}
        exact["BackupHost"] = exact["backup_host"]
        assert found[0] in exact.get(query, finds)


def test_quoted_phrase_as_it_stands_comes_first(words: Any) -> None:
    # issue: exact-match boost for quoted terms
    words.note("blue sky and blue sky and more of sky blue blue")
    words.note("a long text that says somewhere that there is a sky blue enough for all of us to see")
    words.note("blue blue blue, said the sky")
    result = words.memory.search('"sky blue enough"')
    assert result.analysis.phrases == ("sky blue enough",)
    assert result.hits[0].content.startswith("a long text")
    assert [("exact" in hit.breakdown) for hit in result.hits] == [True, False, False]
    assert words.memory.search("sky blue enough").analysis.phrases == ()


def test_beginning_of_words_finds_them_all(words: Any) -> None:
    for text in ("backups failed", "backlog grows", "the front door"):
        words.note(text)
    result = words.memory.search("back*")
    assert result.analysis.prefixes == ("back",)
    assert {hit.content for hit in result.hits} == {"backups failed", "backlog grows"}
    assert words.memory.search("qux*").hits == ()


def test_who_is_named_moves_up(words: Any) -> None:
    for speaker in ("Ines", "Omar", "Bo"):
        words.say("the lake was cold", name=speaker)
    result = words.memory.search("was Omar's lake cold?")
    assert result.analysis.names == ("omar",)
    assert "mentioned" in result.hits[0].breakdown
    assert [("mentioned" in hit.breakdown) for hit in result.hits] == [True, False, False]
    both = words.memory.search("did Omar and Ines see the cold lake?")
    assert set(both.analysis.names) == {"omar", "ines"}
    assert not any("mentioned" in hit.breakdown for hit in both.hits), "two are named: nobody is meant"


def test_days_named_move_up_what_is_of_them(words: Any) -> None:
    for month in (MARCH, MAY, JULY):
        words.note(f"the lake was cold, {month.day + month.month}", occurred_at=month)
        words.note(f"swimming, {month:%B}", occurred_at=month)
    result = words.memory.search("was the lake cold in May 2023", kinds=["note"])
    assert result.analysis.days is not None
    assert [day.isoformat() for day in result.analysis.days] == ["2023-05-01", "2023-05-31"]
    assert "may" not in result.analysis.words
    assert words.memory.get(result.hits[0].id).occurred_at == MAY
    only = contents(words.memory, "in May 2023", kinds=["note"])
    assert set(only) == {"the lake was cold, 13", "swimming, May"}


def test_note_valid_in_march_answers_a_question_about_march(words: Any) -> None:
    # issue, 4
    words.note(
        "the server is in Oslo",
        valid_from=datetime(2023, 3, 1, tzinfo=UTC),
        valid_until=datetime(2023, 4, 1, tzinfo=UTC),
    )
    words.note("the server is in Rome", valid_from=datetime(2023, 4, 1, tzinfo=UTC))
    assert contents(words.memory, "server", as_of=MARCH) == ["the server is in Oslo"]
    assert contents(words.memory, "server", as_of=MAY) == ["the server is in Rome"]
    assert contents(words.memory, "server") == ["the server is in Rome"]
    assert contents(words.memory, "server", as_of=datetime(2023, 1, 1, tzinfo=UTC)) == []
    assert contents(words.memory, "", kinds=["note"], as_of=MARCH) == ["the server is in Oslo"]


# --- through changes ------------------------------------------------------------------------------


def told(hits: Any) -> list[tuple[uuid.UUID, str, float, dict[str, float]]]:
    return [(hit.id, hit.content, hit.score, hit.breakdown) for hit in hits]


def test_search_follows_update_archive_and_compaction(words: Any) -> None:
    memory = words.memory
    kept = [words.note(f"walrus number {at} of the bay") for at in range(30)]
    assert len(contents(memory, "walrus", limit=50)) == 30
    notes = memory.storage.notes
    for note in kept[:10]:
        notes.update(note.note_id, content=f"an otter now, {note.note_id}")
    for note in kept[10:20]:
        notes.delete(note.note_id)
    assert len(contents(memory, "otter", limit=50)) == 10
    before = memory.search("walrus bay", limit=50).hits
    assert {hit.id for hit in before} == {note.note_id for note in kept[20:]}
    inspect(memory).resident.compact()
    assert told(memory.search("walrus bay", limit=50).hits) == told(before)
    assert len(contents(memory, "otter", limit=50)) == 10
    words.note("one walrus more")
    assert len(contents(memory, "walrus", limit=50)) == 11


@needs("reopen")
def test_search_after_reopening_gives_the_same_hits(backend: Any, start: Any) -> None:
    # issue, Done when: keyword and vector state rebuild to the same answers
    agent = start(backend.open())
    for at in range(25):
        agent.note(f"note {at % 7} about lakes and {'boats' if at % 2 else 'rivers'} {at}")
        agent.say(f"turn {at} of lakes{'?' if at % 3 else ''}", name="Ines")
        agent.keep(f"artifact {at} rivers")
    agent.memory.flush()
    queries = ("lakes and boats", "Ines", "riv*", '"note 3"', "turn_7 rivers")
    before = [told(agent.memory.search(query, limit=30).hits) for query in queries]
    assert all(before)
    agent.memory.close()
    again = backend.open()
    assert [told(again.search(query, limit=30).hits) for query in queries] == before


def test_no_sql_for_any_form_of_query_on_a_warm_store(backend: Any, start: Any) -> None:
    # issue, Done when: zero SQL
    agent = start(backend.open())
    for at in range(20):
        agent.note(f"note {at} about lakes")
        agent.say(f"turn {at} of lakes", name="Ines")
    memory, store = agent.memory, inspect(agent.memory).store
    memory.flush()
    before = store.statement_count()
    for query in ("lakes", '"about lakes"', "lak*", "Ines in May 2023", "", "when did backup_host move?"):
        memory.search(query)
        memory.search(query, kinds=["note"], filter={"entity": "thing"}, as_of=JULY)
    assert store.statement_count() - before == 0


@pytest.mark.parametrize("fusion", ["weighted", "rrf"])
@pytest.mark.parametrize("normalisation", ["peak", "saturation"])
def test_breakdown_adds_up_to_the_score(backend: Any, start: Any, normalisation: str, fusion: str) -> None:
    # B "every hit: score breakdown, which leg found it"
    agent = start(backend.open(search__normalisation=normalisation, search__fusion=fusion))
    for at in range(20):
        agent.note(f"note {at} about lakes in May" + "?" * (at % 2), entity="Bo", occurred_at=MAY if at % 3 else MARCH)
        agent.say(f"turn {at} of lakes", name="Ines" if at % 2 else "Omar")
    agent.memory.flush()
    for query in ("lakes", "when was Ines at the lakes", '"about lakes" in May 2023', "lak* 7"):
        hits = agent.memory.search(query, limit=40).hits
        assert hits
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            assert 0 < hit.score <= 1 + 1e-6
            assert hit.found_by
            assert math.isclose(max(sum(hit.breakdown.values()), 1e-6), hit.score, rel_tol=1e-5), hit.breakdown


# --- links ----------------------------------------------------------------------------------------


def link(memory: Any, source: Any, target: Any, weight: float = 1.0) -> Edge:
    edge = Edge(
        uuid.uuid4(),
        EntityRef(EntityType.NOTE, source.note_id),
        EntityRef(EntityType.NOTE, target.note_id),
        EdgeRelation.SUPPORTS,
        weight,
        weight,
        MAY,
    )
    memory.storage.edges.insert(edge)
    return edge


def test_edges_bring_hits_and_count_as_used(words: Any) -> None:
    # M-035, M-038: traversals are counted for later decay
    memory = words.memory
    lake, boat, rope, other = (words.note(text) for text in ("the lake", "a boat", "some rope", "a mast"))
    edges = [link(memory, lake, boat), link(memory, boat, rope)]
    unused = link(memory, other, rope)
    hits = memory.search("lake", limit=3).hits
    assert [(hit.content, hit.found_by) for hit in hits] == [
        ("the lake", ("keyword",)),
        ("a boat", ("graph",)),
        ("some rope", ("graph",)),
    ]
    assert [set(hit.breakdown) for hit in hits[1:]] == [{"graph"}, {"graph"}]
    assert math.isclose(hits[2].score, hits[1].score * DECAY, rel_tol=1e-5)
    memory.flush()
    used = {usage.owner_id for usage in memory.storage.usages.all()}
    assert {edge.edge_id for edge in edges} <= used
    assert unused.edge_id not in used


# --- turns and those beside them ------------------------------------------------------------------

LENDING = {
    "weights": {"vector": 0.0, "keyword": 1.0, "graph": 0.0, "importance": 0.0},
    "keyword": {"neighbour_boost": 0.4},
}


def test_turns_that_change_or_go_leave_their_neighbours_side_by_side(backend: Any, start: Any) -> None:
    """Also after a compaction or a reload: what a turn borrows does not depend on how it came into memory."""
    knobs = {f"search__{section}__{name}": value for section in LENDING for name, value in LENDING[section].items()}
    agent = start(backend.open(backend.config(embedding_provider=None, **knobs)))
    memory, turns = agent.memory, agent.memory.storage.turns
    said = [agent.say(text) for text in ("a walrus?", "gone soon", "yes it was", "ah", "by the bay", "more")]

    def lent() -> dict[str, float]:
        return {hit.content: round(hit.breakdown.get("neighbour_boost", 0), 6) for hit in memory.search("walrus").hits}

    assert set(lent()) == {"a walrus?", "gone soon", "yes it was"}
    turns.delete(said[1].turn_id)
    assert set(lent()) == {"a walrus?", "yes it was", "ah"}
    turns.update(said[2].turn_id, content=b"yes indeed")
    agent.say("and so on")
    before = lent()
    assert set(before) == {"a walrus?", "yes indeed", "ah"}
    assert before["yes indeed"] > before["ah"] > 0
    inspect(memory).resident.compact()
    assert lent() == before
    inspect(memory).resident.reload()
    assert lent() == before


def test_what_the_filters_leave_out_lifts_no_score_above_one(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # docs/search.md: a score lies between 0 and 1, also beside turns that say far more than any hit
    weights = {"vector": 0.0, "keyword": 0.4, "graph": 0.6, "importance": 0.0}
    monkeypatch.setattr("caliber.search.ranking.graph.DECAY", 1.0)
    linked = {"search__graph__conversation": True}
    agent = start(backend.open(backend.config(embedding_provider=None, search__weights=weights, **linked)))
    for _ in range(3):
        agent.say("zebra quagga okapi crossing", role="user")
    agent.say("some filler, and a zebra " + "filler " * 60, role="assistant")
    result = agent.memory.search("zebra crossing quagga okapi", filter={"role": "assistant"})
    assert [hit.breakdown["graph"] for hit in result.hits] == [0.6]
    assert 0.6 < result.hits[0].score <= 1


@pytest.mark.parametrize("query", ["what happened last week", "last month", "last year", "the last 29 February"])
def test_records_of_the_year_1_are_asked_for_what_was_before(words: Any, query: str) -> None:
    # other programs write 1 January 1 where they do not know
    words.note("it happened in February, a month of that year and week", occurred_at=datetime(1, 1, 1, tzinfo=UTC))
    result = words.memory.search(query)
    assert result.status in (ResultStatus.OK, ResultStatus.EMPTY)


@pytest.mark.parametrize(
    ("sent", "why"),
    [(np.full((1, 32), np.nan), "invalid_vector"), (np.ones((1, 5)), "dimension_mismatch")],
    ids=["not a number", "another length"],
)
def test_a_service_that_sends_no_usable_vector_costs_one_leg(backend: Any, start: Any, sent: Any, why: str) -> None:
    # M-040: an outage of one leg is said, and the others find
    provider = CountingEmbeddings()
    agent = start(backend.open(embedding_provider=provider))
    agent.note("the backup moved to the vault")
    agent.memory.flush()
    provider.embed_batch = lambda texts: sent.astype(np.float32)  # type: ignore[method-assign]
    result = agent.memory.search("where did the backup move")
    assert (result.status, result.reason) == (ResultStatus.DEGRADED, f"query_not_embedded: {why}")
    assert [hit.content for hit in result.hits] == ["the backup moved to the vault"]


def test_newest_breaks_ties_by_id_also_where_it_cuts(backend: Any, start: Any) -> None:  # design 5: never by row
    class Stopped:
        def now_us(self) -> int:
            return 1_700_000_000_000_000

    memory = backend.open(clock=Stopped())
    agent = start(memory)
    notes = [agent.note(f"note {number}") for number in range(4)]
    memory.get(notes[0].note_id)
    memory.storage.notes.update(notes[0].note_id, importance=5.0)  # its row is now the last one
    assert [hit.content for hit in memory.search("", kinds="note", limit=2).hits] == ["note 0", "note 1"]


def test_a_newer_value_comes_first_where_recency_counts(backend: Any, start: Any) -> None:
    # issue 40, point 8
    config = backend.config(embedding_provider=None, search__weights=WORDS, search__boosts__recency=0.01)
    agent = start(backend.open(config))
    for month, note in (
        (MARCH, "the staging server is at 10.0.0.5"),
        (MAY, "the staging server is at 10.0.0.7 now"),
        (JULY, "the staging server is at 10.0.0.9 now"),
        (JULY, "the printer of Ines is at 10.0.0.2 now"),
    ):
        agent.note(note, occurred_at=month)
    found = contents(agent.memory, "where is the staging server?")
    assert [text.split()[5] for text in found[:3]] == ["10.0.0.9", "10.0.0.7", "10.0.0.5"]
    hits = agent.memory.search("where is the staging server?").hits
    assert hits[2].breakdown["outdated"] < 0
    assert contents(agent.memory, "is the server at 10.0.0.5?")[0].endswith("10.0.0.5"), "the query names the value"
    assert contents(agent.memory, "where was the staging server in March 2023?")[0].endswith("10.0.0.5")
