"""Comparisons of windows: the edits make one of the other, every change has its reasons, the prompt cache its break.

Source: issue "PCP", Build 12.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cli_runs import caliber, caliber_json
from support.context.world import Contents, World, searching
from support.explain.pictured import MAY, pictured

from caliber.explain.diff import Key, Side, compare, lines_of
from caliber.explain.explainer import explain
from caliber.model import FixedClock, Principal, PrincipalKind
from caliber.model.access import AgentRole
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.time import to_us
from caliber.model.trajectory import TurnRole
from caliber.model.window_diff import ChangeKind, WindowDiff
from caliber.model.windows import ContextWindow


def sources(window: ContextWindow) -> list[tuple[Any, ...]]:
    """Return the sources of a window, in order of reading."""
    return [
        ((source.source_type, source.id or section.name), section.name, section.content[slice(*source.span)])
        for section in window.sections
        for source in section.sources
    ]


def check(diff: WindowDiff, before: ContextWindow, after: ContextWindow) -> None:
    """Check a difference against both windows, by applying it and by comparing them source by source."""
    assert diff.apply(before.text) == after.text
    old, new = sources(before), sources(after)
    # The changes of sources, applied: take out what went or moved, put in what came or moved.
    changed = {change.place_before for change in diff.changes if change.place_after is None}
    moved = [change for change in diff.changes if ChangeKind.MOVED in change.kinds]
    order = [item[0] for at, item in enumerate(old) if at not in changed | {change.place_before for change in moved}]
    arriving = [c for c in diff.changes if ChangeKind.CAME in c.kinds or ChangeKind.MOVED in c.kinds]
    for change in sorted(arriving, key=lambda change: change.place_after or 0):
        order.insert(change.place_after or 0, new[change.place_after or 0][0])
    assert order == [item[0] for item in new]
    # No change is missing, none is invented.
    was, now = {item[0]: item for item in old}, {item[0]: item for item in new}
    for change in diff.changes:
        key = (change.source_type, change.id or change.section_after or change.section_before)
        assert (key in was, key in now) == (change.section_before is not None, change.section_after is not None)
        assert (ChangeKind.CAME in change.kinds) == (key not in was)
        assert (ChangeKind.WENT in change.kinds) == (key not in now)
        assert change.reason_before
        assert change.reason_after
        if key in was and key in now:
            textual = {ChangeKind.SHORTENED, ChangeKind.LENGTHENED, ChangeKind.REVISED} & set(change.kinds)
            assert bool(textual) == (was[key][2] != now[key][2])
    named = {(c.source_type, c.id or c.section_after or c.section_before) for c in diff.changes}
    for key in was.keys() | now.keys():
        if was.get(key, (0,))[1:] != now.get(key, (0,))[1:]:
            assert key in named
    # The cache: the longest common beginning, and a cause where it ends.
    data, other = before.text.encode(), after.text.encode()
    common = next(
        (at for at, (a, b) in enumerate(zip(data, other, strict=False)) if a != b), min(len(data), len(other))
    )
    assert common - 3 <= diff.cache.common_bytes <= common  # whole characters
    assert diff.cache.broken == (not after.text.startswith(before.text))
    assert (diff.cache.cause is not None) == diff.cache.broken
    if diff.cache.broken:
        assert diff.cache.section in {section.name for section in (*before.sections, *after.sections)}
    said, heard = before.to_messages(), after.to_messages()
    assert said[: diff.cache.messages] == heard[: diff.cache.messages]
    assert said[diff.cache.messages :][:1] != heard[diff.cache.messages :][:1] or not said[diff.cache.messages :]


words = st.text("ab é漢😀\n.", max_size=60)
steps = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "note", "artifact", "scope"]), words), min_size=1, max_size=8
)
windows = st.fixed_dictionaries(
    {"max_tokens": st.integers(20, 900), "query": st.sampled_from([None, "what now?", "a 漢 or b", "aa ab ba bb"])}
)


def write(world: World, written: list[tuple[str, str]]) -> None:
    for kind, text in written:
        if kind == "note":
            world.note(text)
        elif kind == "artifact":
            world.artifact(text)
        elif kind == "scope":
            world.scope_id = world.scope(summary=text or "nothing") and world.scope()
        else:
            world.turn(text, TurnRole(kind))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(steps, steps, windows, windows, st.sampled_from(["", "\n", "\n\n", "x"]), st.booleans())
def test_the_edits_make_one_window_of_the_other(
    first: Any, more: Any, one: Any, other: Any, separator: str, headers: bool
) -> None:
    world = World()
    config = searching(**{"assembly.separator": separator, "assembly.section_headers": headers})
    try:
        write(world, first)
        before = world.assemble(config=config, **one)
        write(world, more)
        after = world.assemble(config=config, **other)
        contents = Contents(world)

        def reasons(assembled: Any) -> Any:
            def reason(key: Key) -> str:
                if isinstance(key[1], uuid.UUID):
                    return str(explain(assembled.record, config, contents, exclusion=key[1])["reason"])
                return "a text of the configuration"

            return reason

        diff = compare(
            Side(before.window, one["query"], reasons(before)), Side(after.window, other["query"], reasons(after)), len
        )
    finally:
        world.close()
    check(diff, before.window, after.window)
    same = compare(Side(after.window, None, str), Side(after.window, None, str), len)
    assert (same.changes, same.edits, same.cache.broken) == ((), (), False)


@pytest.mark.parametrize("budget", [150, 600, 4_000])
def test_two_turns_on_both_databases(backend: Any, budget: int) -> None:
    clock = FixedClock(to_us(MAY))
    memory, task = pictured(backend, 40, clock)
    scope = memory.current_scope(task.trajectory_id)
    before = memory.assemble_context(task.trajectory_id, max_tokens=budget)
    clock.advance(ms=1_000)
    memory.append_turn(scope.scope_id, role="assistant", content="On Friday at ten.")
    memory.append_turn(scope.scope_id, role="user", content="And is there a market near the station?")
    memory.flush()
    after = memory.assemble_context(task.trajectory_id, max_tokens=budget)
    memory.flush()
    diff = memory.windows.diff(before.window_id, after.window_id, user="maria")
    check(diff, before, after)
    assert diff.query_before != diff.query_after
    came = [change for change in diff.changes if ChangeKind.CAME in change.kinds]
    asked = next(change for change in came if "And is there a market" in change.label)
    assert "after the window" in asked.reason_before
    assert asked.section_after == "current"
    # The system's instructions are first and stay: the cache keeps them at least.
    assert diff.cache.common_tokens >= before.sections[0].token_count - 2
    text = "\n".join(lines_of(diff))
    assert all(change.label in text for change in diff.changes)
    assert diff.cache.cause is not None
    assert diff.cache.cause in text
    back = memory.windows.diff(after.window_id, before.window_id, user="maria")
    assert back.apply(after.text) == before.text


def test_whoever_may_not_replay_may_not_compare(backend: Any) -> None:
    memory, task = pictured(backend, 10)
    window = memory.assemble_context(task.trajectory_id)
    memory.flush()
    stranger = memory.acting_as(Principal(PrincipalKind.AGENT, "stranger", AgentRole.EXECUTOR))
    for handle, user in ((memory, "bo"), (stranger, None)):
        with pytest.raises(NotFound):
            handle.windows.diff(window.window_id, window.window_id, user=user)
    with pytest.raises(NotFound):
        memory.windows.diff(window.window_id, uuid.UUID(int=1), user="maria")
    same = memory.windows.diff(window.window_id, window.window_id, user="maria")
    assert (same.changes, same.edits, same.cache.broken) == ((), (), False)
    assert same.cache.common_tokens == same.cache.tokens
    broken = WindowDiff.apply(memory.windows.diff(window.window_id, window.window_id, user="maria"), window.text)
    assert broken == window.text


def test_edits_of_another_text_are_refused(backend: Any) -> None:
    memory, task = pictured(backend, 10)
    scope = memory.current_scope(task.trajectory_id)
    before = memory.assemble_context(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="And now?")
    memory.flush()
    after = memory.assemble_context(task.trajectory_id)
    memory.flush()
    diff = memory.windows.diff(before.window_id, after.window_id, user="maria")
    with pytest.raises(InvalidValue):
        diff.apply("")


def test_the_command_prints_and_gives_json(here: Any) -> None:
    (here / "chat.jsonl").write_text('{"role": "user", "content": "Which driver does SQLite need?"}', "utf-8")
    caliber("ingest", "chat", "chat.jsonl")
    first = caliber_json("context", "latest")["window_id"]
    second = caliber_json("context", "latest", "--query", "driver", "--max-tokens", "200")["window_id"]
    text = caliber("diff", first, "latest").stdout
    assert f"window {first}\n    to {second}\n" in text
    assert "prompt cache: the first" in text
    document = caliber_json("diff", first, second)
    assert (document["before"], document["after"]) == (first, second)
    assert {"changes", "edits", "cache"} <= document.keys()
    assert "nonsense" in caliber("diff", "nonsense", "latest", code=2).stderr
