"""Subjects of clauses: the user, a relative or animal by role and name, or the person that a pronoun stands for.

A clause about somebody else is turned into the user's own words ("she loves jazz" into "I love jazz"), so that one set
of rules reads both.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.lexicon.people import ANIMALS, OTHERS, RELATIVES, SIZE
from caliber.learning.rules.candidates import Person

_MAX_PEOPLE: Final = 100
"""The people of one talk that are known at a time."""
_I = re.IGNORECASE
_TEXT_HIS = """
brother husband son dad father boyfriend fiancé fiance uncle nephew grandpa grandfather granddad stepson stepfather
grandson
"""
_HIS: Final = frozenset(_TEXT_HIS.split())
_TEXT_HER = """
sister wife daughter mom mum mother girlfriend fiancée fiancee aunt niece grandma grandmother granny stepdaughter
stepmother granddaughter
"""
_HER: Final = frozenset(_TEXT_HER.split())
_TEXT_OPEN = """
my your his her our their the a an is was has had will and or but who that which in on at to from with for
"""
_OPEN: Final = frozenset(_TEXT_OPEN.split())
_ROLE = re.compile(
    rf"^(?:(?:my|our|one of (?:my|the|our)) )(?P<role>{SIZE}(?:{RELATIVES}|{ANIMALS}|{OTHERS}|kids))"
    r"(?:'s name)?(?P<comma>,)? ?(?P<name>(?-i:[^\W\d_a-z][\w'’-]+))?,?(?= |'s\b)",
    _I,
)
_BARE = re.compile(
    r"^(?P<role>mum|mom|mama|mother|dad|papa|father|grandma|grandpa|granny|(?:wife|husband|daughter|son|sister|"
    r"brother|boyfriend|girlfriend|gf|bf|hubby)(?='s\b| is\b| has\b))(?= |'s\b)",
    _I,
)
_PRONOUN = re.compile(r"^(?P<word>he|she)(?= |'s\b)", _I)
_NAMED = re.compile(r"^(?P<name>[^\W\d_][\w'’-]*?)(?= |'s\b)")
_MENTION = re.compile(
    rf"\b(?:my|our) (?P<role>{SIZE}(?:{RELATIVES}|{ANIMALS}|{OTHERS}))\b(?!')"
    r"(?:,? (?P<name>(?-i:[^\W\d_a-z][\w-]+))\b(?! (?:and|or|&) (?-i:[A-Z])))?",
    _I,
)
_OWNED = re.compile(
    rf"\b(?:an?|one|another) (?:[a-z-]+ )?(?P<role>{SIZE}(?:{RELATIVES}|{ANIMALS})),? (?:called|named) "
    r"(?P<name>(?-i:[^\W\d_a-z])[\w-]+)",
    _I,
)
_GIVEN = re.compile(r"[^\W\d_a-z][^\W\d_]+")
_SEVERAL = re.compile(
    r"\b(?:have|got|my|our|two|three|four|five|\d) (?P<roles>kids|children|sons|daughters|brothers|sisters|boys|"
    r"girls|cats|dogs)\b(?: too| also| now)?(?: are)?(?: called| "
    r"named)?[,:(\s]+(?P<names>(?-i:[^\W\d_a-z])[^\W\d_]+(?:,? \(?\d{1,2}\)?)?(?:, (?:and "
    r")?(?-i:[^\W\d_a-z])[^\W\d_]+(?:,? \(?\d{1,2}\)?)?)*,? (?:and|&) (?-i:[^\W\d_a-z])[^\W\d_]+)",
    _I,
)
_ROLES: Final = {
    "kids": "child", "children": "child", "sons": "son", "daughters": "daughter", "brothers": "brother",
    "girls": "daughter", "sisters": "sister", "boys": "son", "cats": "cat", "dogs": "dog",
}  # fmt: skip
_OWNS = re.compile(r"^(?:i|we)(?:'ve| have)? (?:\w+ )?(?:have|own|got|adopted|bought|rescued)\b", _I)
_CALLED = re.compile(
    r"^(?:(?:his|her|its) name(?:'s| is)|(?P<word>he|she)(?:'s| is) (?:called|named))(?: now)? "
    r"(?P<name>(?-i:[^\W\d_a-z])[\w'-]+)$",
    _I,
)
_ADVERBS = r"(?:(?:\w+ly|just|also|now|still|always|already|never) )*"
_VERBS: Final = {
    "has": "have", "had": "had", "lives": "live", "works": "work", "loves": "love", "likes": "like", "hates": "hate",
    "speaks": "speak", "plays": "play", "teaches": "teach", "studies": "study", "eats": "eat", "drinks": "drink",
    "prefers": "prefer", "enjoys": "enjoy", "adores": "adore", "owns": "own", "drives": "drive", "collects": "collect",
    "dislikes": "dislike", "despises": "despise", "takes": "take", "uses": "use", "runs": "run", "suffers": "suffer",
    "goes": "go", "needs": "need", "swims": "swim", "cycles": "cycle", "paints": "paint", "knits": "knit",
    "dances": "dance", "climbs": "climb", "sings": "sing", "bakes": "bake", "skis": "ski", "surfs": "surf",
    "supports": "support", "rents": "rent", "keeps": "keep", "grows": "grow", "wears": "wear", "walks": "walk",
    "learns": "learn", "chairs": "chair", "coaches": "coach", "manages": "manage", "does": "do", "gets": "get",
    "starts": "start", "smokes": "smoke", "volunteers": "volunteer", "won't": "won't", "refuses": "refuse",
}  # fmt: skip
_REST = re.compile(
    rf"^(?:'s|'ve| has| have) (?P<done>(?:just |now |recently |already )?(?:moved|left|joined|started|got|quit|"
    rf"become|"
    r"been|retired|turned|gone|stopped|switched|adopted|developed|outgrown)\b.*)$|"
    rf"^(?P<be>'s|(?: is)) (?P<not>not )?(?P<state>.+)$|^ (?P<be2>isn't) (?P<state2>.+)$|^ "
    rf"(?P<adverbs>{_ADVERBS})(?P<verb>{'|'.join(_VERBS)}|doesn't|does not|can't|cannot|no longer \w+|was|turned|"
    r"moved|ran|got|joined|started|left|lost|quit|became|retired|died|passed|switched|adopted|broke|stopped|signed|"
    r"grew|swims|runs|cycles|paints|knits|dances|climbs|sings|bakes|skis|surfs|liked|loved|supports|rents|changed|"
    r"gave|used|became|keeps|grows|wears|walks|speaks|learns|chairs|coaches|manages|does|gets)\b(?P<rest>.*)$",
    _I,
)


_SAME: Final = {
    "mum": "mother", "mom": "mother", "dad": "father", "granny": "grandmother", "grandma": "grandmother",
    "grandpa": "grandfather", "granddad": "grandfather", "fiancee": "fiancée", "gf": "girlfriend", "bf": "boyfriend",
    "hubby": "husband",
    "mama": "mother", "papa": "father", "mommy": "mother", "daddy": "father", "sis": "sister", "bro": "brother",
}  # fmt: skip
"""Roles that are one role by another word."""


class Subjects:
    """The people that a conversation spoke of, the newest last, so that pronouns and names are understood."""

    def __init__(self) -> None:
        self._people: list[Person] = []
        self._clause = 0
        self._mentioned: dict[Person, int] = {}  # the number of the clause that spoke of a person last

    def mention(self, person: Person) -> Person:
        """Add a person to those spoken of; return the person with the name or role that is known already."""
        person = person._replace(role=_SAME.get(person.role, person.role))
        for known in reversed(self._people):
            same_name = bool(person.name) and known.name == person.name
            same_role = bool(person.role) and known.role == person.role and not (person.name and known.name)
            if same_name or same_role:
                person = Person(person.role or known.role, person.name or known.name)
                break
        others = [each for each in self._people if each.role != person.role or (each.name and each.name != person.name)]
        self._people = [*others[1 - _MAX_PEOPLE :], person]
        self._mentioned[person] = self._clause
        return person

    def read(self, clause: str) -> tuple[Person | None, str] | None:
        """Return the subject of a clause and the clause in that person's own words; None for the user's own clause.

        The person is None where a clause is about somebody who is not known.
        """
        found = _ROLE.match(clause)
        if found is not None:
            name = found["name"] or ""
            if name.casefold() in _OPEN:
                return None
            person = self.mention(Person(found["role"].casefold(), name))
            return self._own(person, clause[found.end() :])
        found = _BARE.match(clause)
        if found is not None:
            return self._own(self.mention(Person(found["role"].casefold(), "")), clause[found.end() :])
        found = _PRONOUN.match(clause)
        if found is not None:
            known = self._antecedent(found["word"].casefold())
            return self._own(known, clause[found.end() :])
        found = _NAMED.match(clause)
        if found is not None:
            known = self._known(found["name"])
            if known is not None:
                return self._own(self.mention(known), clause[found.end() :])
        return None

    def partner(self, roles: Collection[str]) -> Person | None:
        """Return the one person with a name and one of these roles, or None."""
        found = [each for each in self._people if each.name and each.role in roles]
        return found[0] if len(found) == 1 else None

    def courts(self, roles: Collection[str]) -> bool:
        """Return whether the talk spoke of a partner, or of a person with one of these roles."""
        return any(each.role in roles or each.role == "partner" for each in self._people)

    def renamed(self, person: Person, role: str) -> Person:
        """Return a person with another role, by which the talk speaks of them from now on."""
        new = person._replace(role=role)
        self._people = [new if each == person else each for each in self._people]
        return new

    def begins(self, clause: str) -> tuple[Person | None, str] | None:
        """Return the person whose name begins a clause, and the clause with "I" for it; None without a known one."""
        found = _NAMED.match(clause)
        known = None if found is None else self._known(found["name"])
        if found is None or known is None:
            return None
        return self.mention(known), f"I {clause[found.end() :].strip()}"

    def mentions(self, clause: str) -> list[Person]:
        """Return the relatives and animals that a clause names with their role, wherever it does."""
        self._clause += 1
        found = [self._spoken(each) for each in _MENTION.finditer(clause)]
        if _OWNS.match(clause):
            found += [self._spoken(each) for each in _OWNED.finditer(clause)]
        for listed in _SEVERAL.finditer(clause):
            role = _ROLES[listed["roles"].casefold()]
            found += [self.mention(Person(role, name)) for name in _GIVEN.findall(listed["names"])]
        called = _CALLED.match(clause)
        if called is not None:
            known = self._antecedent((called["word"] or ("he" if clause[:2].casefold() == "hi" else "she")).casefold())
            if known is not None and not known.name:
                found.append(self.mention(known._replace(name=called["name"])))
        return [each for each in found if each.name and not is_other(each.role)]

    def _known(self, name: str) -> Person | None:
        return next((each for each in reversed(self._people) if each.name.casefold() == name.casefold()), None)

    def _spoken(self, found: re.Match[str]) -> Person:
        name = found["name"] or ""
        named = name and name.casefold() not in _OPEN and words.is_given_name(name)
        return self.mention(Person(found["role"].casefold(), name if named else ""))

    def _antecedent(self, pronoun: str) -> Person | None:
        """Return the person that a pronoun stands for, or None where it may be one of two."""
        others = _HER if pronoun == "he" else _HIS
        fitting = [each for each in self._people if each.role.split(" ")[-1] not in others]
        if len(fitting) > 1 and self._mentioned.get(fitting[-2]) == self._mentioned.get(fitting[-1]):
            return None
        return fitting[-1] if fitting else None

    def _own(self, person: Person | None, rest: str) -> tuple[Person | None, str] | None:
        said = own_words(rest)
        return None if said is None else (person, said)


def own_words(rest: str) -> str | None:
    """Return the rest of a clause in the first person, or None for words that no rule would read."""
    if re.match(r"^'s (?:name|birthday|age)\b", rest, _I):
        return f"my{rest[2:]}"
    found = _REST.match(rest)
    if found is None:
        return None
    if found["done"]:
        return f"I've {found['done']}"
    if found["be"]:
        return f"I'm {found['not'] or ''}{found['state']}"
    if found["be2"]:
        return f"I'm not {found['state2']}"
    verb = found["verb"]
    plain = {"doesn't": "don't", "does not": "do not"}.get(verb.casefold()) or _VERBS.get(verb.casefold(), verb)
    return f"I {found['adverbs'] or ''}{plain}{found['rest']}"


def is_relative(role: str) -> bool:
    """Return whether a role is one in a family, and not that of an animal."""
    return re.fullmatch(SIZE + f"(?:{RELATIVES})", role, _I) is not None


def is_other(role: str) -> bool:
    """Return whether a role is neither one in a family nor that of an animal."""
    return re.fullmatch(OTHERS, role, _I) is not None


def is_animal(role: str) -> bool:
    """Return whether a role is that of an animal."""
    return re.fullmatch(SIZE + f"(?:{ANIMALS})", role, _I) is not None
