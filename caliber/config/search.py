"""Configuration sections of search: weights of the legs (keyword, vector, graph), boosts, relevance floor.

Source: M §1.3, K-119, K-202, K-204; docs/search.md.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from caliber.config.knobs import Duration, FrozenMap, Int, Real, Section, knob

Language = Literal[
    "arabic",
    "armenian",
    "basque",
    "catalan",
    "czech",
    "danish",
    "dutch",
    "dutch_porter",
    "english",
    "esperanto",
    "estonian",
    "finnish",
    "french",
    "german",
    "greek",
    "hindi",
    "hungarian",
    "indonesian",
    "irish",
    "italian",
    "lithuanian",
    "nepali",
    "norwegian",
    "persian",
    "polish",
    "porter",
    "portuguese",
    "romanian",
    "russian",
    "serbian",
    "sesotho",
    "spanish",
    "swedish",
    "tamil",
    "turkish",
    "yiddish",
    "none",
]
"""The stemmers there are, and none."""

WEIGHT_TOLERANCE: Final = 1e-6


class SearchWeights(Section):
    """Weights of the legs; together 1. An unavailable leg gives its weight to the others."""

    vector: Real = knob("Nearness in meaning.", "M-032", source_value=0.4, ge=0, le=1)
    keyword: Real = knob("Words in common.", "M-032", source_value=0.3, ge=0, le=1)
    graph: Real = knob("Links from the hits of the other legs.", "M-032", source_value=0.2, ge=0, le=1)
    importance: Real = knob("Importance of a note.", "M-032", source_value=0.1, ge=0, le=1)


class KeywordConfig(Section):
    """The keyword leg: BM25, and the share of its words' scores that a turn gives to its neighbours."""

    language: Language = knob("Language of stems and stop words; none compares whole words.", "ours")
    k1: Real = knob("Weight of repeated words (BM25 k1).", "ours", ge=0, le=10)
    b: Real = knob("Penalty for long texts (BM25 b): 0 for none.", "ours", ge=0, le=1)
    saturate: Real = knob(
        "Saturation of the sum of a word's matches, in units of the word's rarity; 0 for none.", "ours", ge=0, le=10
    )
    neighbour_boost: Real = knob(
        "Share of a word's score that a turn borrows from either neighbour, twice from a question; from those beyond"
        " them 5/8 of it.",
        "ours",
        ge=0,
        le=1,
    )
    similar_words: Literal["wordllama-l2-supercat", "none"] = knob(
        "Model whose word vectors decide which words are similar (extra embed); none: exact stems only.", "ours"
    )


class BoostConfig(Section):
    """Boosts of hits that a leg found; added to the weighted legs."""

    mentioned: Real = knob("The query names one speaker or entity, and the record is theirs.", "ours", ge=0, le=10)
    date: Real = knob("The query names days, and the record is of them.", "ours", ge=0, le=10)
    date_slack_ms: Duration = knob(
        "Time after the days with a partial boost; before them a third of it.",
        "ours",
        unit="ms",
        gt=0,
    )
    time: Real = knob("The query asks when, and the record names a time.", "ours", ge=0, le=10)
    exact: Real = knob("A phrase in quotes, or a word of code, stands in the record as it is.", "ours", ge=0, le=10)
    question: Real = knob("The record ends with a question: it asks, and does not tell.", "ours", ge=-10, le=0)
    recency: Real = knob("The record is recent.", "ours", ge=0, le=10)
    recency_half_life_ms: Duration = knob("Age at which recency counts half.", "ours", unit="ms", gt=0)


class GraphConfig(Section):
    """The graph leg: how far links are followed."""

    conversation: bool = knob("Link each turn with the turns before and after it.", "ours")


class FloorConfig(Section):
    """The evidence that a query needs to find anything, and a hit to count as found (docs/search.md, The floor)."""

    words: Real = knob(
        "Least share of the question's words, by rarity, that one record must hold for the question to find anything, "
        "unless a record is as near as similarity says; such records count as found. 0: no floor.",
        "ours",
        ge=0,
        le=1,
    )
    similarity: FrozenMap[Annotated[Real, Field(ge=-1, le=1)]] = knob(
        "Least similarity of a record that counts as found by its vector alone, by the name of the embedding"
        " space (`caliber db spaces`). A space without an entry has no floor: every near record counts as"
        " found.",
        "ours",
    )


class SearchConfig(Section):
    """Search: legs, weights and order."""

    mode: Literal["resident", "backend"] = knob(
        "Place of searches: resident memory, or the database (results report it).", "design"
    )
    candidate_factor: Int = knob(
        "Nearest records that are examined when vector_candidates does not fill the limit, as a multiple of"
        " the limit; with mode backend also those that each leg finds. Raise it when a search in the database misses"
        " what resident memory finds.",
        "B-093",
        source_value=2,
        ge=1,
        le=100,
    )
    vector_candidates: Int = knob(
        "Candidates of the vector leg, whatever the limit.", "M-035", source_value=20, ge=1, le=10_000
    )
    min_similarity: Real = knob("Least similarity of a hit found by vector.", "M-035", source_value=0.7, ge=-1, le=1)
    normalisation: Literal["peak", "saturation"] = knob(
        "Mapping of scores to 0 to 1: peak divides by the best score (for vectors, the range from the last"
        " candidate to the best); saturation takes s/(s+1) of words, and the similarity itself.",
        "M-037",
        source_value="saturation",
    )
    fusion: Literal["weighted", "rrf"] = knob(
        "Weighted sum of the legs, or reciprocal ranks.", "M-039", source_value="weighted"
    )
    diversity: Real = knob(
        "Weight of a hit's similarity to better hits, which counts against it (MMR); 0: none.", "ours", ge=0, le=1
    )
    floor: FloorConfig = knob("Evidence that a query needs to find anything.", "ours")
    weights: SearchWeights = knob("Weights of the legs.", "M-032")
    keyword: KeywordConfig = knob("The keyword leg.", "M §1.3")
    boosts: BoostConfig = knob("Boosts of hits.", "ours")
    graph: GraphConfig = knob("The graph leg.", "M-035")
