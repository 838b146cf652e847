"""Pages of windows in a real browser: elements, filter, keyboard, hostile texts, no request, no complaint.

Source: issue "PCP", Build 11. ``CALIBER_PICTURES`` names a folder that keeps the screenshots.
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
from support.explain.browser import Browser, browser
from support.explain.pictured import QUESTION, pictured

from caliber.explain.page.render import visible
from caliber.explain.picture import picture_of
from caliber.model import Principal, PrincipalKind
from caliber.model.access import AgentRole
from caliber.model.errors import NotFound

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
