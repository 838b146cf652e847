"""Pages and comparisons of windows.

Pages are in a real browser: elements, filter, keyboard, hostile texts, no request, no complaint. Comparisons: the edits
make one of the other, every change has its reasons, the prompt cache its break.

Source: issue "PCP", Build 11 and 12. ``CALIBER_PICTURES`` names a folder that keeps the screenshots.
"""

from __future__ import annotations

import os
import pickle
import re
import uuid
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cli_runs import caliber, caliber_json
from support.context.world import Contents, World, searching
from support.explain.browser import Browser, browser
from support.explain.pictured import MAY, QUESTION, pictured

from caliber.explain.diff import Key, Side, compare, lines_of
from caliber.explain.explainer import explain
from caliber.explain.page.render import visible
from caliber.explain.picture import picture_of
from caliber.model import FixedClock, Principal, PrincipalKind
from caliber.model.access import AgentRole
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.time import to_us
from caliber.model.trajectory import TurnRole
from caliber.model.window_diff import ChangeKind, WindowDiff
from caliber.model.windows import ContextWindow

notebook_shows = methodcaller("_repr_html_")
READY_MS = 3_000
"""Within which the script of a page has shown 5,000 candidates, on a machine that does something else besides."""
LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"dark": True}, "narrow": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module", params=[100, 5_000])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page of so many candidates at least, its window, and its explanation; in a file."""
    from support.databases import Backend

    folder = tmp_path_factory.mktemp("pages")
    backend = Backend("sqlite", str(folder / "store.db"))
    memory, task = pictured(backend, request.param)
    window = memory.assemble_context(task.trajectory_id)
    memory.flush()
    path = folder / f"window-{request.param}.html"
    path.write_text(memory.windows.html(window.window_id, user="maria"), "utf-8")
    explained = memory.explain(window.window_id, user="maria")
    assert len(window.assembly_trace) >= request.param
    yield path, window, explained
    backend.close()


def opened(page: Browser, path: Path, **look: Any) -> None:
    page.open(path, **look)
    assert page.complaints() == []
    assert page.requests() == []
    assert page.run("document.documentElement.dataset.ready") is not None


def text(page: Browser, selector: str) -> str:
    return str(page.run(f"document.querySelector({selector!r}).innerText"))


@pytest.mark.prove
@pytest.mark.parametrize("look", LOOKS)
def test_page_works_without_a_complaint(page: Browser, written: Any, look: str, tmp_path: Path) -> None:
    path, window, _ = written
    opened(page, path, **LOOKS[look])
    ready = float(page.run("document.documentElement.dataset.ready"))
    print(f"{len(window.assembly_trace):,} candidates, {look}: ready in {ready:.0f} ms")
    assert ready < READY_MS
    width = LOOKS[look].get("width", 1200)
    assert page.run("document.documentElement.scrollWidth") <= width  # nothing is cut off at the side
    dark = page.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 24)"
    assert dark == (look == "dark")
    folder = Path(os.environ.get("CALIBER_PICTURES", tmp_path))
    shot = folder / f"{path.stem}-{look}.png"
    page.screenshot(shot)
    assert shot.read_bytes()[:4] == b"\x89PNG"
    page.run("document.getElementById('left-out').scrollIntoView()")
    page.screenshot(folder / f"{path.stem}-{look}-left-out.png")


@pytest.mark.prove
def test_page_shows_everything_that_explain_does(page: Browser, written: Any) -> None:
    path, window, explained = written
    opened(page, path)
    assert text(page, "h1") == QUESTION
    assert "replayed byte for byte" in text(page, "header")
    tiles = text(page, ".tiles")
    assert f"{window.used_tokens:,}" in tiles
    assert f"{window.stable_prefix_tokens:,}" in tiles
    sections = page.run("[...document.querySelectorAll('.section h3')].map(e => e.textContent)")
    assert sections == [section.name for section in window.sections] == [item["name"] for item in explained["sections"]]
    stable = page.run(
        "[...document.querySelectorAll('.section')].filter(e => e.querySelector('summary .good')).map(e => e.id)"
    )
    assert stable == [f"section-{item['name']}" for item in explained["sections"] if item["stable"]]
    assert sum(item["tokens"] for item in explained["sections"] if item["stable"]) == window.stable_prefix_tokens
    # The bar: a piece for each section, for the messages and for what is free, as wide as its tokens.
    widths = page.run("[...document.querySelectorAll('.bar rect')].map(e => e.width.baseVal.valueInSpecifiedUnits)")
    tokens = [section.token_count for section in window.sections]
    assert len(widths) == len(tokens) + 2
    for got, count in zip(widths, tokens, strict=False):
        assert got == pytest.approx(max(0, 100 * count / window.max_tokens - 0.12), abs=0.01)
    # Each source with the text that it has in the window, and passages under their days.
    shown = page.run("[...document.querySelectorAll('.source pre')].map(e => e.textContent)")
    texts = [
        visible(section.content[source.span[0] : source.span[1]])
        for section in window.sections
        for source in section.sources
    ]
    assert shown == texts
    assert page.run("document.querySelectorAll('.day').length") >= 1
    assert page.run("document.querySelector('.day time').dateTime").startswith("2023-05-")
    # Every candidate that was left out, with its reason: counted by the buttons, fifty at a time in the list.
    by_reason = page.run(
        "Object.fromEntries([...document.querySelectorAll('#reasons button')]"
        ".map(e => [e.dataset.rule, +e.querySelector('b').textContent.replaceAll(',', '')]))"
    )
    expected: dict[str, int] = {}
    for item in explained["exclusions"]:
        expected[item["rule_id"]] = expected.get(item["rule_id"], 0) + 1
    assert by_reason == expected
    rows = page.run("[...document.querySelectorAll('#rows tr')].map(e => [...e.cells].map(c => c.textContent))")
    for row, item in zip(rows, explained["exclusions"], strict=False):
        assert (row[0], row[5]) == (f"{item['rank']:,}", item["reason"])
    assert len(rows) == min(50, len(explained["exclusions"]))


@pytest.mark.prove
def test_filter_pages_and_details_by_keyboard_alone(page: Browser, written: Any) -> None:
    path, _, explained = written
    opened(page, path)
    every = page.run("document.getElementById('range').textContent")
    page.press("/")
    assert page.run("document.activeElement.id") == "filter"
    page.type("duplicate")
    duplicates = [item for item in explained["exclusions"] if item["rule_id"] == "duplicate"]
    assert page.run("document.getElementById('range').textContent").endswith(f"of {len(duplicates):,}")
    assert f"{len(duplicates)} left out" in text(page, "#found")
    assert page.run("[...document.querySelectorAll('.source')].every(e => e.hidden)")
    page.press("Escape")
    assert page.run("document.getElementById('range').textContent") == every
    # From the filter the Tab key reaches the buttons of reasons; Enter presses one, and presses it again.
    for _ in range(2_000):
        page.press("Tab")
        if page.run("document.activeElement.matches('#reasons button')"):
            break
    chosen = page.run("document.activeElement.dataset.rule")
    count = sum(item["rule_id"] == chosen for item in explained["exclusions"])
    page.press("Enter")
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert page.run("document.getElementById('range').textContent").endswith(f"of {count:,}")
    page.press("Enter")
    assert page.run("document.getElementById('range').textContent") == every
    # A record opens and closes; the list is sorted by a heading, and turned.
    page.run("document.querySelector('#rows button').focus()")
    page.press("Enter")
    assert page.run("document.querySelector('#rows .more code').textContent") == explained["exclusions"][0]["id"]
    page.press("Enter")
    assert page.run("document.querySelector('#rows .more')") is None
    page.run("document.querySelector('th[data-by=tokens] button').focus()")
    page.press("Enter")
    tokens = [item["would_have_tokens"] for item in explained["exclusions"]]
    shown = "[...document.querySelectorAll('#rows tr')].map(e => +e.cells[4].textContent.replaceAll(',', ''))"
    assert page.run(shown) == sorted(tokens, reverse=True)[:50]
    page.press("Enter")
    assert page.run(shown) == sorted(tokens)[:50]
    if len(tokens) > 50:
        page.run("document.getElementById('next').focus()")
        page.press("Enter")
        assert page.run(shown) == sorted(tokens)[50:100]
    assert page.complaints() == []


@pytest.mark.prove
def test_everything_that_can_be_used_has_a_name(page: Browser, written: Any) -> None:
    path, _, _ = written
    opened(page, path)
    names = page.names()
    used = [(role, name) for role, name in names if role in ("button", "searchbox", "combobox", "link", "columnheader")]
    assert used
    assert [item for item in used if not item[1].strip()] == []
    roles = {role for role, _ in names}
    assert {"main", "search", "heading", "table", "navigation", "status"} <= roles
    assert any(role in ("image", "img") and name.startswith("Tokens by section: ") for role, name in names)


@pytest.mark.prove
def test_hostile_texts_stay_texts(page: Browser, written: Any) -> None:
    path, _, _ = written
    html = path.read_text("utf-8")
    opened(page, path)
    assert page.run("document.title").startswith("Context window ")
    assert page.run("document.querySelectorAll('img, iframe, object, link').length") == 0
    assert page.run("document.scripts.length") == 2
    page.press("/")
    page.type("txt.exe")
    assert page.run("document.querySelectorAll('.source:not([hidden]), #rows tr').length") >= 1
    assert "</script><script>" in page.run("document.body.textContent")
    assert page.complaints() == []
    # No character that turns or hides text reaches the page, and no policy lets anything else run.
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\ufeff]", html)
    assert "\u27e8U+202E\u27e9" in html
    assert "default-src &#x27;none&#x27;" in html
    assert "unsafe" not in html.split("</head>")[0].split("<style>")[0]
    page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    page.run(
        "{const s = document.createElement('script'); s.textContent = 'document.title = 2'; document.body.append(s)}"
    )
    assert page.run("document.title").startswith("Context window ")
    assert any("Content Security Policy" in complaint for complaint in page.complaints())  # the browser refused both


@pytest.mark.prove
def test_a_window_alone_has_a_page_and_a_frame(page: Browser, written: Any, tmp_path: Path) -> None:
    _, window, explained = written
    again = pickle.loads(pickle.dumps(window))
    path = tmp_path / "alone.html"
    path.write_text(again.to_html(), "utf-8")
    opened(page, path)
    assert "replay not checked" in text(page, "header")
    picture = picture_of(window).explained
    for name in ("inclusions", "exclusions", "sections", "cut_offs"):
        mine = [{key: value for key, value in item.items() if key != "trust"} for item in explained[name]]
        assert picture[name] == mine
    notebook = tmp_path / "notebook.html"
    assert 'sandbox="allow-scripts"' in notebook_shows(window)
    notebook.write_text(f"<!doctype html><title>notebook</title>{notebook_shows(window)}", "utf-8")
    page.open(notebook)
    assert page.complaints() == []
    assert page.run("document.title") == "notebook"
    assert page.run("document.querySelector('iframe').getAttribute('srcdoc')") == again.to_html()


def test_pages_on_both_databases_are_checked_as_explain_is(backend: Any) -> None:
    memory, task = pictured(backend, 30)
    window = memory.assemble_context(task.trajectory_id)
    memory.flush()
    html = memory.windows.html(window.window_id, user="maria")
    assert "replayed byte for byte" in html
    assert QUESTION in html.replace("&#x27;", "'")
    with pytest.raises(NotFound):
        memory.windows.html(window.window_id, user="bo")
    stranger = memory.acting_as(Principal(PrincipalKind.AGENT, "stranger", AgentRole.EXECUTOR))
    with pytest.raises(NotFound):
        stranger.windows.html(window.window_id)
    with pytest.raises(NotFound):
        memory.windows.html(uuid.UUID(int=1))
    # A source that was forgotten: the page still explains, without the texts, and says why.
    memory.acting_as(Principal.admin("root")).forget(texts=["Thursday at nine"], even_if_shared=True)
    html = memory.windows.html(window.window_id, user="maria")
    assert "Thursday at nine" not in html


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
