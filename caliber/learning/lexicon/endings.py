"""Phrases with which facts end and plans move, as alternatives for patterns; each list is for matters of a kind."""

from __future__ import annotations

import re
from typing import Final


def _either(text: str) -> str:
    """Return a pattern of the phrases of a list, which commas part."""
    return "|".join(phrase.strip() for phrase in text.split(",") if phrase.strip())


QUIT: Final = _either("""
    quit, quitting, gave up, given up, giving up, give up, packed in, jacked in, stopped(?! for\b), stop, cut out,
    swore off, sworn off, lost interest, fell out of love, went off, gone off, grew out, grown out, outgrew,
    outgrown, got over, gotten over, used to, no longer, never again, moved on, said goodbye, retired, ditched,
    ditch
""")
"""Before a habit or a taste."""
LEFT: Final = _either("""
    quit, quitting, dropped, handed over, hand over, handed in, passed on, gave up, given up, give up, stepped
    down, step down, stepped back, stepping down, resigned, resign, dropped out, pulled out, backed out, parted
    ways, walked away, moved out, wound down, wound up, no longer, no more, stopped(?! (?:for|at|by)\b), used to,
    retired
""")
"""Before a role, a household or another matter of long standing."""
FIRED: Final = _either("""
    quit, quitting, left, leave, leaving, resigned, resign, retired, retire, took retirement, took early
    retirement, was laid off, got laid off, been laid off, was fired, got fired, been fired, was sacked, got
    sacked, been sacked, was let go, got let go, been let go, was made redundant, got made redundant, been made
    redundant, got kicked out, was kicked out, walked out, walked away, parted ways, moved on, stepped down, step
    down, stepping down, handed in my notice, handed in the notice, gave notice, gave my notice, put in my notice,
    handed over, hand over, no longer, no more, gave up, given up, give up, dropped out, stopped working, stopped
    teaching, stopped driving, stopped cleaning, stopped nursing, stopped coaching, stopped doing, quit working,
    quit teaching, quit driving, quit cleaning, quit nursing, quit coaching, used to work, used to be
""")
"""Before an employer or a job."""
PASSED: Final = _either("""
    passed, failed, aced, nailed, flunked, survived, sat
""")
"""Before an exam that is over."""
DROPPED: Final = _either("""
    cancel+ed, cancel, called off, call off, scrapped, scrap, dropped, drop, shelved, binned, axed, ditched, gave
    up, given up, give up, pulled out, backed out, bailed, quit
""")
"""Before a plan."""
PARTED: Final = _either("""
    broke up, broken up, split, split up, parted ways, divorced, no longer with, ended things, finished things
""")
"""Before a partner."""
SOLD: Final = _either("""
    sold, sell, traded, traded in, scrapped, got rid, gotten rid, get rid, wrote off, written off, gave away,
    swapped, gave back, returned, no longer
""")
"""Before a thing that is owned."""
UNUSED: Final = _either("""
    stopped using, quit using, no longer use, no longer using, ditched, dropped, gave up, moved away, moved off,
    done with, uninstalled, got rid
""")
"""Before a tool."""
FELL_THROUGH: Final = _either("""
    over, ended, gone, done, history, finished, fell through, fallen through, cancel+ed, called off, off,
    scrapped, shelved, no more, closed down, shut down, folded, collapsed, behind me, behind us, no longer, not
    happening, split, split up, broke up, broken up, not going to happen, not gonna happen, did not last, did not
    work out, did not happen, did not stick, not going ahead, not a thing, not on, off the table, a thing of the
    past, dead, dissolved, disbanded, expired
""")
"""Behind a plan, a role and the like."""
FADED: Final = _either("""
    over for me, over for us, over for good, done for me, done for good, finished for me, history for me, lasted,
    no more, behind me, split up, broke up, broken up, disbanded, dissolved, closed down, shut down, folded, did
    not last, did not stick, a thing of the past, gone for good, ended for good
""")
"""Behind a habit, a taste or a diet."""
BUST: Final = _either("""
    closed down, shut down, folded, went bust, gone bust, went under, let me go, laid me off, fired me, sacked me,
    made me redundant, dissolved, bankrupt, history, behind me
""")
"""Behind an employer or a job."""
GONE: Final = _either("""
    died, passed away, is dead, dumped me, left me, broke up with me
""")
"""Behind a partner."""
DIED: Final = _either("""
    died, passed away, is dead
""")
"""Behind a relative or an animal."""
STOLEN: Final = _either("""
    died, dead, gone, stolen, sold, scrapped, written off, totalled, totaled
""")
"""Behind a thing that is owned."""
SHIFTED: Final = _either("""
    postponed, postpone, postponing, pushed, push, pushing, moved, move, moving, delayed, delay, delaying,
    rescheduled, reschedule, shifted, shift, shifting, put off, brought forward, bumped, changed, change, swapped
""")
"""Before and behind a plan that gets another day."""
_CUE: Final = re.compile(
    rf"\b(?:{QUIT}|{LEFT}|{FIRED}|{DROPPED}|{PARTED}|{SOLD}|{UNUSED}|{FELL_THROUGH}|{FADED}|{BUST}|{GONE}|{STOLEN}|"
    rf"{SHIFTED}|not|no|never|\w+n't|longer|more|anymore|again|now|back|fine|ok|okay|better|healed|cured|cleared|fixed|"
    r"mended|wrong|mind|actually|round|around|warmed|warming|took|taken|came|come|shut|closed)\b",
    re.IGNORECASE,
)


def may_end(said: str) -> bool:
    """Return whether a clause has a word with which a fact may end."""
    return _CUE.search(said) is not None
