"""Composition root: builds the subsystems of an engine, and gives the handle its facets (``memory.jobs``, …)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from caliber.access.corrections import CorrectionListener, CorrectionListeners
from caliber.access.granted import EndedGrants
from caliber.access.identities import Identities
from caliber.access.owners import TaskOwners
from caliber.context.service import ContextService, open_windows
from caliber.embedding.service import open_embeddings
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import IDLE, Handler
from caliber.jobs.queue import JobQueue
from caliber.learning.facet import Learning
from caliber.learning.learner import Learner
from caliber.learning.undoing import RolledBack
from caliber.model.access import Principal
from caliber.model.storage import ValidationMode
from caliber.model.windows import ContextWindow, render_pages_with
from caliber.pcp.readings import Readings
from caliber.policies.schedules import Schedules, Triggers
from caliber.retention.retaining import Retaining
from caliber.search.opening import SearchEngine
from caliber.search.service import Searching
from caliber.trajectory.artifacts import LintOnWrite
from caliber.trajectory.service import Tasks
from caliber.trajectory.summarizer import open_summarizer

if TYPE_CHECKING:
    from caliber.access.grants import Access
    from caliber.admin.facet import Admin
    from caliber.admin.tables import Tables
    from caliber.agents.conflicts.facet import Conflicts
    from caliber.agents.facet import Agents
    from caliber.blocks.facet import Blocks
    from caliber.explain.service import Windows
    from caliber.jobs.facet import Jobs
    from caliber.knowledge.links import LinkedRecords
    from caliber.pcp.facet import Pcp
    from caliber.trajectory.correcting import Artifacts
    from caliber.trajectory.events import Events
    from caliber.workspace.facet import Workspace


class Facets:
    """The facets of ``Caliber``: everything that is not the core which each agent uses.

    Most processes use few of them, so each is imported when it is asked for.
    """

    _engine: Engine
    _principal: Principal
    _searching: Searching
    _reader: ContextService
    _tasks: Tasks

    @property
    def agents(self) -> Agents:
        """Several agents in one store: registry, locks, messages, delegation, handoff."""
        from caliber.agents.facet import Agents

        return Agents(self._engine, self._principal, self._tasks)

    @property
    def artifacts(self) -> Artifacts:
        """Corrections of artifacts."""
        from caliber.trajectory.correcting import Artifacts

        return Artifacts(self._engine, self._principal)

    @property
    def access(self) -> Access:
        """Rights of users and agents on tasks, sessions and notes of others."""
        from caliber.access.grants import Access

        return Access(self._engine, self._principal)

    @property
    def identities(self) -> Identities:
        """Names of users and agents."""
        return Identities(self._engine, self._principal)

    @property
    def blocks(self) -> Blocks:
        """Memory blocks: labelled texts that stand in every window."""
        from caliber.blocks.facet import Blocks

        return Blocks(self._engine, self._principal, self._searching)

    @property
    def learning(self) -> Learning:
        """Facts learnt from messages by ``remember``: results, and undoing them."""
        return Learning(self._engine, self._principal)

    @property
    def links(self) -> LinkedRecords:
        """Typed links between records: made, listed, followed."""
        from caliber.knowledge.links import LinkedRecords

        return LinkedRecords(self._engine, self._principal, self._searching)

    @property
    def pcp(self) -> Pcp:
        """Checkpoints of tasks, and recovery from them."""
        from caliber.pcp.facet import Pcp

        facts = RolledBack(self._engine, self._principal)
        return Pcp(self._engine, self._principal, self._searching, self._tasks, facts)

    @property
    def conflicts(self) -> Conflicts:
        """Disagreements of records and of agents."""
        from caliber.agents.conflicts.facet import Conflicts

        return Conflicts(self._engine, self._principal)

    @property
    def workspace(self) -> Workspace:
        """The workspace of the agents: values under keys, to-dos, a calendar."""
        from caliber.workspace.facet import Workspace

        return Workspace(self._engine, self._principal, self._searching)

    @property
    def admin(self) -> Admin:
        """Administration: figures, checks, retention, backups."""
        from caliber.admin.facet import Admin

        return Admin(self._engine, self._principal)

    @property
    def storage(self) -> Tables:
        """The relations themselves. Raises: PermissionDenied unless the principal is an admin."""
        from caliber.admin.tables import Tables

        self._engine.check_open()
        self._principal.require_admin("read", "storage")
        return Tables(self._engine)

    @property
    def events(self) -> Events:
        """The events of commits."""
        from caliber.trajectory.events import Events

        return Events(self._engine, self._principal, Searching(self._engine, self._principal))

    @property
    def windows(self) -> Windows:
        """Persisted windows: as pages, and compared."""
        from caliber.explain.service import Windows

        return Windows(self._engine, self._reader)

    @property
    def jobs(self) -> Jobs:
        """Work behind calls: schedules, and the jobs of the durable queue."""
        from caliber.jobs.facet import Jobs

        return Jobs(self._engine, self._principal)


def _page(window: ContextWindow) -> str:
    from caliber.explain.page.render import render
    from caliber.explain.picture import picture_of

    return render(picture_of(window))


render_pages_with(_page)


def add_parts(engine: Engine) -> None:
    """Add every subsystem's part to an engine that was just opened, in the order in which they need each other.

    Raises: as ``caliber.open``.
    """
    jobs = JobQueue(engine)
    engine.add(jobs)
    owners = TaskOwners(engine.memory, engine.clock.now_us, engine.config.access, engine.store.catalog)
    ended = EndedGrants()
    owners.on_ended = lambda keys: engine.behind.offer(*((ended, key, (key, until)) for key, until in keys))
    engine.add(owners)
    listeners = CorrectionListeners()
    engine.add(listeners)
    listeners.add(lambda: _conflict_sides(engine), lambda: _conflict_listener(engine))
    engine.add(SearchEngine(engine))
    open_windows(engine)
    open_embeddings(engine)
    engine.summarization = engine.providers.summarization()
    open_summarizer(engine)
    engine.add(Learner(engine))
    engine.add(Readings())
    if engine.config.validation_mode is ValidationMode.ALWAYS:
        _check_reads(engine)
    Triggers(engine).register(jobs)
    Schedules(engine).register(jobs)
    retaining = Retaining(engine)
    retaining.register(jobs)
    sprawl = engine.config.pcp.anti_sprawl
    if sprawl is not None and sprawl.on_write is not None:
        from caliber.pcp.lint import lint_new  # parsers that few processes need

        engine.add(LintOnWrite(functools.partial(lint_new, sprawl)))
    if engine.config.orphan_detection_threshold is not None:
        from caliber.pcp.orphans import Orphans  # most stores end no task by themselves

        orphans = Orphans(engine, engine.config.orphan_detection_threshold, retaining)
        engine.add(orphans)
        orphans.register(jobs)
    _end_delegations(engine, jobs, retaining)
    jobs.register(
        Handler("workspace.reminder", functools.partial(_remind, engine)),
        Handler("agents.silent", functools.partial(_fail_silent_agents, engine)),
        Handler("agents.messages", functools.partial(_sweep_messages, engine), priority=IDLE),
    )


def _remind(engine: Engine, claim: Claim) -> int:
    from caliber.workspace.calendar import remind  # few stores have a calendar

    return remind(engine, claim)


def _sweep_messages(engine: Engine, claim: Claim) -> int:
    from caliber.agents.mail.messages import sweep  # most stores have no messages

    return sweep(engine, claim)


def _fail_silent_agents(engine: Engine, claim: Claim) -> int:
    from caliber.agents.liveness import run  # most stores have no agents

    return run(engine, claim)


def _end_delegations(engine: Engine, jobs: JobQueue, retaining: Retaining) -> None:
    """Have this process end delegations whose time is over."""

    def run(claim: Claim) -> int:
        from caliber.agents.handing.ending import Endings  # few processes delegate

        return Endings(engine, retaining, cascade=True).run(claim)

    jobs.register(Handler("agents.delegation", run))


def _conflict_listener(engine: Engine) -> CorrectionListener:
    from caliber.agents.conflicts.recording import AgentConflictListener  # most processes meet no conflict

    return AgentConflictListener(engine)


def _conflict_sides(engine: Engine) -> CorrectionListener:
    from caliber.pcp.conflicts import ConflictSides  # most processes correct no record

    return ConflictSides(engine)


def _check_reads(engine: Engine) -> None:
    """Let searches and windows report issues; where records are not in memory, checking would cost statements."""
    from caliber.pcp.validation import ReadChecks  # few tenants check what they read

    search = engine.part(SearchEngine)
    if search.stored is None:
        search.read_check = ReadChecks(engine)
