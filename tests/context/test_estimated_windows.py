"""Windows under every estimator: filled to the token, replayed without it, never over the budget."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from importlib.util import find_spec
from typing import Any

import pytest
from support.context import world as kit

from caliber.context.plan import plan_of
from caliber.context.record.record import unpack_record
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.kernels import estimate_tokens
from caliber.kernels.tokens import tokenizer
from caliber.model.context import AssemblyAction
from caliber.model.errors import BudgetTooSmall, ExtraNotInstalled, StorageError

NAMES = ["bytes", "calibrated"] + (["exact"] if find_spec("quicktok") else [])


def config_of(estimator: str, **overrides: Any) -> Any:
    return kit.config_of(**{"tokens.estimator": estimator, "tokens.vocabulary": "cl100k_base", **overrides})


def same(one: Any, other: Any) -> bool:
    return repr((one, one.assembly_trace, one.to_messages())) == repr(
        (other, other.assembly_trace, other.to_messages())
    )


def counted(window: Any, config: Any) -> int:
    """Return the size of a window, counted from its texts alone."""
    estimator, overhead = plan_of(config).estimator, config.assembly.message_overhead_tokens
    parts = sum(estimate_tokens(section.content, estimator=estimator) for section in window.sections)
    return parts + overhead * len(window.messages)


def fill_up(world: Any) -> None:
    for at in range(40):
        world.note(f"note {at}: the build takes {at} minutes on the small machine, which is too long")
        world.artifact(json.dumps({"file": f"src/main_{at}.py", "lines": [at * 7, at * 13], "ok": True}))
        world.turn(f"and what about step {at}? 日本語でもいい。" + " please" * (at % 5))


@pytest.mark.parametrize("order", ["priority", "stable_first"])
@pytest.mark.parametrize("estimator", NAMES)
def test_a_budget_is_filled_to_the_last_item(world: Any, estimator: str, order: str) -> None:
    # C-050: used_tokens is what the texts take, and the budget is used
    fill_up(world)
    config = config_of(
        estimator,
        **{
            "assembly.order": order, "assembly.section_shares": {}, "assembly.fill_ratio": 1.0,
            "assembly.evict_block_turns": 1, "system_instructions": "Be brief.",
        },
    )  # fmt: skip
    longest = 0
    for budget in (150, 300, 777, 1_500):
        window = world.window(config=config, max_tokens=budget)
        assert window.used_tokens == counted(window, config) <= budget
        assert estimate_tokens(window.text, estimator=plan_of(config).estimator) <= budget
        longest = max(longest, *(source.tokens for section in window.sections for source in section.sources))
        assert window.used_tokens > budget - longest - 10
    everything = world.window(config=config)
    assert everything.used_tokens == counted(everything, config)
    exact = world.window(config=config, max_tokens=everything.used_tokens + 3)
    assert exact.text == everything.text


def test_estimators_fill_differently(world: Any) -> None:
    # C-121: the knob decides
    fill_up(world)
    knobs = {"assembly.order": "priority"}
    windows = {name: world.window(config=config_of(name, **knobs), max_tokens=600) for name in NAMES}
    assert len({window.used_tokens for window in windows.values()}) == len(NAMES)
    assert len({window.text for window in windows.values()}) >= 2
    assert [window.estimator.split("/")[0] for window in windows.values()] == NAMES
    for name, window in windows.items():
        assert window.used_tokens == counted(window, config_of(name))


@pytest.mark.parametrize(
    ("order", "max_tokens", "share"), [("stable_first", 300, 1), ("priority", 300, 1), ("priority", 800, 0.5)]
)
@pytest.mark.parametrize("estimator", NAMES)
def test_texts_that_take_more_together_still_fit(
    world: Any, estimator: str, order: str, max_tokens: int, share: float
) -> None:
    """With nothing between them, digits and letters run into each other, and cost more than apart."""
    for at in range(200):
        world.turn(f"hi {at % 10}")
    config = config_of(
        estimator,
        **{
            "assembly.separator": "", "assembly.section_headers": False, "assembly.message_overhead_tokens": 0,
            "assembly.section_shares": {"user": [0, share]}, "assembly.fill_ratio": 1.0, "assembly.order": order,
            "assembly.evict_block_turns": 1,
        },
    )  # fmt: skip
    assembled = world.assemble(config=config, max_tokens=max_tokens)
    window = assembled.window
    assert window.used_tokens == counted(window, config) <= share * max_tokens
    record = unpack_record(assembled.record)
    if estimator == "calibrated":
        held = record.reserve.total if share == 1 else dict(record.reserve.sections)
        assert held, "nothing was held back: this test lost its case"
    assert same(replay(assembled.record, config, kit.Contents(world)), window)


@pytest.mark.parametrize("estimator", NAMES)
def test_a_cut_text_and_its_separator_fit(world: Any, estimator: str) -> None:
    # C-223
    world.note("old")
    world.note("word " * 300)
    world.turn("what is it?")
    for order in ("priority", "stable_first"):
        config = config_of(
            estimator,
            **{
                "assembly.overflow_policy": "truncate", "assembly.fill_ratio": 1.0, "assembly.order": order,
                "assembly.section_shares": {},
            },
        )  # fmt: skip
        for budget in range(60, 120, 7):
            assembled = world.assemble(config=config, max_tokens=budget)
            window = assembled.window
            assert window.used_tokens == counted(window, config) <= budget
            cut = [d for d in window.assembly_trace if d.action is AssemblyAction.TRUNCATE]
            assert len(cut) == 1
            assert "..." in window.text
            assert window.used_tokens > budget - 12
            assert same(replay(assembled.record, config, kit.Contents(world)), window)


@pytest.mark.parametrize("estimator", NAMES)
def test_nothing_that_fits_is_an_error_that_says_what_would(world: Any, estimator: str) -> None:
    world.artifact("some content that is longer than a few tokens")
    config = config_of(estimator)
    with pytest.raises(BudgetTooSmall) as caught:
        world.window(config=config, max_tokens=5)
    assert world.window(config=config, max_tokens=caught.value.needed).sections


def test_a_window_is_replayed_and_explained_without_its_estimator(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design section 5: the record and the contents are enough; the vocabulary may be gone, the tables be newer."""
    pytest.importorskip("quicktok")
    fill_up(world)
    kept = {}
    for estimator in ("calibrated", "exact"):
        config = config_of(
            estimator, **{"assembly.overflow_policy": "truncate", "system_instructions": "Be kind. " * 9}
        )
        kept[estimator] = (config, world.assemble(config=config, max_tokens=500))
        assert kept[estimator][1].record

    plan_of.cache_clear()
    tokenizer.open_token_vocabulary.cache_clear()
    monkeypatch.setitem(sys.modules, "quicktok", None)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    from caliber.kernels.tokens import estimators

    monkeypatch.setitem(estimators.COSTS, "cl100k_base", bytes(640))
    estimators.open_estimator.cache_clear()
    estimators.digest_of.cache_clear()
    try:
        with pytest.raises(ExtraNotInstalled):
            world.window(config=kept["exact"][0])
        for config, assembled in kept.values():
            contents = kit.Contents(world)
            assert same(replay(assembled.record, config, contents), assembled.window)
            explained = explain(assembled.record, config, contents)
            assert explained["budget"]["used"] == assembled.window.used_tokens
            assert explained["inputs"]["estimator"] == assembled.window.estimator
    finally:
        plan_of.cache_clear()
        estimators.digest_of.cache_clear()
        tokenizer.open_token_vocabulary.cache_clear()


@pytest.mark.parametrize("estimator", NAMES)
def test_lengths_of_turns_are_remembered_by_estimator(world: Any, estimator: str) -> None:
    for at in range(5):
        world.turn(f"turn {at} says something")
    first = {name: world.window(config=config_of(name)).used_tokens for name in NAMES}
    for name in reversed(NAMES):
        assert world.window(config=config_of(name)).used_tokens == first[name]


# --- records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 255])
def test_records_of_another_format_are_refused(world: Any, number: int) -> None:
    # issue item 7: window records have format 4, and 1 to 3 are gone
    world.turn("what is it?")
    record = world.assemble(config=config_of("bytes")).record
    assert record[3] == 4
    other = record[:3] + bytes((number,)) + record[4:]
    with pytest.raises(StorageError, match=f"format {number} is not known"):
        unpack_record(other)


@pytest.mark.parametrize("name", ["measures", "reserve", "counts", "query_from", "cut_offs", "degraded"])
def test_a_record_without_an_input_is_refused(world: Any, name: str) -> None:
    world.turn("what is it?")
    raw = world.assemble(config=config_of("bytes")).record
    body = zlib.decompress(raw[4:])
    (size,) = struct.unpack("<I", body[:4])
    meta = json.loads(body[4 : 4 + size])
    del meta[name]
    changed = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode()
    with pytest.raises(StorageError):
        unpack_record(raw[:4] + zlib.compress(struct.pack("<I", len(changed)) + changed + body[4 + size :]))


@pytest.mark.parametrize(("name", "value"), [
    ("measures", ["bytes/1", 0, 1, True, 2, [3]]),
    ("measures", ["bytes/1", 1, 1, True, -2, [3]]),
    ("measures", ["bytes/1", 1, 1, 1, 2, [3]]),
    ("measures", ["bytes/1", 1, 1, True, 2]),
    ("measures", ["bytes/1", 1, 1, True, 2, [3]]),  # another number of sections
    ("reserve", [-1, []]),
    ("reserve", [0, [[1]]]),
    ("counts", [["user", 3]]),
    ("counts", [[5, -3]]),
    ("cut", [[0, 1, -5, True]]),
    ("cut", [[0, 1, 5, 1]]),
])  # fmt: skip
def test_a_record_that_measures_impossibly_is_refused(world: Any, name: str, value: Any) -> None:
    world.turn("hello")
    config = config_of("calibrated")
    raw = world.assemble(config=config).record
    body = zlib.decompress(raw[4:])
    (size,) = struct.unpack("<I", body[:4])
    meta = json.loads(body[4 : 4 + size])
    meta[name] = value
    changed = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode()
    broken = raw[:4] + zlib.compress(struct.pack("<I", len(changed)) + changed + body[4 + size :])
    with pytest.raises(StorageError):
        replay(broken, config, kit.Contents(world))
