"""Facet ``memory.agents.groups``: groups of agents, and the member that speaks next.

The turn of a group is a row: it outlives the process, and two callers never get the same turn. Source: P-012 to P-015.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections import Counter
from collections.abc import Mapping

from caliber.access.acting import agent_named, is_live
from caliber.access.identities import not_registered, require_registered
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents.registry import (
    Agent,
    AgentGroup,
    AgentId,
    GroupId,
    GroupMember,
    GroupPattern,
    MemberId,
)
from caliber.model.errors import InvalidValue, NotFound, RequiredFieldMissing
from caliber.model.references import EntityRef
from caliber.model.time import from_us
from caliber.schema.relations import AGENT, AGENT_GROUP, GROUP_MEMBER
from caliber.storage.write.unit_of_work import UnitOfWork

SUPERVISOR = "supervisor"
"""The role of the member of a group that leads it."""


class Groups:
    """The groups of agents, as one principal uses them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def create(self, name: str, pattern: GroupPattern | str, *, description: str | None = None) -> AgentGroup:
        """Create a group, or return the one of this name and pattern.

        ``pattern`` is round_robin, dynamic, supervisor, pipeline or voting.

        Raises: InputError kinds, also for a name that has another pattern; PermissionDenied unless the principal is the
            application or an admin.
        """
        self._engine.check_open()
        wanted = arguments.as_enum(pattern, GroupPattern, "pattern")
        plain, text = _plain(name), arguments.as_name(description, "description")
        self._principal.require_service("create", "a group of agents")

        def work(uow: UnitOfWork) -> AgentGroup:
            now = from_us(uow.now_us)
            made = AgentGroup(GroupId(uuid7()), plain, wanted, 0, now, now, description=text)
            if uow.insert_new(AGENT_GROUP, made):
                return made
            known = self._known(uow, plain)
            if known.pattern is not wanted:
                raise InvalidValue(field="pattern", reason=f"is {known.pattern} in the group of this name")
            return known

        return self._engine.write(work)

    def add(self, name: str, agent: str | EntityRef, *, role: str | None = None) -> GroupMember:
        """Let an agent join a group, behind the other members; a member again gets the ``role``.

        Raises: InputError kinds; NotFound for an unknown group; NotRegistered; PermissionDenied as ``create``.
        """
        self._engine.check_open()
        plain, part = _plain(name), arguments.as_name(role, "role")
        joining = agent_named(self._engine, agent)
        self._principal.require_service("change", "a group of agents")

        def work(uow: UnitOfWork) -> GroupMember:
            group = self._known(uow, plain)
            if uow.find(AGENT, joining.ref.id.bytes) is None:
                raise not_registered(joining.ref)
            members = _members(uow, group)
            for each in members:
                if each.agent_id == joining.ref.id:
                    changed: GroupMember = uow.update(GROUP_MEMBER, dataclasses.replace(each, role=part))
                    return changed
            place = 1 + max((each.position for each in members), default=-1)
            now = from_us(uow.now_us)
            agent_id = AgentId(joining.ref.id)
            made = GroupMember(MemberId(uuid7()), group.group_id, agent_id, place, now, part)
            uow.insert(GROUP_MEMBER, made)
            return made

        return self._engine.write(work)

    def remove(self, name: str, agent: str | EntityRef) -> bool:
        """Let an agent leave a group; return whether it was a member.

        Raises: InputError kinds; NotFound for an unknown group; PermissionDenied as ``create``.
        """
        self._engine.check_open()
        plain, leaving = _plain(name), agent_named(self._engine, agent)
        self._principal.require_service("change", "a group of agents")

        def work(uow: UnitOfWork) -> bool:
            for each in _members(uow, self._known(uow, plain)):
                if each.agent_id == leaving.ref.id:
                    uow.delete(GROUP_MEMBER, each)
                    return True
            return False

        return self._engine.write(work)

    def members(self, name: str) -> builtins.list[GroupMember]:
        """Return the members of a group, in the order in which they joined.

        Raises: InputError kinds; NotFound for an unknown group; PermissionDenied for a user.
        """
        self._engine.check_open()
        plain = _plain(name)
        self._require_no_user("read")
        return self._engine.write(lambda uow: _members(uow, self._known(uow, plain)))

    def next_speaker(
        self, name: str, *, choice: str | EntityRef | None = None, votes: Mapping[str, str] | None = None
    ) -> Agent | None:
        """Return the agent whose turn comes next, and take the turn: the next call returns the one after it.

        Members that are hibernated, archived or failed are passed over. By pattern: ``round_robin`` goes round in the
        order of joining; ``pipeline`` goes through it once, then returns None until ``restart``; ``dynamic`` takes the
        ``choice`` of the caller; ``supervisor`` gives every other turn to the member with the role ``supervisor``, and
        after it takes the ``choice``, or the supervisor again without one; ``voting`` takes the member with most
        ``votes`` (the name of a voter, and of the member it votes for), of equals the one that joined first.

        Raises: InputError kinds, also for a choice or vote that is no member; NotFound for an unknown group;
            PermissionDenied for a user.
        """
        self._engine.check_open()
        plain = _plain(name)
        self._require_no_user("lead")
        chosen = None if choice is None else agent_named(self._engine, choice, "choice").ref.id
        ballots = {
            agent_named(self._engine, voter, "votes").ref.id: agent_named(self._engine, voted, "votes").ref.id
            for voter, voted in arguments.as_mapping(votes, "votes").items()
        }

        def work(uow: UnitOfWork) -> Agent | None:
            group = self._known(uow, plain)
            members = _members(uow, group)
            ids = {each.agent_id for each in members}
            for field, given in (("choice", {chosen} - {None}), ("votes", {*ballots, *ballots.values()})):
                if not given <= ids:
                    raise InvalidValue(field=field, reason="names an agent that is no member of the group")
            agents = ((each, uow.find(AGENT, each.agent_id.bytes)) for each in members)
            able = [(each, agent) for each, agent in agents if agent is not None and is_live(agent)]
            speaker = _next(group, members, able, chosen, Counter(ballots.values()))
            if speaker is not None:
                uow.update(
                    AGENT_GROUP,
                    dataclasses.replace(
                        group,
                        spoken=group.spoken + 1,
                        last_speaker_id=speaker.agent_id,
                        updated_at=from_us(uow.now_us),
                    ),
                )
            return speaker

        return self._engine.write(work)

    def restart(self, name: str) -> AgentGroup:
        """Start the order of a group again: the next turn is that of its first member.

        Raises: InputError kinds; NotFound for an unknown group; PermissionDenied as ``create``.
        """
        self._engine.check_open()
        plain = _plain(name)
        self._principal.require_service("change", "a group of agents")

        def work(uow: UnitOfWork) -> AgentGroup:
            fresh = dataclasses.replace(self._known(uow, plain), spoken=0, last_speaker_id=None)
            group: AgentGroup = uow.update(AGENT_GROUP, dataclasses.replace(fresh, updated_at=from_us(uow.now_us)))
            return group

        return self._engine.write(work)

    # --- rules -----------------------------------------------------------------------------------

    def _known(self, uow: UnitOfWork, name: str) -> AgentGroup:
        """Return a group, locked until the transaction ends. Raises: NotFound."""
        uow.serialize(f"caliber:agent group {name}")
        group: AgentGroup | None = uow.find_by(AGENT_GROUP, ("name",), name)
        if group is None:
            raise NotFound("there is no group of agents of this name", entity_type=AGENT_GROUP.name, id=None)
        return group

    def _require_no_user(self, action: str) -> None:
        if self._principal.is_user:
            raise self._principal.denied(action, "a group of agents")
        require_registered(self._engine, self._principal)


def _plain(name: str) -> str:
    return EntityRef.plain_name(arguments.as_text(name, "name", limit=arguments.MAX_NAME_CHARS))


def _members(uow: UnitOfWork, group: AgentGroup) -> list[GroupMember]:
    found: list[GroupMember] = uow.select_path(GROUP_MEMBER, "list_by_group", group.group_id.bytes)
    return found


def _next(
    group: AgentGroup,
    members: list[GroupMember],
    able: list[tuple[GroupMember, Agent]],
    chosen: object,
    votes: Counter[object],
) -> Agent | None:
    """Return the speaker of a turn, or None where no member can speak or the pipeline is through."""
    if not able:
        return None
    last = next((each.position for each in members if each.agent_id == group.last_speaker_id), -1)
    after = [agent for each, agent in able if each.position > last]
    if group.pattern is GroupPattern.PIPELINE:
        return after[0] if after else None
    if group.pattern is GroupPattern.ROUND_ROBIN:
        return after[0] if after else able[0][1]
    if group.pattern is GroupPattern.VOTING:
        if not votes:
            raise RequiredFieldMissing(
                "votes are required: the members of the group vote on its speaker", field="votes"
            )
        return max(able, key=lambda pair: (votes[pair[1].agent_id], -pair[0].position))[1]
    picked = next((agent for _, agent in able if agent.agent_id == chosen), None)
    if chosen is not None and picked is None:
        raise InvalidValue(field="choice", reason="cannot speak: it is hibernated, archived or failed")
    if group.pattern is GroupPattern.DYNAMIC:
        if picked is None:
            raise RequiredFieldMissing("choice is required: the caller picks the speaker of this group", field="choice")
        return picked
    leader = next((agent for each, agent in able if each.role == SUPERVISOR), None)
    if leader is None:
        raise InvalidValue(field="name", reason="is a group whose supervisor is missing or cannot speak")
    return leader if picked is None or group.last_speaker_id != leader.agent_id else picked
