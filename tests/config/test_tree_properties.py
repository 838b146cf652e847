"""Properties of the configuration: durations, round trips, hashes, and faults that are always MultipleErrors."""

from __future__ import annotations

import json
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.evidence import examples

from caliber.config import CaliberConfig, profiles
from caliber.config.manual.render import render_json, render_toml
from caliber.config.secret import scrub, show
from caliber.model.errors import ConfigError, InvalidValue, MultipleErrors
from caliber.model.time import format_duration, parse_duration_ms

UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
INT64_MAX = 2**63 - 1
SAMPLE = profiles.reference(
    "store.db",
    embedding_provider={"provider_type": "hash", "model": "hash", "dimensions": 64, "options": {"seed": 7}},
    system_instructions="Be brief.",
    **{"section_priorities.custom": [("tools", 50)], "context_window_persistence": {"kind": "ttl", "ttl_ms": "1d"}},
)
TOML, JSON = render_toml(SAMPLE), render_json(SAMPLE)
PRINTABLE = st.text(st.characters(codec="utf-8"), max_size=40)


# --- durations -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 10**22), st.sampled_from(sorted(UNITS)))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    # C-125 C-169 C-311
    ms = number * UNITS[unit]
    if ms <= INT64_MAX:
        assert parse_duration_ms(f"{number}{unit}") == ms
    else:
        with pytest.raises(InvalidValue):
            parse_duration_ms(f"{number}{unit}")


@settings(deadline=None)
@given(st.integers(0, INT64_MAX))
def test_durations_are_written_and_read_without_loss(ms: int) -> None:
    assert parse_duration_ms(format_duration(ms)) == ms


@settings(deadline=None)
@given(PRINTABLE | st.from_regex(r"[0-9]{0,4} ?[a-zA-Z]{0,3}", fullmatch=True))
@example("٣s")
@example("1e3s")
def test_no_other_text_is_a_duration(text: str) -> None:
    # C-311 K-070: nonsense is an error, never 0
    digits = text.rstrip("mshdw")
    unit = text[len(digits) :]
    expected = digits.isascii() and digits.isdigit() and unit in UNITS
    try:
        value = parse_duration_ms(text)
    except InvalidValue:
        assert not expected
    else:
        assert expected
        assert value == int(digits) * UNITS[unit]


@settings(deadline=None)
@given(st.integers(1, INT64_MAX))
def test_a_duration_means_the_same_as_text_and_as_milliseconds(ms: int) -> None:
    # C-125
    one = SAMPLE.with_overrides(lock_timeout=ms)
    other = SAMPLE.with_overrides(lock_timeout=format_duration(ms))
    assert one.lock_timeout == other.lock_timeout == ms
    assert one.hash == other.hash


# --- round trips and hashes ----------------------------------------------------------------------

RATIO = st.floats(0, 1)
OPTIONS = st.dictionaries(
    PRINTABLE.map(lambda text: f"o{text}"),
    st.recursive(
        st.booleans()
        | st.integers(-INT64_MAX, INT64_MAX)
        | st.floats(allow_nan=False, allow_infinity=False)
        | PRINTABLE.filter(lambda text: "://" not in text),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b c", 'd"e']), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=3,
)


@st.composite
def configurations(draw: st.DrawFn) -> CaliberConfig:
    """Valid configurations with unusual texts and numbers wherever such may stand."""
    budget = draw(st.integers(1, 2_000_000))
    names = draw(st.lists(PRINTABLE.filter(str.strip).map(lambda text: f"x{text}"), max_size=3, unique=True))
    changes: dict[str, Any] = {
        "token_budget": budget,
        "system_instructions": draw(st.none() | PRINTABLE),
        "persona": draw(st.none() | PRINTABLE),
        "contradiction_threshold": draw(RATIO),
        "min_relevance_threshold": draw(RATIO),
        "retention.events_ms": draw(st.none() | st.integers(1, INT64_MAX)),
        "resident.feed_poll_ms": draw(st.integers(0, INT64_MAX)),
        "resident.warm_after_ms": draw(st.integers(0, INT64_MAX)),
        "section_priorities.custom": [(name, draw(st.integers(0, 2**31 - 1))) for name in names],
        "assembly.section_shares": draw(
            st.dictionaries(
                st.sampled_from(["user", "notes", "recall", *names]), st.tuples(st.floats(0, 0.16), RATIO).map(sorted)
            )
        ),
        "recall.from": draw(st.sampled_from(["trajectory", "session", "owner", "tenant"])),
        "assembly.separator": draw(PRINTABLE),
        "embedding_provider.options": draw(OPTIONS),
        "principal.id": draw(PRINTABLE.filter(str.strip)),
        "storage.readers": draw(st.integers(1, 256)),
        "tokens.bytes_per_token": draw(st.floats(1e-9, 1_024)),
        "tokens.estimator": draw(st.sampled_from(["bytes", "calibrated", "exact"])),
        "tokens.vocabulary": draw(st.sampled_from(["o200k_base", "cl100k_base"])),
    }
    changes["pcp.dosage.max_context_tokens"] = draw(st.integers(1, budget))
    try:
        return SAMPLE.with_overrides(**changes)
    except MultipleErrors as error:
        fields = [fault.context.get("field") for fault in error.errors]
    # An option may be named like a secret by chance; everything else drawn here is valid.
    assert fields == ["embedding_provider.options"]
    return SAMPLE.with_overrides(**{**changes, "embedding_provider.options": {}})


@settings(max_examples=examples(60, 5_000), deadline=None)
@given(configurations())
def test_every_configuration_survives_every_form(config: CaliberConfig) -> None:
    # C-123 C-126, design section 8
    forms = [
        CaliberConfig.from_toml(render_toml(config)),
        CaliberConfig.from_json(render_json(config)),
        CaliberConfig.from_json(config.canonical_json()),
        CaliberConfig.from_mapping(config.to_mapping()),
        pickle.loads(pickle.dumps(config)),
        config.with_overrides(),
    ]
    for again in forms:
        assert again == config
        assert (again.hash, again.canonical_json()) == (config.hash, config.canonical_json())
        assert hash(again) == hash(config)
        assert again.assembly == config.assembly


def shuffled(data: Any, order: Any) -> Any:
    if isinstance(data, dict):
        keys = list(data)
        order.shuffle(keys)
        return {key: shuffled(data[key], order) for key in keys}
    return [shuffled(item, order) for item in data] if isinstance(data, list) else data


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_hash_does_not_depend_on_the_order_of_keys(order: Any) -> None:
    # C-126
    assert CaliberConfig.from_mapping(shuffled(SAMPLE.to_mapping(), order)).hash == SAMPLE.hash


@settings(deadline=None)
@given(configurations(), configurations())
def test_equal_hashes_mean_equal_contents(one: CaliberConfig, other: CaliberConfig) -> None:
    # C-126
    assert (one == other) is (one.hash == other.hash) is (one.to_mapping() == other.to_mapping())


def test_the_hash_stays_the_same_between_processes_and_releases() -> None:
    # C-126: windows are stored under it. This text is fixed, so its hash is; changing it is a change of format.
    assert json.loads(SAMPLE.canonical_json())["lock_timeout"] == 30_000
    text = SAMPLE.canonical_json()
    assert text.startswith('{"access":{"default_visibility":{"executor":["executor","reviewer"],')
    assert '"windows_ms":2592000000' in text
    assert " " not in text.replace("Be brief.", "").replace("\\n", "")


# --- whatever comes in ---------------------------------------------------------------------------

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63), 10**4_200, math.nan, math.inf, -math.inf, b"bytes", object(), {1, 2}, ..., int])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "env:", "env:X", "30s", "-1s", "forever", "hnsw", "postgres", "://u:p@h", "\ud800", "\0"])
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    out = [path]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        out.extend(places(value, (*path, key)))
    return out


PLACES = [path for path in places(SAMPLE.to_mapping()) if path]


def corrupt(data: Any, path: tuple[Any, ...], action: str, junk: Any) -> None:
    node = data
    for key in path[:-1]:
        node = node[key]
        if not isinstance(node, (dict, list)):
            return  # an earlier corruption removed the way there
    key = path[-1]
    if isinstance(node, dict) != isinstance(key, str) or (isinstance(node, list) and key >= len(node)):
        return
    if action == "replace":
        node[key] = junk
    elif action == "delete":
        node.pop(key, None) if isinstance(node, dict) else node.pop(key)
    elif isinstance(node, dict):
        node[junk if isinstance(junk, (str, int)) else "junk"] = junk
    else:
        node.insert(key, junk)


def outcome(call: Callable[[], CaliberConfig]) -> CaliberConfig | None:
    """Return the result of the call; check that it raises nothing but a proper MultipleErrors."""
    # None; but where a test before this interrupted an ``except`` by tracing, CPython 3.11 takes its error for handled.
    handled = sys.exc_info()[1]
    try:
        return call()
    except MultipleErrors as error:
        caught = error
    assert caught.errors
    assert all(isinstance(fault, ConfigError) and not isinstance(fault, MultipleErrors) for fault in caught.errors)
    assert str(pickle.loads(pickle.dumps(caught))) == str(caught)
    assert caught.__cause__ is None
    assert caught.__context__ is handled
    for fault in caught.errors:
        assert len(str(fault)) < 700
        str(fault).encode()
    return None


@settings(max_examples=examples(200, 5_000), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["replace", "delete", "insert"]), JUNK),
        min_size=1,
        max_size=4,
    )
)
def test_a_corrupted_configuration_raises_multiple_errors_or_is_valid(changes: list[tuple[Any, str, Any]]) -> None:
    # C-122 C-124 K-007
    data = SAMPLE.to_mapping()
    for path, action, junk in changes:
        try:
            corrupt(data, path, action, junk)
        except (KeyError, IndexError, TypeError):
            continue
    config = outcome(lambda: CaliberConfig.from_mapping(data))
    if config is not None:
        assert CaliberConfig.from_json(config.canonical_json()) == config
        assert CaliberConfig.from_toml(render_toml(config)) == config
        assert len(config.hash) == 32


@settings(max_examples=examples(100, 5_000), deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=30) | st.sampled_from(["token_budget.x", "storage.path", "a..b", "."]), JUNK, min_size=1
    )
)
def test_any_override_raises_multiple_errors_or_is_valid(changes: dict[str, Any]) -> None:
    # C-122
    outcome(lambda: SAMPLE.with_overrides(**changes))
    outcome(lambda: profiles.reference("store.db", **changes))


@settings(max_examples=examples(100, 5_000), deadline=None)
@given(JUNK)
def test_anything_at_all_raises_multiple_errors(junk: Any) -> None:
    for parse in (CaliberConfig.from_mapping, CaliberConfig.from_json, CaliberConfig.from_toml):
        assert outcome(lambda parse=parse: parse(junk)) is None


@st.composite
def mangled(draw: st.DrawFn, text: str) -> str:
    """A document with a few pieces cut out, doubled or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 20)))
        piece = draw(
            st.text(max_size=6) | st.sampled_from([text[start:end] * 2, '"', "[", "{", "}", "\n[", "=", ",", "NaN"])
        )
        text = text[:start] + piece + text[end:]
    return text


@settings(max_examples=examples(100, 5_000), deadline=None)
@given(mangled(TOML), mangled(JSON))
def test_a_mangled_document_raises_multiple_errors_or_is_valid(toml: str, json_text: str) -> None:
    # C-123, design section 10: parsers are fuzzed
    outcome(lambda: CaliberConfig.from_toml(toml))
    outcome(lambda: CaliberConfig.from_json(json_text))


# --- secrets -------------------------------------------------------------------------------------

SECRET = st.from_regex(r"[A-Za-z0-9_+/-]{12,40}", fullmatch=True)


@settings(max_examples=examples(100, 5_000), deadline=None)
@given(SECRET, st.sampled_from(PLACES))
def test_a_secret_given_in_clear_is_never_repeated(secret: str, place: tuple[Any, ...]) -> None:
    # C-093 C-105 K-072
    secret = f"Zq{secret}"
    data = SAMPLE.to_mapping()
    data["embedding_provider"]["api_key"] = secret
    data["embedding_provider"]["endpoint"] = f"https://u:{secret}@host"
    data["embedding_provider"]["options"] = {"nested": [{"client_secret": secret}]}
    data["storage"]["path"] = f"postgres://u:{secret}@host/db"
    node: Any = data
    for key in place[:-1]:
        node = node[key]
    if isinstance(node, dict):
        node["unheard_of"] = secret
    with pytest.raises(MultipleErrors) as caught:
        CaliberConfig.from_mapping(data)
    seen = f"{caught.value}{caught.value!r}{caught.value.context!r}"
    assert secret not in seen
    assert secret.encode() not in pickle.dumps(caught.value)


@settings(deadline=None)
@given(
    SECRET,
    st.sampled_from(["password", "api_key", "token", "client_secret"]),
    st.sampled_from([" = ", ": ", "=", '": "']),
)
def test_quotes_from_files_hold_no_assigned_secret(secret: str, name: str, sign: str) -> None:
    # C-093
    assert f"Zq{secret}" not in scrub(f'a = 1\n"{name}{sign}Zq{secret}"\n')
    assert f"Zq{secret}" not in scrub(f"path{sign}postgres://u:Zq{secret}@h/db x")
    assert f"Zq{secret}" not in show(f"Zq{secret}", ("embedding_provider", name))


@settings(deadline=None)
@given(JUNK)
def test_whatever_is_shown_is_short_text(junk: Any) -> None:
    shown = show(junk)
    assert len(shown) < 130 or isinstance(junk, str)
    shown.encode()
