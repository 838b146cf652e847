"""Generate the example of docs/windows.md: a real window, and what explain says of its records.

Usage: python tools/gen_window.py [--check]

The store is made anew in memory under a clock that stands where this file puts it, so that the same code gives the same
page. Needs the extra embed.
"""

from __future__ import annotations

import re
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wrapping import item as entry

import caliber
from caliber.cli.show import label, peek, shortened
from caliber.model.knowledge import Note
from caliber.model.time import FixedClock

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "windows.md"
BEGIN, END = "<!-- begin: tools/gen_window.py -->\n", "<!-- end -->\n"
BUDGET = 430
KNOBS = {"embedding.embed.turn": "commit", "assembly.evict_block_turns": 8, "summaries.max_tokens": 20}
QUESTION = "When is Pixel's appointment at the vet, and what should I tell them?"
FIRST = (
    ("user", "I have a new dog! She is called Pixel, a border collie, and she is afraid of thunder."),
    ("assistant", "Congratulations! Pixel is a lovely name."),
    ("user", "She must not have chicken, it makes her itch."),
    ("assistant", "Noted: no chicken for Pixel."),
)
VET = (
    ("user", "The vet can see Pixel on Thursday at nine."),
    ("assistant", "I have put it down."),
    ("user", "They called: the appointment is on Friday at ten instead."),
    ("assistant", "Friday at ten, then."),
)
OTHER = (
    ("user", "My dog Biscuit has an appointment at the vet on Monday."),
    ("assistant", "Good luck to Biscuit."),
)
TRIP = (
    ("Can you help me plan a week in Portugal?", "Gladly. Do you prefer the coast or the towns?"),
    ("The coast, and trains rather than a car.", "Then Lisbon, Cascais and Lagos are easy to reach."),
    ("How long is the train from Lisbon to Lagos?", "About four hours, with a change in Tunes."),
    ("Is June too hot?", "In Lagos it is about 25 degrees, and the sea is still cool."),
    ("What should I pack?", "Light clothes, a jacket for the evening wind, and shoes for the cliffs."),
    ("Are there good places to eat fish?", "In Lagos, near the market. Ask for what came in the morning."),
    ("Do I need to book the train?", "For a window seat yes; tickets open sixty days before."),
    ("And the rooms?", "Book Lagos first, the small houses fill up in June."),
    ("How much money will I spend in a day?", "About ninety euros with a simple room."),
    ("Is there a market?", "On Saturdays, next to the harbour."),
    ("Can I swim there?", "Yes, the beach of Dona Ana is a short walk."),
    ("What about the lighthouse?", "It is half an hour on foot, best in the evening."),
    ("Write down that I want to leave on the eighth.", "Done: you leave on the eighth of June."),
)


def day(month: int, number: int, hour: int = 9) -> datetime:
    return datetime(2023, month, number, hour, tzinfo=UTC)


class Example:
    """The store of the example, and short ways to write into it."""

    def __init__(self) -> None:
        self.clock = FixedClock(int(day(5, 8).timestamp() * 1e6))
        config = caliber.profiles.chat_companion(":memory:", **KNOBS)
        self.memory = caliber.open(config, principal=caliber.Principal.admin(), clock=self.clock)

    def at(self, when: datetime) -> None:
        """Move the clock to an instant."""
        self.clock.advance(us=int(when.timestamp() * 1e6) - self.clock.now_us())

    def say(self, task: Any, *messages: tuple[str, str]) -> list[Any]:
        """Append messages, a minute apart."""
        scope = self.memory.current_scope(task) or self.memory.open_scope(task)
        out = []
        for role, content in messages:
            self.clock.advance(ms=60_000)
            out.append(self.memory.append_turn(scope.scope_id, role=role, content=content))
        return out

    def note(self, content: str) -> Any:
        """Add a note about the dog."""
        return self.memory.add_note(
            entity="Pixel", entity_type="dog", note_type="fact", content=content, confidence=0.9
        )

    def task(self, goal: str, user: str) -> Any:
        """Start a task of a user."""
        return self.memory.start_trajectory(goal, initiator=caliber.EntityRef.user(user)).trajectory_id


def example() -> str:
    """Return the generated part of the page."""
    one = Example()
    memory = one.memory
    first = one.task("Talk", "maria")
    one.say(first, *FIRST)
    memory.complete_trajectory(first, status="success", summary="Maria has a new dog.")
    one.at(day(5, 20))
    old = one.note("The vet sees Pixel on Thursday at nine.")
    one.say(one.task("Talk about the vet", "maria"), *VET)
    new = one.note("The vet sees Pixel on Friday at ten.")
    memory.storage.notes.update(old.note_id, superseded_by=new.note_id)
    others = one.say(one.task("Talk", "bo"), *OTHER)
    one.at(day(5, 22))
    trip = one.task("Plan a week in Portugal", "maria")
    for pair in TRIP:
        one.say(trip, ("user", pair[0]), ("assistant", pair[1]))
    memory.flush()  # summaries of turns and vectors are made behind the writes
    one.say(trip, ("user", QUESTION))
    window = memory.assemble_context(trip, max_tokens=BUDGET)
    explained = memory.explain(window.window_id)
    used, query_from = explained["budget"]["used"], explained["inputs"]["query_from"]
    lines = [f"`explain`: budget {BUDGET}, used {used}, query_from `{query_from}`. The window:", "", "```text"]
    lines += [*window.text.split("\n"), "```", "", "Each record in it:", ""]
    lines += _list(memory, explained["inclusions"], "tokens")
    lines += ["", "Each record that was considered and left out:", ""]
    lines += _list(memory, explained["exclusions"], "would_have_tokens")
    lines += ["", "Two that never came up (`memory.explain(window_id, exclusion=id)`):", ""]
    for record in (others[0].turn_id, old.note_id):
        found = memory.explain(window.window_id, exclusion=record)
        lines += entry(f"{_short(_name(peek(memory, record)))}: {found['verdict']}, {_short(found['reason'])}")
    return "\n".join(lines) + "\n"


def _list(memory: caliber.Caliber, items: list[dict[str, Any]], tokens: str) -> list[str]:
    """Return decisions as a list; turns of the conversation that follow one another for one reason are one item."""
    rows: list[tuple[str, list[dict[str, Any]], str]] = []
    for item in items:
        reason = re.sub(
            r"turn \d+ left", "turn N left", re.sub(r" at rank \d+ with relevance [\d.]+", "", item["reason"])
        )
        spoken = item["section"] == "user"
        if spoken:
            reason = re.sub(r", \d+ tokens$", "", reason)
        if spoken and rows and rows[-1][0] == "user" and rows[-1][2] == reason:
            rows[-1][1].append(item)
        else:
            rows.append((item["section"], [item], reason))
    out: list[str] = []
    for section, some, reason in rows:
        records = [peek(memory, uuid.UUID(item["id"])) for item in some]
        name = _name(records[0])
        if len(some) > 1:
            numbers = sorted(record.turn_number for record in records)
            name = f"turns {numbers[0]} to {numbers[-1]} of this task"
        relevance = "" if section in ("user", "current", "history") else f", relevance {some[0]['relevance']:.2f}"
        count = sum(item[tokens] for item in some)
        out += entry(f"*{section}*: {_short(name)} ({count} tokens{relevance}): {_short(reason)}")
    return out


def _name(record: Any) -> str:
    return f"note: {record.content}" if isinstance(record, Note) else label(record)


def _short(text: str) -> str:
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "…", text)
    return shortened(text, 110)


def main() -> int:
    """Write the page's generated part, or with ``--check`` only say whether it is what it must be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    made = f"{before}{BEGIN}{example()}{END}{after}"
    if made == text:
        return 0
    if "--check" in sys.argv[1:]:
        sys.stderr.write(f"out of date: {PAGE.relative_to(ROOT)}; run make gen\n")
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
