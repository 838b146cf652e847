"""Choice of a statement's entity and type: a quoted term, file, identifier, capitalised name, or first words."""

from __future__ import annotations

import re
from itertools import pairwise

MAX_ENTITY_CHARS = 80
_MAX_CHARS_READ = 2_000
_TOPIC_WORDS = 3

_QUOTED = re.compile(r"`([^`\n]{1,80})`|\"([^\"\n]{2,80})\"|“([^”\n]{2,80})”")
_TOKEN = re.compile(r"[^\s`\"“”,;!?()\[\]{}<>=]{1,200}(?:\(\))?")
_FILE = re.compile(
    r"[\w./~\\-]{1,150}\.(?:py|pyi|js|jsx|ts|tsx|c|h|cc|cpp|hpp|rs|go|java|kt|rb|php|cs|swift|scala|sh|sql|toml|yaml|yml"
    r"|json|xml|html|css|md|rst|txt|cfg|ini|lock|csv|env|proto|ipynb)(?::\d{1,7})?",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"[A-Za-z_]\w{0,60}(?:\.[A-Za-z_]\w{0,60}){1,6}")
_OPTION = re.compile(r"--[a-z][\w-]{1,60}")
_ORDINARY = re.compile(r"[A-Za-z][a-z'’]*-?[a-z'’]*")

# Words that start sentences or introduce a statement; none of them is its subject.
_STOP = """
a about above adopt after again agreed all allowed already also always am an and any are as at avoid be because been
before being below but by can cannot cause chose chosen constraint could decided decision dislike do does doing don't
done down each either enjoy ensure every exceed fact few fine first follow for from further go going had has hate have
having he her here hers him his how i i'd i'll i'm i've if important in into is it it's its just keep let let's like
limit love make many maximum may me might mind more most must my need needs never next no nor not note now of off ok
okay on once only opted or other our out over own please prefer preference preferred put rather really remember
required requirement same set settled shall she should since so some standardise standardize stick such sure switch
team than that that's the their them then there these they they're this those through thus to too under until up use
used using very via want was we we'll we're we've well were what when where which while who why will with without
would yes yet you you'll you're your
"""
STOP_WORDS = frozenset(_STOP.split())


def name_entity(statement: str) -> tuple[str, str] | None:
    """Return (entity, entity_type) of a statement, or None when it names nothing.

    The types are file, identifier, name (quoted or capitalised) and topic (its first content words).
    """
    text = statement[:_MAX_CHARS_READ]
    quoted = _QUOTED.search(text)
    if quoted is not None:
        term = " ".join((quoted[1] or quoted[2] or quoted[3]).split())
        if term:
            return term, _kind_of(term) or "name"
    tokens = [match.group().strip(".:'’*_") or match.group() for match in _TOKEN.finditer(text)]
    for token in tokens:
        kind = _kind_of(token)
        if kind is not None:
            return token[:MAX_ENTITY_CHARS], kind
    name = _capitalised(tokens)
    if name is not None:
        return name[:MAX_ENTITY_CHARS], "name"
    topic = [
        token.lower()
        for place, token in enumerate(tokens)
        if token[0].isalpha() and token.lower() not in STOP_WORDS and not _is_unit(tokens, place)
    ]
    return (" ".join(topic[:_TOPIC_WORDS])[:MAX_ENTITY_CHARS], "topic") if topic else None


def _kind_of(token: str) -> str | None:
    if len(token) < 2 or token.lower().startswith(("http://", "https://", "www.")):
        return None
    if _FILE.fullmatch(token):
        return "file"
    plain = token.removesuffix("()")
    if plain != token and plain.replace(".", "_").isidentifier():
        return "identifier"
    if _OPTION.fullmatch(token) or ("_" in plain.strip("_") and plain.isidentifier()):
        return "identifier"
    if _DOTTED.fullmatch(plain) and plain.lower() not in ("e.g", "i.e", "a.m", "p.m", "u.s", "u.k"):
        return "identifier"
    # CamelCase: a capital after a small letter, such as SQLite or getUser.
    if plain.isalnum() and any(low.islower() and high.isupper() for low, high in pairwise(plain)):
        return "identifier"
    return None


def _capitalised(tokens: list[str]) -> str | None:
    """Return the first run of capitalised words; alone at the start of a sentence only if it is no ordinary word."""
    run: list[str] = []
    first = 0
    for place, token in enumerate([*tokens, ""]):
        capital = bool(token) and token[0].isupper() and token.lower() not in STOP_WORDS and not _is_unit(tokens, place)
        if capital and (not run or len(run) < 4):
            first = first if run else place
            run.append(token)
            continue
        if run and (first > 0 or len(run) > 1 or not _ORDINARY.fullmatch(run[0])):
            return " ".join(run).removesuffix("'s").removesuffix("’s")
        run = []
    return None


def _is_unit(tokens: list[str], place: int) -> bool:
    """Return whether the word follows a number, as in "5 MB"."""
    return place > 0 and tokens[place - 1][0].isdigit()
