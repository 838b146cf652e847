"""Filters on members of JSON: patterns in mappings, and dotted fields in words, on every database.

Source: docs/memories.md.
"""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caliber.model.errors import DTypeError, InvalidValue
from caliber.schema.json_patterns import OPERATORS

ITEM: dict[str, Any] = {
    "name": "item",
    "type": "semantic",
    "fields": [{"name": "name", "type": "text"}, {"name": "value", "type": "json"},
               {"name": "more", "type": "json", "optional": True}],
}  # fmt: skip
scalars = st.none() | st.booleans() | st.integers(-3, 3)
scalars |= st.sampled_from([0.5, -0.5, 1.0, 20, 20.0, 10**16, 1e16, "", "a", "b", "2", "é", 'a"', "a\n"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c d"]), inner, max_size=3),
    max_leaves=8,
)
comparisons = st.dictionaries(st.sampled_from(sorted(OPERATORS)), scalars, min_size=1, max_size=2)
patterns = st.recursive(
    scalars | comparisons,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c d"]), inner, max_size=3),
    max_leaves=8,
)
MODEL = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def fits(value: Any, wanted: Any) -> bool:
    """The meaning of docs/memories.md, which is that of the filters of LangGraph's stores."""
    if isinstance(wanted, dict) and any(name.startswith("$") for name in wanted):
        return all(compared(value, name, other) for name, other in wanted.items())
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(fits(value.get(name), inner) for name, inner in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(value, list) and len(value) == len(wanted)
        return same and all(fits(one, inner) for one, inner in zip(value, wanted, strict=True))
    return bool(value == wanted)


def compared(value: Any, name: str, other: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == other) is (name == "$eq")
    if isinstance(value, int | float) and isinstance(other, int | float):
        return bool(MODEL[name](value, other))
    try:
        return bool(MODEL[name](float(value), float(other)))
    except (TypeError, ValueError):
        return isinstance(value, str) and isinstance(other, str) and bool(MODEL[name](value, other))


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_pattern_finds_what_it_describes(backend: Any, mode: str) -> None:
    if mode == "backend" and not backend.has("full text"):
        pytest.skip("only in memory")
    items = backend.open(backend.config(memories=[ITEM], search__mode=mode)).records("item")

    @given(st.lists(values, min_size=1, max_size=5), patterns)
    @example([{"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}], {"a": {"b": None}})
    @example([True, 1, "1", [1]], {"$gte": 1})
    @example([2**53 + 1, 2**53], {"$gt": 2**53})
    def any_values(stored: list[Any], pattern: Any) -> None:
        made = items.insert_many([{"name": "x", "value": {"v": value}} for value in stored])
        expected = [each for each in made if fits(each.value, {"v": pattern})]
        assert items.find({"value": {"v": pattern}}) == items.find(value={"v": pattern}) == expected
        assert items.count(value={"v": pattern}) == len(expected)
        for each in made:
            items.delete(each.record_id)

    any_values()


def test_members_are_compared_in_words_too(backend: Any) -> None:
    items = backend.open(backend.config(memories=[ITEM])).records("item")
    user = {"user": {"age": 40, "name": "Ada"}, "ok": True}
    ada, bo, cy = items.insert_many([
        {"name": "ada", "value": user, "more": {"n": None}},
        {"name": "bo", "value": {"user": {"age": 3}, "ok": False}, "more": {}},
        {"name": "cy", "value": [1, 2]},
    ])  # fmt: skip
    assert items.find("value.user.age >= 3") == [ada, bo]
    assert items.find('value.user.age > 3 and value.user.name = "Ada"') == [ada]
    assert items.find('value.user.name < "B"') == [ada]
    assert items.find("value.ok = true or value.ok = false") == [ada, bo]
    assert items.find("value.ok != true") == [bo]
    assert items.find("more.n = null") == [ada, bo], "a member that is missing counts as null"
    assert items.find(more=None) == [cy]
    assert items.find(value=[1, 2]) == [cy]
    assert items.find(value=user) == [ada]
    assert items.find({"value": {"user": {"age": {"$gt": 2, "$lt": 5}}}}) == [bo]
    items.update(bo.record_id, value={"user": {"age": 41}})
    assert [each.name for each in items.find("value.user.age >= 41")] == ["bo"]


@pytest.mark.parametrize(("condition", "said"), [
    ("value.a contains 1", "a member of value cannot be compared by contains"),
    ("value.a = now()", "value is compared with a text in quotes, a number, true, false or null"),
    ("value.a = 99999999999999999999", "value is compared with a text in quotes, a number"),
    ("value" + ".a" * 65 + " = 1", "members are at most 64 levels deep"),
    ("name.a = 1", r"name \(text\) has no members"),
    ("vale.a = 1", "there is no field vale; did you mean `value`?"),
    ("value = 1", "value cannot be compared"),
    ({"value": {"$near": 1}}, r"\$near is no comparison; there are \$eq, \$ne, \$gt, \$gte, \$lt, \$lte"),
    ({"value": [{"a": {"$gt": 1, "b": 2}}]}, "b is no comparison"),
    ({"value": {"a": float("nan")}}, "value"),
])  # fmt: skip
def test_what_cannot_be_compared_is_said(backend: Any, condition: Any, said: str) -> None:
    items = backend.open(backend.config(memories=[ITEM])).records("item")
    with pytest.raises(InvalidValue, match=said):
        items.find(condition)


def test_what_is_no_json_is_said(backend: Any) -> None:
    items = backend.open(backend.config(memories=[ITEM])).records("item")
    with pytest.raises(DTypeError):
        items.find(value={"a": object()})
