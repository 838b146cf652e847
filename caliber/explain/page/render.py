"""Renderer of a picture as HTML: everything that was remembered is escaped, and nothing but this page's script runs.

The policy of the page (CSP) allows the style and the script by their hashes, and no request at all. Candidates are
data, which the script shows a page at a time, so that five thousand cost no more than fifty.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from typing import Any, Final

from caliber.explain.picture import MEANINGS, Picture, inclusions_of
from caliber.model.windows import ContextSection, SourceRef

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
"""Characters that cannot be seen, or that turn the direction of the text after them."""
_COLOURS: Final = {
    "system": "c0",
    "persona": "c0",
    "history": "c1",
    "user": "c2",
    "artifacts": "c3",
    "notes": "c4",
    "recall": "c5",
    "current": "c6",
}
_REASONS: Final = {
    "relevance_threshold": "below min_relevance_threshold",
    "section_limit": "did not fit its section",
    "budget_limit": "did not fit the remaining budget",
    "group_limit": "its tool call and results did not fit whole",
    "dosage_limit": "better candidates fill the places that pcp.dosage allows",
    "embedding_error": "its vector cannot be compared with the query's",
    "duplicate": "repeats a more relevant record",
    "left_with_block": "is older than the first turn shown",
    "already_shown": "the conversation shows it already",
    "open_conflict": "it contradicts a record in the window, and the conflict is open",
}
_ORIGINS: Final = {
    "last_user_turn": "the last user turn",
    "goal": "the goal of the task",
    "caller": "given by the caller",
    "none": "none",
}
_REPLAYS: Final = {
    "identical": ("good", "replayed byte for byte"),
    "different": ("bad", "replay differs"),
    "impossible": ("warn", "cannot be replayed"),
    "unchecked": ("", "replay not checked"),
}
_OPEN_MOST: Final = 12
"""Sections of more sources begin folded."""


def visible(text: str) -> str:
    """Return a text whose unseen and direction-turning characters are spelt out."""
    return _UNSEEN.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", text.replace("\r\n", "\n"))


def _e(value: Any) -> str:
    return html.escape(visible(str(value)))


@lru_cache(maxsize=1)
def _assets() -> tuple[str, str]:
    folder = resources.files("caliber.explain.page")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return style, script


def _hash(text: str) -> str:
    return "'sha256-" + b64encode(sha256(text.encode()).digest()).decode() + "'"


def render(picture: Picture) -> str:
    """Return a picture as an HTML document."""
    style, script = _assets()
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    found = picture.explained
    title = f"Context window {found['window_id']}"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n',
        f"<title>{_e(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
        '<a class="skip" href="#left-out">Skip to the records left out</a>\n<main>\n',
        *_head(picture),
        *_budget(found),
        _TOOLS,
        *_sections(picture),
        *_left_out(found),
        *_before_ranking(found),
        *_rules(found),
        *_foot(found),
        "</main>\n",
        f'<script type="application/json" id="candidates">{_candidates(picture)}</script>\n',
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join(parts)


_TOOLS: Final = """<div class="tools" role="search">
<input type="search" id="filter" aria-label="Filter records by text" placeholder="Filter records by text" autocomplete="off" spellcheck="false">
<span class="found" id="found" role="status" aria-live="polite"></span>
<span class="meta"><kbd>/</kbd> filter <kbd>Esc</kbd> clear</span>
</div>
"""  # noqa: E501


def _chip(text: str, kind: str = "", title: str = "") -> str:
    hint = f' title="{_e(title)}"' if title else ""
    return f'<span class="chip {kind}"{hint}>{_e(text)}</span>'


def _head(picture: Picture) -> Iterator[str]:
    found, inputs = picture.explained, picture.explained["inputs"]
    query = inputs.get("query")
    yield '<header>\n<p class="eyebrow">Context window</p>\n'
    if query:
        yield f'<h1 dir="auto">{_e(query)}</h1>\n'
    else:
        yield "<h1>Window without a query</h1>\n" if "query" in inputs else f"<h1>{_e(found['window_id'])}</h1>\n"
    yield '<div class="meta">'
    kind, words = _REPLAYS[picture.replayed.state]
    yield _chip(words, kind, picture.replayed.reason)
    yield _chip(f"status {found['status']}", {"ok": "good", "degraded": "warn"}.get(found["status"], ""))
    yield "".join(_chip(f"degraded: {reason}", "warn") for reason in found["degraded"])
    if inputs.get("query_from"):
        yield f"<span>query: {_e(_ORIGINS.get(inputs['query_from'], inputs['query_from']))}</span>"
    if inputs.get("clock"):
        when = str(inputs["clock"])
        yield f'<time datetime="{_e(when)}">{_e(when[:19].replace("T", " "))} UTC</time>'
    yield f"<code>{_e(found['window_id'])}</code></div>\n"
    if picture.replayed.state in ("different", "impossible"):
        yield f'<p class="meta">Replay: {_e(picture.replayed.reason)}</p>\n'
    budget = found["budget"]
    stable = sum(section["tokens"] for section in found["sections"] if section["stable"])
    tiles = (
        ("Tokens", f"{budget['used']:,}", f"of {budget['total']:,}"),
        ("Records included", f"{len(found['inclusions']):,}", f"in {len(found['sections'])} sections"),
        ("Records left out", f"{len(found['exclusions']):,}", "with reasons"),
        ("Stable prefix", f"{stable:,}", f"tokens, {_share(stable, budget['used'])}"),
    )
    yield '<dl class="tiles">'
    for name, value, unit in tiles:
        yield f"<div><dt>{name}</dt><dd>{value} <small>{_e(unit)}</small></dd></div>"
    yield "</dl>\n</header>\n"


def _share(part: int, whole: int) -> str:
    if 0 < part * 200 < whole:
        return "<1%"
    return f"{part / whole:.0%}" if whole else "0%"


def _records(count: int) -> str:
    return f"{count:,} record" + ("" if count == 1 else "s")


def _colour(section: Mapping[str, Any]) -> str:
    return _COLOURS.get(section["type"], "c7")


def _anchor(name: str) -> str:
    return "section-" + "".join(char if char.isascii() and char.isalnum() else f"-{ord(char):x}-" for char in name)


def _budget(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the budget as a stacked bar with its legend, the stable prefix below it."""
    budget, sections = found["budget"], found["sections"]
    total = max(1, budget["total"])
    overhead = budget["used"] - sum(section["tokens"] for section in sections)
    spans = [(_colour(item), item["name"], item["tokens"], _anchor(item["name"])) for item in sections]
    if overhead > 0:
        spans.append(("c7", "message overhead", overhead, ""))
    spans.append(("free", "free", max(0, budget["total"] - budget["used"]), ""))
    words = ", ".join(f"{name} {tokens:,}" for _, name, tokens, _ in spans)
    yield '<section class="card" aria-labelledby="budget-title">\n<h2 id="budget-title">Budget</h2>\n'
    yield f'<svg class="bar" role="img" aria-label="{_e(f"Tokens by section: {words}")}">'
    at = 0.0
    for colour, name, tokens, _ in spans:
        width = 100 * tokens / total
        label = f"{name}: {tokens:,} tokens, {_share(tokens, total)}"
        yield f'<rect class="{colour}" x="{at:.3f}%" width="{max(0.0, width - 0.12):.3f}%" height="100%">'
        yield f"<title>{_e(label)}</title></rect>"
        at += width
    yield "</svg>\n"
    stable = sum(section["tokens"] for section in sections if section["stable"])
    if stable:
        width = 100 * stable / total
        yield '<svg class="prefix" aria-hidden="true">'
        yield f'<rect y="4" width="{width:.3f}%" height="2"></rect><rect width="2" height="10"></rect>'
        yield f'<rect x="{max(0.0, width - 0.2):.3f}%" width="2" height="10"></rect></svg>\n'
        yield f'<p class="prefix-note">Stable prefix: {stable:,} tokens stay as they are when the next turn comes, '
        yield "so a provider's prompt cache can keep them.</p>\n"
    yield '<ul class="legend">'
    for colour, name, tokens, anchor in spans:
        inside = f'<span class="swatch {colour}"></span>{_e(name)}<span class="count">{tokens:,}'
        inside += f" · {_e(_share(tokens, total))}</span>"
        tag = f'<a href="#{anchor}">{inside}</a>' if anchor else f'<span class="item">{inside}</span>'
        yield f"<li>{tag}</li>"
    yield "</ul>\n</section>\n"


def _sections(picture: Picture) -> Iterator[str]:
    texts = {} if picture.window is None else {section.name: section for section in picture.window.sections}
    for section in picture.explained["sections"]:
        sources = inclusions_of(picture, section["name"])
        opened = " open" if len(sources) <= _OPEN_MOST else ""
        name = _anchor(section["name"])
        yield f'<section class="card section" id="{name}" aria-labelledby="{name}-title">\n<details{opened}>\n<summary>'
        yield f'<span class="swatch {_colour(section)}"></span><h3 id="{name}-title">{_e(section["name"])}</h3>'
        yield f'<span class="meaning">{_e(MEANINGS.get(section["type"], "given by the caller or a rule"))}</span>'
        yield _chip("stable prefix", "good", "unchanged when the next turn comes") if section["stable"] else ""
        yield f'<span class="total">{_records(len(sources))} · {section["tokens"]:,} tokens</span></summary>\n'
        yield from _sources(sources, texts.get(section["name"]))
        yield "</details>\n</section>\n"


def _sources(items: Sequence[Mapping[str, Any]], section: ContextSection | None) -> Iterator[str]:
    refs: dict[tuple[str, str | None], SourceRef] = {}
    if section is not None:
        refs = {(ref.source_type.value, None if ref.id is None else str(ref.id)): ref for ref in section.sources}
    last = None
    for item in items:
        ref = refs.get((item["type"], item["id"]))
        if ref is not None and ref.day is not None and ref.day != last:
            last = ref.day
            day = f"{last.day} {last:%B %Y}"
            yield f'<p class="day"><time datetime="{last.isoformat()}">{day}</time></p>\n'
        yield '<article class="source"><div>'
        if ref is None or section is None:
            yield '<p class="gone">The text is gone, or you may not see it.</p>'
        else:
            yield f'<pre dir="auto" tabindex="0">{_e(section.content[ref.span[0] : ref.span[1]])}</pre>'
        yield '</div><div class="facts">'
        yield _score(float(item["relevance"]))
        kind = str(item["type"]).replace("_", " ")
        version = "" if ref is None or item["id"] is None else f" · version {ref.version}"
        trust = f" · trust {_e(item['trust'])}" if item.get("trust") else ""
        yield f"<span>{_e(kind)} · {item['tokens']:,} tokens{version}{trust}</span>"
        yield f"<span>{_e(item['reason'])}</span>"
        if item["breakdown"]:
            yield f"<span>{_e(', '.join(f'{name} {value:+.3f}' for name, value in item['breakdown'].items()))}</span>"
        if item["id"] is not None:
            yield f"<code>{_e(item['id'])}</code>"
        yield "</div></article>\n"


def _score(value: float) -> str:
    width = 100 * min(1.0, max(0.0, value))
    rect = f'<svg aria-hidden="true"><rect width="{width:.1f}%" height="100%"></rect></svg>'
    return f'<span class="score">{rect}relevance {value:.3f}</span>'


def _left_out(found: Mapping[str, Any]) -> Iterator[str]:
    yield '<section class="card" id="left-out" aria-labelledby="left-title" tabindex="-1">\n'
    yield '<h2 id="left-title">Considered and left out</h2>\n'
    if not found["exclusions"]:
        yield "<p>Every candidate is in the window.</p>\n"
    yield '<ul class="reasons" id="reasons" aria-label="Filter by reason"></ul>\n'
    yield '<div class="meta"><label>Section <select id="of-section"><option value="">all</option></select></label>'
    yield '</div>\n<div class="scroll"><table>\n<caption>Press a record for its id and the parts of its relevance. '
    yield "Texts are those of now.</caption>\n<thead><tr>"
    for name, by, kind in (
        ("Rank", "rank", "number"),
        ("Record", "label", ""),
        ("Section", "section", ""),
        ("Relevance", "relevance", ""),
        ("Tokens", "tokens", "number"),
        ("Reason", "reason", ""),
    ):
        yield f'<th scope="col" class="{kind}" data-by="{by}"><button type="button">{name}</button></th>'
    yield '</tr></thead>\n<tbody id="rows"></tbody>\n</table></div>\n<p id="nothing" class="meta" hidden>'
    yield 'Nothing to show.</p>\n<nav class="pager" aria-label="Pages of records">'
    yield '<button type="button" id="previous">Previous</button>'
    yield '<button type="button" id="next">Next</button><span id="range" role="status" aria-live="polite"></span></nav>'
    yield "\n<noscript><p>The list needs JavaScript.</p></noscript>\n</section>\n"


def _before_ranking(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["cut_offs"]:
        return
    yield '<section class="card" aria-labelledby="before-title">\n<h2 id="before-title">Before ranking</h2>\n'
    rows = []
    for item in found["cut_offs"]:
        score = "" if item["cutoff_score"] is None else f"{item['cutoff_score']:.3f}"
        limit = "" if item["limit"] is None else f"{item['limit']:,}"
        rule = item.get("rule", "") + (f": {item['condition']}" if item.get("condition") else "")
        rows.append((item["type"].replace("_", " "), item["filter"], f"{item['considered']:,}", limit, score, rule))
    names = ("Kind", "Filter", "Considered", "Limit", "Lowest score kept", "Rule")
    yield from _table(names, rows, "<caption>Records that a filter or limit kept from becoming candidates.</caption>")


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> Iterator[str]:
    """Yield a table, the last of its card."""
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    yield f'<div class="scroll"><table>{caption}<thead><tr>{heads}</tr></thead><tbody>\n'
    for row in rows:
        yield "<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>\n"
    yield "</tbody></table></div>\n</section>\n"


def _rules(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["rules"]:
        return
    yield '<section class="card" aria-labelledby="rules-title">\n<h2 id="rules-title">Rules of injection</h2>\n'
    names = ("rule", "memory", "mode", "priority", "included", "candidates", "tokens")
    yield from _table(
        [name.capitalize() for name in names], [[item[name] for name in names] for item in found["rules"]]
    )


def _foot(found: Mapping[str, Any]) -> Iterator[str]:
    inputs = found["inputs"]
    position = inputs["position"]
    yield "<footer>\n"
    yield f"<span>Task <code>{_e(found['trajectory_id'])}</code></span>\n"
    yield f"<span>Configuration <code>{_e(inputs['config_hash'])}</code></span>\n"
    yield f"<span>Store position {position['sequence']:,}, epoch <code>{_e(position['epoch'])}</code></span>\n"
    yield f"<span>Tokens counted by {_e(inputs['estimator'])}; scores by {_e(inputs['evaluator'])}</span>\n</footer>\n"


def _candidates(picture: Picture) -> str:
    """Return the excluded candidates as JSON that no text can end or start a tag in."""
    rows = [
        [
            item["rank"],
            str(item["type"]).replace("_", " "),
            visible(picture.labels.get(item["rank"], "")),
            visible(item["section"]),
            item["rule_id"],
            visible(item["reason"]),
            round(float(item["relevance"]), 6),
            item["would_have_tokens"],
            item["id"] or "",
            item["breakdown"],
            visible(item.get("rule", "")),
        ]
        for item in picture.explained["exclusions"]
    ]
    data = json.dumps({"rows": rows, "meanings": _REASONS}, ensure_ascii=False, separators=(",", ":"))
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
