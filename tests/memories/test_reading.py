"""Records read as columns, in order of a text, by the beginning of a text, and the different values of a field.

Every answer is that of plain Python over the records, in memory and by SQL, on every database.
Source: docs/memories.md.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.evidence import examples

from caliber.kernels.growing import Interner
from caliber.model.errors import DTypeError, InvalidValue, NotFound
from caliber.schema.predicate import after_all_with

PLACE: dict[str, Any] = {
    "name": "place",
    "type": "semantic",
    "fields": [{"name": "ns", "type": "text"}, {"name": "label", "type": "text", "optional": True},
               {"name": "valid_until", "type": "text", "optional": True},  # a text has no open end
               {"name": "content", "type": "text"}, {"name": "count", "type": "int", "optional": True},
               {"name": "at", "type": "timestamp", "optional": True}, {"name": "about", "type": "json"},
               {"name": "kind", "type": "enum", "values": ["b", "a"]}],
    "indexes": [{"field": "ns", "type": "btree"}],
}  # fmt: skip
NAMES = ("ns", "label", "valid_until", "content")
MAY = datetime(2026, 5, 1, tzinfo=UTC)
# The escape of zero characters in PostgreSQL, what surrounds it, and the ends of what is a character.
kept_texts = st.text("\0\1\2ab%_/é\ud7ff\ue000\ufdd0\ufdd1\U0010ffff01", max_size=5)
texts = st.text("\1\2ab%_/é\ud7ff\ue000\ufdd0\ufdd1\U0010ffff01", max_size=5)
records = st.fixed_dictionaries(
    {
        "ns": kept_texts,
        "label": st.none() | kept_texts,
        "valid_until": st.none() | kept_texts,
        "content": kept_texts,
        "count": st.none() | st.integers(-3, 3),
        "at": st.none() | st.integers(-2, 2).map(lambda days: MAY + timedelta(days=days)),
        "about": st.integers(0, 2),
        "kind": st.sampled_from("ab"),
    }
)
OPERATORS: dict[str, Any] = {
    "!=": str.__ne__, "<": str.__lt__, ">": str.__gt__, "<=": str.__le__, ">=": str.__ge__, "starts": str.startswith,
}  # fmt: skip


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


EDGE = {
    "ns": "\0", "label": None, "valid_until": None, "content": "\1", "count": 1, "at": None, "about": 0, "kind": "a"
}  # fmt: skip


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_any_text_is_compared_and_ordered_by_its_characters(backend: Any, mode: str) -> None:
    if mode == "backend" and not backend.has("full text"):
        pytest.skip("only in memory")
    places = backend.open(backend.config(memories=[PLACE], search__mode=mode)).records("place")

    @settings(max_examples=examples(300) if os.environ.get("CALIBER_SOAK") else 12)
    @given(st.lists(records, min_size=1, max_size=9), texts, st.sampled_from(NAMES), st.booleans())
    @example([EDGE, {**EDGE, "ns": "\ufdd0"}, {**EDGE, "ns": "\1"}], "\1", "ns", True)
    def any_records(drawn: list[dict[str, Any]], text: str, field: str, descending: bool) -> None:
        made = places.insert_many(drawn)
        for sign, holds in OPERATORS.items():
            found = places.find(f"{field} {sign} {quoted(text)}")
            expected = [each for each in made if (value := getattr(each, field)) is not None and holds(value, text)]
            assert found == sorted(expected, key=id_of), (mode, sign)
        _check_order(places, made, field, descending)
        _check_distinct(places, made, field, text)
        for each in made:
            places.delete(each.record_id)

    any_records()


def id_of(record: Any) -> Any:
    return record.record_id


def _check_order(places: Any, made: list[Any], field: str, descending: bool) -> None:
    with_value = [each for each in made if getattr(each, field) is not None]
    without = sorted((each for each in made if getattr(each, field) is None), key=id_of, reverse=descending)
    by_value = sorted(with_value, key=lambda each: (getattr(each, field), each.record_id), reverse=descending)
    expected = [*by_value, *without]
    assert places.find(order_by=field, descending=descending) == expected
    for at, each in enumerate(expected):  # page by page
        for after in (each, each.record_id):
            page = places.find(order_by=field, descending=descending, after=after, limit=2)
            assert page == expected[at + 1 : at + 3]
    assert places.find(order_by=field, descending=descending, limit=1) == expected[:1]
    first = sorted(made, key=id_of, reverse=descending)[:1]
    assert places.find(descending=descending, limit=1) == first
    assert places.find(order_by="sequence", descending=descending) == (made[::-1] if descending else made)
    for after in (made[0], made[0].record_id):
        found = places.find(order_by="sequence", after=after, limit=3)
        assert found == made[1:4]
    names = ("count", "label", "at", "id", "ns", "about", "content", "kind")
    rows = places.find(order_by=field, descending=descending, fields=names)
    key = "record_id"
    assert rows == [tuple(getattr(each, key if name == "id" else name) for name in names) for each in expected]


def _check_distinct(places: Any, made: list[Any], field: str, text: str) -> None:
    values = sorted({getattr(each, field) for each in made} - {None})
    assert places.distinct(field) == values
    assert places.distinct(field, limit=2, offset=1) == values[1:3]
    beginning = [value for value in values if value.startswith(text)]
    assert places.distinct(field, prefix=text) == beginning
    for name in ("count", "at", "kind"):
        assert places.distinct(name) == sorted({getattr(each, name) for each in made} - {None})
    one = {each.ns for each in made if each.kind == "a"}
    assert places.distinct("ns", kind="a") == sorted(one)
    assert places.distinct("ns", 'kind = "a"') == sorted(one)


@given(st.text("a\ud7ff\U0010fffe\U0010ffff", max_size=4), st.lists(st.text("a\ud7ff\ue000\U0010ffff", max_size=5)))
def test_the_text_behind_a_prefix_is_the_first_that_does_not_start_so(prefix: str, others: list[str]) -> None:
    end = after_all_with(prefix)
    for other in [*others, *(prefix + other for other in others)]:
        assert other.startswith(prefix) == (other >= prefix and (end is None or other < end))


@given(st.lists(st.lists(st.none() | st.text("ab", max_size=3), max_size=4), max_size=4))
def test_values_that_are_interned_are_kept_in_order(steps: list[list[str | None]]) -> None:
    interner = Interner()
    for step in steps:
        codes = list(interner.of_all(step))
        assert [interner.values[code] for code in codes] == step
        values, in_order = interner.in_order()
        assert values == sorted(set(interner.values) - {None})
        assert [interner.values[code] for code in in_order.tolist()] == values


def test_a_record_that_is_gone_begins_no_page_in_the_order_of_storing(backend: Any) -> None:
    places = backend.open(backend.config(memories=[PLACE])).records("place")
    first, second = (places.insert({**EDGE, "ns": name, "content": "a"}) for name in "ab")
    places.delete(first.record_id)
    assert places.find(order_by="ns", after=first) == places.find(after=first) == [second]
    with pytest.raises(NotFound):
        places.find(order_by="sequence", after=first)


def test_what_cannot_be_read_so_is_said(backend: Any) -> None:
    places = backend.open(backend.config(memories=[PLACE])).records("place")
    with pytest.raises(InvalidValue, match="there is no such field; did you mean content"):
        places.find(fields=("contnt",))
    with pytest.raises(DTypeError, match="a sequence of names"):
        places.find(fields="ns")
    with pytest.raises(InvalidValue, match="name at least one field"):
        places.find(fields=())
    with pytest.raises(InvalidValue, match="about has no order"):
        places.distinct("about")
    with pytest.raises(InvalidValue, match="count is no text"):
        places.distinct("count", prefix="1")
    with pytest.raises(InvalidValue, match="about has no order"):
        places.find(order_by="about")
    with pytest.raises(InvalidValue, match="cannot be compared by starts"):
        places.find('count starts "1"')
    assert places.distinct("ns") == places.find(fields=["ns"]) == []
