"""Phrases of two words that mean one thing together, as one token each."""

from __future__ import annotations

from typing import Final

from caliber.text.contradiction.opposites import rows_of

PHRASES: Final = {
    (first, second): meaning
    for words, meaning in rows_of(
        """
        turn down | turned_down
        went up | went_up
        goes up | went_up
        gone up | went_up
        went down | went_down
        goes down | went_down
        gone down | went_down
        runs out | runs_out
        ran out | runs_out
        pull request | pull_request
        pull requests | pull_request
        merge requests | pull_request
        no other | nothing_else
        at present | now
        last day | ends
        not mind | likes
        at once | immediately
        these days | now
        out order | broken
        of order | broken
        on time | punctual
        on schedule | punctual
        behind schedule | late
        passed away | died
        in person | in_person
        by hand | manually
        nobody else | nothing_else
        no one | nobody
        merge request | pull_request
        chief executive | chief_executive
        managing director | managing_director
        married to | spouse
        fan of | likes
        fond of | likes
        keen on | likes
        close by | close_by
        above all | particularly
        turned down | turned_down
        turns down | turned_down
        cannot stand | cannot_stand
        not stand | cannot_stand
        rolled back | rolled_back
        roll back | roll_back
        shut down | shut_down
        in business | in_business
        used to | used_to
        going to | going_to
        nothing else | nothing_else
        nowhere else | nowhere_else
        time zone | time_zone
        back then | back_then
        read only | read_only
        no longer | not
        not anymore | not
        far from | not
        meat eater | meat_eater
        plans to | plan_to
        plan to | plan_to
        planned to | planned_to
        out of | out_of
        switched off | disabled
        turned off | disabled
        switched on | enabled
        turned on | enabled
        free of | without
        apart from | apart_from
        in favour | favour
        in favor | favour
        kick off | start
        kicks off | start
        based in | inhabits
        live in | inhabits
        lives in | inhabits
        living in | inhabits
        at least | at_least
        at most | at_most
        up to | up_to
        more than | more_than
        less than | less_than
        fewer than | less_than
        no more | no_more
        came out | released
        comes out | released
        rather than | instead
        instead of | instead
        would rather | prefer
        would like | want
        had rather | prefer
        right now | now
        works as | job
        work as | job
        works for | employer
        working as | job
        works at | employer
        work at | employer
        working at | employer
        working for | employer
        mother tongue | native
        native language | native
        first language | native
        native tongue | native
        square metres | m²
        square meters | m²
        square metre | m²
        square kilometres | km²
        square feet | ft²
        not bear | cannot_stand
        not abide | cannot_stand
        not care | dislikes
        take effect | start
        takes effect | starts
        took effect | started
        """
    )
    for first, second in [words.split()]
}
"""Words that mean one thing together."""
