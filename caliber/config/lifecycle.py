"""Configuration sections of scope closing, summaries, policy runs, jobs, tasks, notes, principal and trust."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from caliber.config.cron import check_time_zone
from caliber.config.knobs import AsList, Duration, Flag, Int, Name, Section, knob
from caliber.model.access import AgentRole, Principal, PrincipalKind
from caliber.model.trajectory import TurnRole
from caliber.model.trust import TrustLabel

TimeZone = Annotated[Name, AfterValidator(check_time_zone)]


class CloseConfig(Section):
    """Closing a scope; the policies on scope_close define the actions."""

    on_llm_failure: Literal["fail", "close_without_summary"] = knob(
        "Reaction when summarizing or embedding fails after its retries.", "C-215"
    )


class SummariesConfig(Section):
    """Summaries of blocks of turns of open scopes; windows show them instead of turns that they leave out."""

    turns: Literal["behind", "off"] = knob(
        "Summarize each completed block of assembly.evict_block_turns turns in the background, by"
        " summarization_provider; without a provider there are no summaries.",
        "design",
    )
    max_tokens: Int = knob("Longest summary of a block.", "ours", unit="tokens", ge=1)


class PolicyEngineConfig(Section):
    """Execution of policies."""

    on_error: Literal["abort", "continue"] = knob("If an action fails: stop, or go on to the next.", "C-229")


class JobsConfig(Section):
    """Work behind calls: triggers, schedules, retention and other jobs of the durable queue."""

    poll_ms: Duration = knob(
        "Interval at which an open store looks for due jobs of other processes; 0 never runs jobs in the background.",
        "C-238",
        unit="ms",
        ge=0,
    )
    lease_ms: Duration = knob(
        "Lease of a claimed job. A running process extends it; after this time other processes claim the jobs"
        " of a process that died.",
        "C-229",
        unit="ms",
        gt=0,
    )
    attempts_max: Int = knob("Claims of a job before it ends as failed.", "C-229", ge=1)
    backoff_ms: Duration = knob(
        "The wait after a first failed attempt; each further one doubles it.", "ours", unit="ms", gt=0
    )
    backoff_max_ms: Duration = knob("The longest wait between two attempts.", "ours", unit="ms", gt=0)
    workers: Int = knob("Jobs of a store that run in the background at once.", "ours", ge=1, le=64)


class TrajectoryConfig(Section):
    """Tasks."""

    children_on_complete: Literal["reject", "cascade_fail", "detach"] = knob(
        "Completing a trajectory whose children are active: refuse, fail them, or let them go on alone.", "C-237"
    )
    store_goal_text: Flag = knob("Keep the text of a goal, not only its hash.", "K-027")


class LearningConfig(Section):
    """Facts about people, learnt from messages by ``remember``."""

    method: Literal["model", "rules"] = knob(
        "Way to find facts: model, the language model that summarization_provider names, or rules.", "ours"
    )


class PrincipalConfig(Section):
    """The principal of a handle that is opened without one."""

    kind: PrincipalKind = knob("The application, which acts for users; a human, an agent, or the system.", "design")
    id: Name = knob("Name of the principal.", "design", max_length=256)
    role: AgentRole | None = knob("Role of an agent; decides what it sees.", "M-118", optional=True)
    admin: Flag = knob("Let the principal see and change everything.", "K-131")

    def to_principal(self) -> Principal:
        """Return it as the principal that calls are made for."""
        return Principal(kind=self.kind, id=self.id, role=self.role, is_admin=self.admin)


_ORDER = "system, user, tool, web: the most trusted first"


class TrustConfig(Section):
    """Labels of content that is written without one; a label that a call states takes precedence."""

    user_turns: TrustLabel = knob(f"Label of user turns ({_ORDER}).", "design")
    assistant_turns: TrustLabel = knob(
        "Label of assistant turns; if the scope holds a less trusted turn, the label of that one.", "design"
    )
    tool_turns: TrustLabel = knob("Label of tool turns.", "design")
    web_tools: Annotated[tuple[Name, ...], AsList, Field(max_length=1_000)] = knob(
        "Names of tools that fetch public content: their turns are labelled web.", "design"
    )
    artifacts: TrustLabel = knob("Label of artifacts without a source_turn; others have their turn's.", "design")
    notes: TrustLabel = knob("Label of notes and of records of declared memories that a caller adds.", "design")

    def of_turn(self, role: TurnRole, name: str | None) -> TrustLabel:
        """Return the label of a turn that states none, before what an assistant's scope holds is considered."""
        if role is TurnRole.SYSTEM:
            return TrustLabel.SYSTEM
        if role is TurnRole.USER:
            return self.user_turns
        if role is TurnRole.ASSISTANT:
            return self.assistant_turns
        return TrustLabel.WEB if name in self.web_tools else self.tool_turns
