"""Histories of concurrent clients: each call's begin and end, with the answer that the client got.

A client appends a line before it calls and another one after the answer; a killed process loses at most the last line.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import caliber
from caliber.model.errors import CaliberError

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
"""Outcomes of a call: it happened; it did not and left no effect; either may be true."""

Entry = dict[str, Any]


class Op(NamedTuple):
    """One call of one client; times in microseconds on a clock that all clients of a history share."""

    client: str
    number: int
    name: str
    given: dict[str, Any]
    began: int
    ended: int | None
    """None: the client got no answer."""
    outcome: str
    result: Any

    def before(self, other: Op) -> bool:
        """Return whether this call was over when the other one began."""
        return self.ended is not None and self.ended < other.began

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.given.items())
        return f"{self.client}#{self.number} {self.name}({given}) = {self.outcome} {self.result}"


class FileLog:
    """Entries in a file, one JSON object a line, each written by one call of the system."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def append(self, entry: Entry) -> None:
        """Write an entry; a process that is killed later leaves it behind."""
        os.write(self._file, json.dumps(entry).encode() + b"\n")


def read_entries(path: Path) -> list[Entry]:
    """Return the whole lines of a file; the last one may be torn."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def operations(entries: Iterable[Entry]) -> list[Op]:
    """Pair begins and ends. Raises: AssertionError for an end without its begin, or a second one."""
    begun: dict[tuple[str, int], Entry] = {}
    ended: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        key = (entry["client"], entry["number"])
        if "name" in entry:
            assert key not in begun, f"two calls are number {key}"
            begun[key] = entry
        else:
            assert key in begun, f"an answer without its call: {key}"
            assert key not in ended, f"two answers to call {key}"
            ended[key] = entry
    found = []
    for key, entry in begun.items():
        end = ended.get(key, {"at": None, "outcome": UNKNOWN, "result": None})
        times = (entry["at"], end["at"])
        found.append(Op(*key, entry["name"], entry["given"], *times, end["outcome"], end["result"]))
    return sorted(found, key=lambda op: op.began)


class Log(Protocol):
    """A place for entries."""

    def append(self, entry: Entry) -> None: ...


class Client:
    """One client: calls the store and keeps the history of its calls."""

    def __init__(
        self,
        memory: caliber.Caliber,
        world: dict[str, Any],
        name: str,
        rng: random.Random,
        log: Log,
        now_us: Callable[[], int],
    ) -> None:
        self.memory, self.world, self.name, self.rng = memory, world, name, rng
        self.agent = name.partition("/")[0]
        """The name under which the store knows the client: one that starts anew after a kill has it still."""
        self.state: dict[str, Any] = {}
        self._log, self._now_us = log, now_us
        self._number = 0

    def tag(self) -> str:
        """Return a text that no other call of the history has."""
        return f"{self.name}#{self._number}"

    def do(self, name: str, call: Callable[[], Any], **given: Any) -> Any:
        """Call, and keep what was given and answered. Return the answer, or None for a call that failed."""
        number = self._number
        self._number += 1
        self._log.append({"client": self.name, "number": number, "name": name, "given": given, "at": self._now_us()})
        outcome, result = OK, None
        try:
            result = call()
        except CaliberError as error:
            unknown = error.context.get("reason") == "outcome unknown"
            outcome = UNKNOWN if unknown else REFUSED
            self._end(number, outcome, self.refusal(error))
            return None
        self._end(number, outcome, result)
        return result

    def refusal(self, error: CaliberError) -> Any:
        """Return the result of a call that raised."""
        return type(error).__name__

    def _end(self, number: int, outcome: str, result: Any) -> None:
        self._log.append(
            {"client": self.name, "number": number, "outcome": outcome, "result": result, "at": self._now_us()}
        )


class Subject(Protocol):
    """A part of the store that clients use at random, and the judge of their history."""

    knobs: Mapping[str, Any]
    """Knobs of the store."""

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        """Make everything that clients share; return its names as JSON allows."""
        ...

    def step(self, client: Client) -> None:
        """Make one or a few random calls."""
        ...

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        """Return the violations that a history and the store show."""
        ...
