"""Random use of shared values, and the judge of it: each key is a linearizable register. Source: P-062.

Each write has a version, so the order of writes is known: a history is linearizable if it agrees with that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from support.agents.history import OK, REFUSED, UNKNOWN, Client, Op

import caliber

WRITES = ("set", "delete")
INFINITE = 2**62


def value_faults(ops: Sequence[Op]) -> list[str]:
    """Return the violations of a history of values."""
    faults = []
    for key in sorted({op.given["key"] for op in ops}):
        faults += _Register([op for op in ops if op.given["key"] == key]).faults()
    return faults


class _Register:
    """The history of one key."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._writes = {_version(op): op for op in ops if op.name in WRITES and op.outcome == OK}
        self._unknown = [op for op in ops if op.name in WRITES and op.outcome == UNKNOWN]

    def faults(self) -> list[str]:
        return [*self._versions(), *self._sets(), *self._answers(), *self._order()]

    def _value(self, version: int) -> Any:
        """Return the value that a version has, None for none; the register itself where nobody knows."""
        if version == 0:
            return None
        op = self._writes.get(version)
        if op is None:
            return self
        return op.given["value"] if op.name == "set" else None

    def _versions(self) -> list[str]:
        """Each version is of one write, and versions that no answer names are of writes without an answer."""
        faults = []
        written = [op for op in self._ops if op.name in WRITES and op.outcome == OK]
        for op in written:
            if self._writes[_version(op)] is not op:
                faults.append(f"two writes have one version: {op} and {self._writes[_version(op)]}")
        highest = max([0, *(_version(op) for op in self._ops if op.outcome == OK)])
        missing = set(range(1, highest + 1)) - self._writes.keys()
        if len(missing) > len(self._unknown):
            faults.append(f"versions of no write: {sorted(missing)} of {written[0] if written else self._ops[0]}")
        return faults

    def _sets(self) -> list[str]:
        """A conditional write follows on the version that it names; a refused one found another."""
        faults = []
        for op in self._ops:
            expected = op.given.get("version")
            if expected is None or op.name not in WRITES:
                continue
            before = _version(op) - 1 if op.outcome == OK else 0
            if op.outcome == OK and expected and before != expected:
                faults.append(f"a conditional write followed on version {before}: {op}")
            if op.outcome == OK and not expected and self._value(before) not in (None, self):
                faults.append(f"a write for a key without a value replaced version {before}: {op}")
            if op.outcome == REFUSED and op.result == "Conflict" and expected and self._held_throughout(op, expected):
                faults.append(f"a conditional write was refused although its version was there: {op}")
        return faults

    def _held_throughout(self, op: Op, version: int) -> bool:
        """Return whether a key had a version before a call began, and had it still when it ended."""
        seen = any(each.outcome == OK and _version(each) == version and each.before(op) for each in self._ops)
        ended = op.began if op.ended is None else op.ended
        newer = any(
            each.began < ended and (each.outcome == UNKNOWN or (each.outcome == OK and _version(each) > version))
            for each in self._ops
            if each.name in WRITES
        )
        return seen and not newer and self._value(version) is not None

    def _answers(self) -> list[str]:
        """A read answers with the value of its version; a deletion with the value that it ended."""
        faults = []
        sent = {op.given["value"] for op in self._ops if op.name == "set" and op.outcome != REFUSED}
        for op in self._ops:
            if op.outcome != OK or op.name == "set" or op.result is None:
                continue
            version = op.result["version"] - (op.name == "delete")
            value = self._value(version)
            if value is self:
                value = op.result["value"] if op.result["value"] in sent else "a value that was sent"
            if value is None or op.result["value"] != value:
                faults.append(f"version {version} is {value}: {op}")
        return faults

    def _order(self) -> list[str]:
        """A call sees every write that was over when it began, and no later one is over before it ends."""
        faults = []
        answered = [op for op in self._ops if op.outcome == OK]
        ended = sorted((op for op in answered if op.result is not None), key=lambda op: op.ended or 0)
        at, newest = 0, 0
        for op in sorted(answered, key=lambda op: op.began):
            while at < len(ended) and ended[at].before(op):
                newest = max(newest, _version(ended[at]))
                at += 1
            if op.name == "get" and op.result is None:
                none = [version for version in range(newest, self._newest_begun(op) + 1) if self._is_none(version)]
                if not none:
                    faults.append(f"a read finds nothing although version {newest} was there: {op}")
            elif _version(op) < newest + (op.name in WRITES):
                faults.append(f"a call saw version {_version(op)} after {newest}: {op}")
        return faults

    def _newest_begun(self, op: Op) -> int:
        ended = INFINITE if op.ended is None else op.ended
        begun = [version for version, write in self._writes.items() if write.began < ended]
        return max([0, *begun]) + len(self._unknown)

    def _is_none(self, version: int) -> bool:
        if version == 0:
            return True
        op = self._writes.get(version)
        return any(each.name == "delete" for each in self._unknown) if op is None else op.name == "delete"


def _version(op: Op) -> int:
    return int(op.result["version"]) if op.result is not None else 0


class Values:
    """Clients that read, set, compare and set, and delete a few keys."""

    knobs: Mapping[str, Any] = MappingProxyType({})

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        return {"keys": [f"{label} key {at}" for at in range(2)]}

    def step(self, client: Client) -> None:
        rng = client.rng
        values: Any = client.memory.workspace.values  # type: ignore[attr-defined, unused-ignore]
        key = rng.choice(client.world["keys"])
        known: dict[str, int] = client.state.setdefault("versions", {})
        choice = rng.random()
        if choice < 0.3:
            seen = client.do("get", lambda: _shown(values.get(key)), key=key)
            known[key] = 0 if seen is None else seen["version"]
            return
        # Mostly on what the client saw last; at times on whatever is there.
        version = known.get(key, 0) if rng.random() < 0.7 else None
        if choice < 0.9:
            tag = client.tag()
            made = client.do(
                "set", lambda: _shown(values.set(key, tag, version=version)), key=key, value=tag, version=version
            )
        else:
            version = version or None  # what does not exist cannot be deleted
            made = client.do("delete", lambda: _shown(values.delete(key, version=version)), key=key, version=version)
        if made is not None:
            known[key] = made["version"]
        elif rng.random() < 0.8:
            known.pop(key, None)
            seen = client.do("get", lambda: _shown(values.get(key)), key=key)
            known[key] = 0 if seen is None else seen["version"]

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        values: Any = memory.workspace.values  # type: ignore[attr-defined, unused-ignore]
        end = max((max(op.began, op.ended or 0) for op in ops), default=0) + 1
        last = [
            Op("judge", at, "get", {"key": key}, end, end + 1, OK, _shown(values.get(key)))
            for at, key in enumerate(world["keys"])
        ]
        return value_faults([*ops, *last])


def _shown(value: Any) -> dict[str, Any] | None:
    return None if value is None else {"value": value.value, "version": value.version}
