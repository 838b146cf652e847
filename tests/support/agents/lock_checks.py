"""Random use of locks and guarded writes, and the rules that its history must keep. Source: C-364 to C-368, K-037."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from support.agents.history import OK, REFUSED, Client, Op

import caliber
from caliber.model import EntityRef, LockToken

EXCLUSIVE, SHARED = "exclusive", "shared"


class Effect(NamedTuple):
    """A guarded write that the store holds."""

    tag: str
    token: int


class Grant(NamedTuple):
    """A token, from an acquisition that was answered."""

    op: Op
    resource: str
    token: int
    mode: str
    expires: int


def lock_faults(ops: Sequence[Op], effects: Mapping[str, Sequence[Effect]], *, same_clock: bool = True) -> list[str]:
    """Return the violations of a history of locks; ``effects`` are the writes of each resource in commit order.

    With ``same_clock`` every client has the clock of the history, and no two hold a resource at one moment.
    """
    grants = [
        Grant(op, op.given["resource"], op.result["token"], op.result["mode"], op.result["expires"])
        for op in ops
        if op.name == "acquire" and op.outcome == OK
    ]
    by_token = {(grant.resource, grant.token): grant for grant in grants}
    faults = [*_tokens(grants), *_written_once(ops, effects), *_of_holders(ops, by_token)]
    for resource, written in effects.items():
        own = [op for op in ops if op.given["resource"] == resource]
        faults += _fencing(own, [grant for grant in grants if grant.resource == resource], written)
    if same_clock:
        faults += _exclusion(ops, grants)
        faults += [
            f"a lease is shorter than asked: {op}"
            for op in ops
            if op.name in ("acquire", "renew") and op.outcome == OK
            if op.result["expires"] < op.began + op.given["lease"] * 1_000
        ]
    return faults


def _tokens(grants: Sequence[Grant]) -> list[str]:
    """Tokens are given once, and rise."""
    counts = Counter((grant.resource, grant.token) for grant in grants)
    faults = [f"token {key} was given {count} times" for key, count in counts.items() if count > 1]
    for resource in {grant.resource for grant in grants}:
        ended = sorted((grant for grant in grants if grant.resource == resource), key=lambda grant: grant.op.ended or 0)
        begun = sorted(ended, key=lambda grant: grant.op.began)
        highest, at = 0, 0
        for grant in begun:
            while at < len(ended) and ended[at].op.before(grant.op):
                highest = max(highest, ended[at].token)
                at += 1
            if grant.token <= highest:
                faults.append(f"a token does not rise above {highest}: {grant.op}")
    return faults


def _written_once(ops: Sequence[Op], effects: Mapping[str, Sequence[Effect]]) -> list[str]:
    """A write that was acknowledged is there once, a refused one is not; no other is there."""
    stored = Counter(effect.tag for written in effects.values() for effect in written)
    faults = [f"a write took effect {count} times: {tag}" for tag, count in stored.items() if count > 1]
    writes = {op.given["tag"]: op for op in ops if op.name == "write"}
    for tag, op in writes.items():
        if op.outcome == OK and tag not in stored:
            faults.append(f"an acknowledged write is lost: {op}")
        if op.outcome == REFUSED and tag in stored:
            faults.append(f"a refused write took effect: {op}")
    faults += [f"a write that no client made: {tag}" for tag in stored if tag not in writes]
    for resource, written in effects.items():
        for effect in written:
            op = writes.get(effect.tag)
            if op is not None and (op.given["resource"], op.given["token"]) != (resource, effect.token):
                faults.append(f"a write of another resource or token: {op}")
    return faults


def _fencing(ops: Sequence[Op], grants: Sequence[Grant], written: Sequence[Effect]) -> list[str]:
    """No write is accepted after one under a newer exclusive token, or once such a token was given."""
    faults = []
    modes = {grant.token: grant.mode for grant in grants}
    made = {op.given["tag"]: op for op in ops if op.name == "write"}
    highest, highest_exclusive = 0, 0
    for effect in written:
        mode = modes.get(effect.token)
        if effect.token < highest_exclusive or (mode == EXCLUSIVE and effect.token < highest):
            faults.append(f"a write under token {effect.token} after one under {highest}: {effect.tag}")
        highest = max(highest, effect.token)
        if mode == EXCLUSIVE:
            highest_exclusive = max(highest_exclusive, effect.token)
    ended = sorted(grants, key=lambda grant: grant.op.ended or 0)
    at, newest, newest_exclusive = 0, 0, 0
    for op in sorted((made[effect.tag] for effect in written if effect.tag in made), key=lambda op: op.began):
        while at < len(ended) and ended[at].op.before(op):
            newest = max(newest, ended[at].token)
            if ended[at].mode == EXCLUSIVE:
                newest_exclusive = max(newest_exclusive, ended[at].token)
            at += 1
        token = op.given["token"]
        if token < newest_exclusive or (modes.get(token) == EXCLUSIVE and token < newest):
            faults.append(f"a write passed under token {token} although {newest} was given: {op}")
    return faults


def _of_holders(ops: Sequence[Op], by_token: Mapping[tuple[str, int], Grant]) -> list[str]:
    """Only the holder renews and releases a lock, and only once is it released; then it is over."""
    faults = []
    released: dict[tuple[str, int], Op] = {}
    for op in ops:
        if op.name not in ("release", "renew", "write") or op.outcome != OK:
            continue
        key = (op.given["resource"], op.given["token"])
        grant = by_token.get(key)
        if op.name != "write" and op.result is not False and grant is not None:
            if _agent(grant.op) != _agent(op):
                faults.append(f"{op.name} of a lock of {grant.op.client}: {op}")
            if op.name == "renew" and op.result["token"] != grant.token:
                faults.append(f"a renewed lock has another token: {op}")
        if op.result is False:
            continue
        if key in released and released[key].before(op):
            faults.append(f"{op.name} after the release {released[key]}: {op}")
        if op.name == "release":
            released.setdefault(key, op)
    return faults


def _agent(op: Op) -> str:
    return op.client.partition("/")[0]


def _exclusion(ops: Sequence[Op], grants: Sequence[Grant]) -> list[str]:
    """While a lock surely holds, no other agent acquires the resource in a mode that excludes it."""
    faults = []
    ends = _sure_ends(ops, grants)
    for resource in {grant.resource for grant in grants}:
        own = sorted((grant for grant in grants if grant.resource == resource), key=lambda grant: grant.op.began)
        holding: list[Grant] = []
        for grant in own:
            began = grant.op.began
            holding = [each for each in holding if ends[each.resource, each.token] > began]
            for each in holding:
                if each.op.before(grant.op) and _agent(each.op) != _agent(grant.op):
                    over = grant.op.ended is None or grant.op.ended >= ends[each.resource, each.token]
                    if EXCLUSIVE in (each.mode, grant.mode) and not over:
                        faults.append(f"two hold {resource}: {each.op} and {grant.op}")
            holding.append(grant)
    return faults


def _sure_ends(ops: Iterable[Op], grants: Sequence[Grant]) -> dict[tuple[str, int], int]:
    """Return the moment up to which each lock holds for certain."""
    ends = {(grant.resource, grant.token): grant.expires for grant in grants}
    granted = {(grant.op.client, grant.op.number): (grant.resource, grant.token) for grant in grants}
    held: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for op in sorted(ops, key=lambda op: op.began):
        key = (op.given["resource"], op.given.get("token", 0))
        if op.outcome == REFUSED:
            continue
        if op.name == "acquire":  # the same agent gets a new token, and the old one ends
            own = held.setdefault((op.given["resource"], _agent(op)), [])
            for each in own:
                ends[each] = min(ends[each], op.began)
            own[:] = [granted[op.client, op.number]] if op.outcome == OK else []
        elif op.name == "renew" and op.outcome == OK and ends.get(key, 0) > op.began:
            ends[key] = op.result["expires"]  # a shorter lease shortens it
        elif key in ends and (op.name == "renew" or (op.name == "release" and op.result is not False)):
            ends[key] = min(ends[key], op.began)
    return ends


class Locks:
    """Clients that acquire, renew, release and write, also with tokens that are over or another's."""

    knobs: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *, resources: int = 3, leases_ms: tuple[int, int] = (10, 250), same_clock: bool = True) -> None:
        self._resources, self._leases_ms, self._same_clock = resources, leases_ms, same_clock

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        scopes = {}
        for at in range(self._resources):
            task = memory.start_trajectory(f"guarded {label} {at}", initiator=EntityRef.agent("prover"))
            scope = memory.current_scope(task.trajectory_id)
            scopes[f"{label} file {at}"] = str(scope.scope_id)
        return {"scopes": scopes}

    def step(self, client: Client) -> None:
        rng, locks = client.rng, client.memory.agents.locks
        resource = rng.choice(list(client.world["scopes"]))
        tokens: list[int] = client.state.setdefault(resource, [])
        choice = rng.random()
        if choice < 0.35 or not tokens:
            lease, mode = rng.randint(*self._leases_ms), rng.choice((EXCLUSIVE, EXCLUSIVE, EXCLUSIVE, SHARED))

            def acquire() -> dict[str, Any]:
                return _shown(locks.acquire(resource, holder=client.agent, lease_ms=lease, mode=mode))

            got = client.do("acquire", acquire, resource=resource, mode=mode, lease=lease)
            if got is not None:
                tokens.append(got["token"])
            return
        # Mostly the newest token; at times one that is over, or the next one, which is another's if it is any.
        token = tokens[-1] if rng.random() < 0.75 else rng.choice([*tokens[-4:], tokens[-1] + 1])
        proof = LockToken(resource, token)
        if choice < 0.8:
            tag = client.tag()
            content = json.dumps({"tag": tag, "token": token})
            scope = client.world["scopes"][resource]

            def write() -> None:
                client.memory.append_turn(scope, role="user", content=content, guard=proof)

            client.do("write", write, resource=resource, token=token, tag=tag)
        elif choice < 0.9:
            lease = rng.randint(*self._leases_ms)

            def renew() -> dict[str, Any]:
                return _shown(locks.renew(proof, holder=client.agent, lease_ms=lease))

            client.do("renew", renew, resource=resource, token=token, lease=lease)
        else:
            client.do("release", lambda: locks.release(proof, holder=client.agent), resource=resource, token=token)

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        effects = {}
        for resource, scope in world["scopes"].items():
            turns = sorted(memory.storage.turns.list_by_scope(scope), key=lambda turn: turn.sequence)
            effects[resource] = [Effect(**json.loads(turn.text)) for turn in turns]
        return lock_faults(ops, effects, same_clock=self._same_clock)


def _shown(lock: Any) -> dict[str, Any]:
    expires = round(lock.expires_at.timestamp() * 1_000_000)
    return {"token": lock.token, "mode": lock.mode.value, "expires": expires}
