"""Random use of messages, and its judge: none is lost or doubled, each has one reader, topics keep their order.

Source: C-369 to C-373, C-423 to C-425, P-042.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from support.agents.history import OK, REFUSED, UNKNOWN, Client, Op

import caliber

BOXES, TOPICS = 3, ("plans", "news")


class Stored(NamedTuple):
    """A message at the end."""

    id: str
    state: str


def message_faults(ops: Sequence[Op], stored: Mapping[str, Sequence[Stored]], *, same_clock: bool = True) -> list[str]:
    """Return the violations of a history of messages; ``stored`` is what the store holds for each tag in the end."""
    sends = [op for op in ops if op.name == "send"]
    return [
        *_sent_once(sends, stored),
        *_delivered(ops, sends),
        *_acknowledged(ops, stored),
        *_one_reader(ops, same_clock=same_clock),
        *_in_order(ops, sends),
    ]


def _sent_once(sends: Sequence[Op], stored: Mapping[str, Sequence[Stored]]) -> list[str]:
    """A message that was acknowledged is there once, also one that was sent twice under its key."""
    faults = []
    outcomes: dict[str, set[str]] = {}
    for op in sends:
        outcomes.setdefault(op.given["tag"], set()).add(op.outcome)
        found = stored.get(op.given["tag"], ())
        if op.outcome == OK and op.result["id"] not in {each.id for each in found}:
            faults.append(f"an acknowledged message is lost: {op}")
    for tag, found in stored.items():
        if len(found) > 1:
            faults.append(f"a message is there {len(found)} times: {tag}")
        if outcomes.get(tag, set()) <= {REFUSED}:
            faults.append(f"a message that was not sent is there: {tag}")
    return faults


def _claims(ops: Sequence[Op]) -> list[tuple[Op, dict[str, Any]]]:
    return [(op, message) for op in ops if op.name == "claim" and op.outcome == OK for message in op.result]


def _delivered(ops: Sequence[Op], sends: Sequence[Op]) -> list[str]:
    """A message reaches the one that it is for, after it was sent."""
    sent = {op.given["tag"]: op for op in reversed(sends)}
    faults = []
    for op, message in _claims(ops):
        origin = sent.get(message["tag"])
        if origin is None or origin.began >= (op.ended or op.began):
            faults.append(f"a message that was not sent: {op}")
        elif origin.given["to"] not in (op.given["box"], "any"):
            faults.append(f"a message for {origin.given['to']}: {op}")
    return faults


def _acknowledged(ops: Sequence[Op], stored: Mapping[str, Sequence[Stored]]) -> list[str]:
    """A message is acknowledged once, and never delivered after that."""
    faults = []
    acks: dict[str, list[Op]] = {}
    perhaps = {op.given["tag"] for op in ops if op.name == "ack" and op.outcome != REFUSED}
    for op in ops:
        if op.name == "ack" and op.outcome == OK and op.result:
            acks.setdefault(op.given["tag"], []).append(op)
    for tag, done in acks.items():
        if len(done) > 1:
            faults.append(f"a message was acknowledged {len(done)} times: {done[-1]}")
        if any(each.state != "acknowledged" for each in stored.get(tag, ())):
            faults.append(f"an acknowledgement is lost: {done[0]}")
    for op, message in _claims(ops):
        if any(ack.before(op) for ack in acks.get(message["tag"], ())):
            faults.append(f"a message was delivered after its acknowledgement {acks[message['tag']][0]}: {op}")
    for tag, found in stored.items():
        if tag not in perhaps and any(each.state == "acknowledged" for each in found):
            faults.append(f"a message that nobody acknowledged is: {tag}")
        faults += [f"a message is {each.state}: {tag}" for each in found if each.state in ("expired", "dead")]
    return faults


def _one_reader(ops: Sequence[Op], *, same_clock: bool) -> list[str]:
    """No two claims hold a message at once; attempts are counted."""
    faults = []
    by_tag: dict[str, list[tuple[Op, dict[str, Any]]]] = {}
    for op, message in _claims(ops):
        by_tag.setdefault(message["tag"], []).append((op, message))
        if same_clock and message["until"] < op.began + op.given["lease"] * 1_000:
            faults.append(f"a lease is shorter than asked: {op}")
    for tag, claims in by_tag.items():
        counts = Counter(message["attempts"] for _, message in claims)
        faults += [f"attempt {number} of a message twice: {tag}" for number, count in counts.items() if count > 1]
        ends = [op for op in ops if op.name == "release" and op.given["tag"] == tag and op.outcome != REFUSED]
        for first, held in claims if same_clock else ():
            for second, _ in claims:
                if not first.before(second) or second.ended is None or second.ended >= held["until"]:
                    continue
                if not any(end.began < second.ended and end.began > first.began for end in ends):
                    faults.append(f"two readers hold a message: {first} and {second}")
    return faults


def _in_order(ops: Sequence[Op], sends: Sequence[Op]) -> list[str]:
    """Of one sender, topic and receiver, a message comes only after the one before it was acknowledged."""
    faults = []
    ends: dict[str, int] = {}
    for op in ops:
        if op.name == "ack" and op.outcome != REFUSED:
            ends[op.given["tag"]] = min(op.began, ends.get(op.given["tag"], op.began))
    lines: dict[tuple[str, str, str], list[Op]] = {}
    first: dict[str, Op] = {}
    for op in sends:
        if op.given["topic"] is not None and op.outcome == OK and op.given["tag"] not in first:
            first[op.given["tag"]] = op
            line = (op.given["sender"], op.given["to"], op.given["topic"])
            lines.setdefault(line, []).append(op)
    unsure = {op.given["tag"] for op in sends if op.outcome == UNKNOWN}
    place = {op.given["tag"]: line for line in lines.values() for op in line}
    for claim, message in _claims(ops):
        own = first.get(message["tag"])
        if own is None or message["tag"] in unsure:
            continue
        for earlier in place[message["tag"]] and _line_of(lines, own):
            if earlier.given["tag"] in unsure or not earlier.before(own):
                continue
            if ends.get(earlier.given["tag"], 2**62) >= (claim.ended or claim.began):
                faults.append(f"a message came before {earlier}: {claim}")
    return faults


def _line_of(lines: Mapping[tuple[str, str, str], list[Op]], op: Op) -> list[Op]:
    return lines[op.given["sender"], op.given["to"], op.given["topic"]]


class Messages:
    """Clients that send to each other, claim, acknowledge and give back; several read one mailbox."""

    knobs: Mapping[str, Any] = MappingProxyType({"agents__messages__attempts_max": 10_000})

    def __init__(self, *, leases_ms: tuple[int, int] = (20, 250), same_clock: bool = True) -> None:
        self._leases_ms, self._same_clock = leases_ms, same_clock

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        agents: Any = memory.agents
        for at in range(BOXES):
            agents.register(f"{label} box {at}", type=f"{label} type")
        return {"label": label, "boxes": [f"{label} box {at}" for at in range(BOXES)], "type": f"{label} type"}

    def step(self, client: Client) -> None:
        rng, world = client.rng, client.world
        messages: Any = client.memory.agents.messages  # type: ignore[attr-defined, unused-ignore]
        held: list[tuple[str, Any, str]] = client.state.setdefault("held", [])
        choice = rng.random()
        if choice < 0.35:
            self._send(client, messages)
        elif choice < 0.65 or not held:
            box, most = rng.choice(world["boxes"]), rng.randint(1, 3)
            lease = rng.randint(*self._leases_ms)
            claimed: list[Any] = []

            def claim() -> list[dict[str, Any]]:
                claimed.extend(messages.claim(most, lease_ms=lease, agent=box))
                return [_shown(each) for each in claimed]

            if client.do("claim", claim, box=box, lease=lease) is not None:
                held += [(each.payload["tag"], each, box) for each in claimed]
        else:
            tag, message, box = held.pop() if rng.random() < 0.7 else rng.choice(held)
            if choice < 0.9:
                client.do("ack", lambda: messages.ack(message, agent=box), tag=tag, box=box)
            else:
                client.do("release", lambda: messages.release(message, agent=box), tag=tag, box=box)

    def _send(self, client: Client, messages: Any) -> None:
        rng, world, tag = client.rng, client.world, client.tag()
        sender, to = rng.choice(world["boxes"]), rng.choice([*world["boxes"], "any"])
        topic = rng.choice([*TOPICS, None])
        address: dict[str, Any] = {"to_type": world["type"]} if to == "any" else {"to": to}

        def send() -> dict[str, Any]:
            sent = messages.send({"tag": tag}, topic=topic, idempotency_key=tag, agent=sender, **address)
            return {"id": str(sent.message_id)}

        given = {"sender": sender, "to": to, "topic": topic, "tag": tag}
        # A client without an answer sends again under the same key, and at times one with an answer too.
        if client.do("send", send, **given) is None or rng.random() < 0.1:
            client.do("send", send, **given)

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        messages: Any = memory.agents.messages  # type: ignore[attr-defined, unused-ignore]
        stored: dict[str, list[Stored]] = {}
        seen = set()
        for box in world["boxes"]:
            for each in messages.list(agent=box, limit=1_000_000):
                if each.message_id not in seen:
                    seen.add(each.message_id)
                    state = str(each.outcome.value if each.outcome is not None else "pending")
                    stored.setdefault(each.payload["tag"], []).append(Stored(str(each.message_id), state))
        return message_faults(ops, stored, same_clock=self._same_clock)


def _shown(message: Any) -> dict[str, Any]:
    until = round(message.available_at.timestamp() * 1_000_000)
    return {"id": str(message.message_id), "tag": message.payload["tag"], "attempts": message.attempts, "until": until}
