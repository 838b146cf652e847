"""Rules of dates in a person's calendar: exams, appointments, trips, weddings."""

from __future__ import annotations

from typing import Final

from caliber.learning.lexicon import words
from caliber.learning.matters.patterns import AM, HAVE, rule

_EVENT: Final = (
    r"(?P<x>(?:(?!(?:is|on|was|for|in|at|and|to|a|an|the|my|our|have|got|had)\b)[\w'-]+ ){0,2}(?:wedding|surgery|"
    r"operation|op|exams?|interview|flight|appointment|driving test|viva|graduation|concert|recital|race|marathon|"
    r"check-?up|scan|biopsy|hearing|audition|move|thesis defen[cs]e|presentation|christening|baptism|funeral|reunion|"
    r"retreat|due date|c-section|mri|x-ray|bar mitzvah|performance|gig|tournament|match))"
)
RULES: Final = (
    rule(
        "plan/{x}",
        rf"(?:.*\b(?:my|our) |(?:{HAVE}(?:got |have )?(?:an? |the |my )?)|(?:an? )?){_EVENT}(?: is| are)?"
        r"(?: booked| planned| scheduled| set| fixed| coming up)?(?: on| for| in)? V$",
        "{x} on {v}",
        words.is_due,
        single=True,
    ),
    rule(
        "plan/{x}",
        r"(?:.*\b)?(?:pushed|moved|postponed|rescheduled|shifted|changed) (?:my|our) (?P<x>[\w' -]{2,30}?)(?: from "
        r".+?)?(?: back| forward)? to V$",
        "{x} on {v}",
        words.is_due,
        single=True,
        changes=True,
    ),
    rule(
        "plan/{x}",
        r"the (?P<x>move|due date|surgery|op|operation|funeral|christening|scan|interview|exam|viva|appointment)(?: "
        r"is| are)(?: now| booked| planned| scheduled| set| fixed)?(?: on| for| in)? V$",
        "{x} on {v}",
        words.is_due,
        single=True,
        changes=True,
    ),
    rule(
        "plan/trip to {x}",
        rf"{AM}(?:off|going|flying|heading|travell?ing|driving|sailing|on my way) to (?P<x>(?-i:[A-Z])[\w' -]*?) "
        rf"(?:on |in |for )?V$",
        "is going to {x} on {v}",
        words.is_due,
        single=True,
    ),
    rule(
        "plan/wedding",
        rf"{AM}getting (?P<a>married)(?: to (?-i:[A-Z])\w+)? (?:in |on )?V$",
        "is getting {a} in {v}",
        words.is_due,
        single=True,
    ),
)
