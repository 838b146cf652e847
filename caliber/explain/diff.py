"""Difference of two windows: sources that came, went or changed, edits of the text, the break of the prompt cache."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from caliber.explain.explainer import beginning
from caliber.model.context import SourceType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.window_diff import ChangeKind, PromptCache, SourceChange, TextEdit, WindowDiff
from caliber.model.windows import ContextWindow

Key = tuple[SourceType, uuid.UUID | str]
Tokens = Callable[[str], int]
"""Counts the tokens of a text as the window after does."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of two windows, with its query and the reason why a record is, or is not, in it."""

    window: ContextWindow
    query: str | None
    reason: Callable[[Key], str]


@dataclass(frozen=True, slots=True)
class _Item:
    """A source of a window. Units: ``start`` and ``end`` are characters of the window's text."""

    key: Key
    section: str
    version: int
    tokens: int
    start: int
    end: int
    text: str


def compare(before: Side, after: Side, tokens: Tokens) -> WindowDiff:
    """Return the difference of two windows."""
    old, new = _items(before.window), _items(after.window)
    places = ({item.key: at for at, item in enumerate(items)} for items in (old, new))
    was, now = places
    kept = _kept(old, new, was)
    keys = [*(item.key for item in new), *(item.key for item in old if item.key not in now)]
    changes = []
    for key in keys:
        change = _change(key, (before, after), (old, new), (was.get(key), now.get(key)), kept)
        if change is not None:
            changes.append(change)
    first, last = before.window, after.window
    numbers = {
        (change.source_type, change.id or change.section_after or change.section_before): at
        for at, change in enumerate(changes)
    }
    return WindowDiff(
        before=first.window_id,
        after=last.window_id,
        same_configuration=first.config_hash == last.config_hash,
        query_before=before.query,
        query_after=after.query,
        max_tokens_before=first.max_tokens,
        max_tokens_after=last.max_tokens,
        used_tokens_before=first.used_tokens,
        used_tokens_after=last.used_tokens,
        changes=tuple(changes),
        edits=_edits(first.text, last.text, [(old[was[key]], new[now[key]]) for key in keys if key in kept]),
        cache=_cache(first, last, (old, new), changes, numbers, tokens),
    )


def _items(window: ContextWindow) -> list[_Item]:
    out, at = [], 0
    for section in window.sections:
        for source in section.sources:
            start, end = source.span
            key = (source.source_type, section.name if source.id is None else source.id)
            text = section.content[start:end]
            out.append(_Item(key, section.name, source.version, source.tokens, at + start, at + end, text))
        at += len(section.content)
    return out


def _kept(old: Sequence[_Item], new: Sequence[_Item], was: Mapping[Key, int]) -> set[Key]:
    """Return the sources that stay in their section and their order: a longest rising sequence of the old places."""
    common = [item for item in new if item.key in was and old[was[item.key]].section == item.section]
    tails: list[int] = []
    ends: list[int] = []
    links: list[int] = []
    for at, item in enumerate(common):
        place = was[item.key]
        length = bisect_left(tails, place)
        links.append(ends[length - 1] if length else -1)
        tails[length : length + 1] = [place]
        ends[length : length + 1] = [at]
    out, at = set(), ends[-1] if ends else -1
    while at >= 0:
        out.add(common[at].key)
        at = links[at]
    return out


def _change(
    key: Key,
    sides: tuple[Side, Side],
    items: tuple[Sequence[_Item], Sequence[_Item]],
    places: tuple[int | None, int | None],
    kept: set[Key],
) -> SourceChange | None:
    """Return the change of one source, or None if it has none."""
    old, new = (None if at is None else side[at] for side, at in zip(items, places, strict=True))
    kinds: list[ChangeKind] = []
    if old is None or new is None:
        kinds.append(ChangeKind.CAME if old is None else ChangeKind.WENT)
    else:
        if key not in kept:
            kinds.append(ChangeKind.MOVED)
        if old.text != new.text:
            kinds.append(_text_change(old, new))
    if not kinds:
        return None
    shown = new or old
    assert shown is not None
    return SourceChange(
        kinds=tuple(kinds),
        source_type=key[0],
        id=key[1] if isinstance(key[1], uuid.UUID) else None,
        label=beginning(shown.text),
        section_before=None if old is None else old.section,
        section_after=None if new is None else new.section,
        place_before=places[0],
        place_after=places[1],
        tokens_before=0 if old is None else old.tokens,
        tokens_after=0 if new is None else new.tokens,
        reason_before=sides[0].reason(key),
        reason_after=sides[1].reason(key),
    )


def _text_change(old: _Item, new: _Item) -> ChangeKind:
    if old.version != new.version or len(old.text) == len(new.text):
        return ChangeKind.REVISED
    return ChangeKind.SHORTENED if len(new.text) < len(old.text) else ChangeKind.LENGTHENED


def _common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginnings."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        same = one.startswith(other[low:middle], low)
        low, high = (middle, high) if same else (low, middle - 1)
    return low


def _edits(old: str, new: str, anchors: Sequence[tuple[_Item, _Item]]) -> tuple[TextEdit, ...]:
    """Return the replacements between sources that have the same text at the same place in the order."""
    out = []
    done_old = done_new = 0
    same = [
        (before.start, before.end, after.start, after.end) for before, after in anchors if before.text == after.text
    ]
    for old_start, old_end, new_start, new_end in [*same, (len(old), len(old), len(new), len(new))]:
        gone, added = old[done_old:old_start], new[done_new:new_start]
        if gone != added:
            lead = _common(gone, added)
            most = min(len(gone), len(added)) - lead
            tail = _common(gone[::-1][:most], added[::-1][:most])
            removed, inserted = len(gone) - lead - tail, added[lead : len(added) - tail]
            out.append(TextEdit(done_old + lead, removed, inserted))
        done_old, done_new = old_end, new_end
    return tuple(out)


def _cache(
    before: ContextWindow,
    after: ContextWindow,
    items: tuple[Sequence[_Item], Sequence[_Item]],
    changes: Sequence[SourceChange],
    numbers: Mapping[tuple[SourceType, uuid.UUID | str | None], int],
    tokens: Tokens,
) -> PromptCache:
    prefix = before.text[: _common(before.text, after.text)]
    said = zip(before.to_messages(), after.to_messages(), strict=False)
    messages = 0
    for one, other in said:
        if one != other:
            break
        messages += 1
    broken = len(prefix) < len(before.text)
    number = None
    section = cause = None
    if broken:
        section = _section_at(after, len(prefix)) or _section_at(before, len(prefix))
        number = _first_change(items, len(prefix), changes, numbers)
        cause = "the frame of the section changed: its heading, or the separator before what follows"
        if number is not None:
            cause = sentence(changes[number])
    return PromptCache(
        broken=broken,
        common_bytes=len(prefix.encode("utf-8", "surrogatepass")),
        common_tokens=tokens(prefix),
        tokens=tokens(after.text),
        messages=messages,
        section=section,
        cause=cause,
        change=number,
    )


def _section_at(window: ContextWindow, offset: int) -> str | None:
    """Return the section of a character of a window's text."""
    end = 0
    for section in window.sections:
        end += len(section.content)
        if offset < end:
            return section.name
    return None


def _first_change(
    items: tuple[Sequence[_Item], Sequence[_Item]],
    offset: int,
    changes: Sequence[SourceChange],
    numbers: Mapping[tuple[SourceType, uuid.UUID | str | None], int],
) -> int | None:
    """Return the change of the source at the first difference: one that came or went before one that moved."""
    found = []
    for side in items:
        here = next((item for item in side if item.end > offset), None)
        if here is not None and here.key in numbers:
            found.append(numbers[here.key])
    ends = (ChangeKind.CAME, ChangeKind.WENT)
    return min(found, key=lambda at: (changes[at].kinds[0] not in ends, at), default=None)


def sentence(change: SourceChange) -> str:
    """Return a change in words, with its reason."""
    kind = str(change.source_type.value).replace("_", " ")
    verbs = " and was ".join(kind.value for kind in change.kinds)
    reason = change.reason_after
    where = change.section_after or change.section_before
    if change.section_before and change.section_after and change.section_before != change.section_after:
        where = f"{change.section_before} to {change.section_after}"
    return f"{kind} {verbs} ({where}): {reason}"


def lines_of(diff: WindowDiff) -> list[str]:
    """Return a difference as lines for people."""
    cache = diff.cache
    out = [f"window {diff.before}", f"    to {diff.after}"]
    if diff.query_before != diff.query_after:
        out.append(f"  query    {diff.query_before or 'none'}  ->  {diff.query_after or 'none'}")
    used = f"{diff.used_tokens_before:,} of {diff.max_tokens_before:,}"
    out.append(f"  budget   {used}  ->  {diff.used_tokens_after:,} of {diff.max_tokens_after:,} tokens")
    if not diff.same_configuration:
        out.append("  the configuration changed between them")
    share = f" ({cache.common_tokens / cache.tokens:.0%})" if cache.tokens else ""
    common = f"the first {cache.common_tokens:,} of {cache.tokens:,} tokens{share}"
    out.append(f"  prompt cache: {common}, {cache.common_bytes:,} bytes, {cache.messages:,} messages are the same")
    if cache.broken:
        out += [f"    it breaks in section {cache.section}:", f"    {cache.cause}"]
    else:
        out.append("    it holds: the text before is the beginning of the text after")
    for kind in ChangeKind:
        mine = [change for change in diff.changes if kind in change.kinds]
        if mine:
            out.append(f"{kind.value}: {len(mine):,}")
        for change in mine:
            sections = " -> ".join(dict.fromkeys(filter(None, (change.section_before, change.section_after))))
            tokens = f"{change.tokens_before:,} -> {change.tokens_after:,} tokens"
            out.append(f"  {sections:<10} {change.label}  ({tokens})")
            out += [f"             before: {change.reason_before}", f"             now:    {change.reason_after}"]
    if not diff.changes:
        out.append("no source changed")
    return out
