"""Data types of policy actions (declared, prepared, failed), and the list of a configuration's actions."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from caliber.config import CaliberConfig
from caliber.config.injection import InjectionKind, InjectionMode
from caliber.config.policies import ActionConfig, PolicyAction
from caliber.embedding.embedding_target import Vectors
from caliber.jobs.claims import Claim
from caliber.knowledge.drawing import PreparedNote, Source
from caliber.model.declared import Trigger
from caliber.model.errors import CaliberError
from caliber.model.lazy_dataclass import dataclass
from caliber.retention.compressing import Compression, Group, compressions
from caliber.trajectory.artifacts import NewArtifact
from caliber.trajectory.triggers import Subject

COMPRESS: Final = "compress"


def kind_of(action: ActionConfig | Compression) -> str:
    """Return an action in a word."""
    return COMPRESS if isinstance(action, Compression) else action.action.value


@dataclass(frozen=True, slots=True)
class Declared:
    """An action, and where it is declared: which policy, which of its rules, which of the rule's actions."""

    policy: str
    rule: int
    step: int
    action: ActionConfig | Compression

    @property
    def kind(self) -> str:
        """The action in a word."""
        return kind_of(self.action)

    @property
    def origin(self) -> str:
        """Its name: the same for as long as its policy is declared like this."""
        return f"{self.policy}[{self.rule}][{self.step}]"


@dataclass(slots=True)
class Step:
    """The outcome of one action, before anything is written."""

    declared: Declared
    took_s: float = 0.0
    error: CaliberError | None = None
    summary: str | None = None
    summary_vector: Vectors | None = None
    artifacts: list[tuple[NewArtifact, Vectors | None]] = field(default_factory=list)
    notes: list[PreparedNote] = field(default_factory=list)
    checkpoint: tuple[str, bytes] | None = None
    groups: list[Group] = field(default_factory=list)


@dataclass(slots=True)
class Prepared:
    """The actions of one trigger, in order; ``checkpoint`` is a checkpoint that no policy requested.

    ``claim`` is the job that their transaction ends; None for actions in the transaction that caused them.
    """

    trigger: Trigger
    claim: Claim | None = None
    steps: list[Step] = field(default_factory=list)
    checkpoint: tuple[str, bytes] | None = None

    @property
    def summarized(self) -> Step | None:
        """The step whose summary is that of the closing scope: the last that made one."""
        made = [step for step in self.steps if step.error is None and step.summary is not None]
        return made[-1] if made else None

    @property
    def has_checkpoint(self) -> bool:
        """True when a checkpoint is made."""
        return self.checkpoint is not None or any(step.checkpoint and step.error is None for step in self.steps)


def source_of(subject: Subject) -> Source:
    """Return the source of notes: the records they are drawn from."""
    return Source(subject.trajectory, subject.scopes, subject.turns, subject.outcome_summary)


class StepFailed(Exception):
    """An action could not be written; its transaction was rolled back."""

    def __init__(self, step: Step, error: CaliberError) -> None:
        super().__init__(str(error))
        self.step = step
        self.error = error


def declared_actions(config: CaliberConfig) -> dict[Trigger, list[Declared]]:
    """Return the actions of every trigger in the order in which they are declared, those of memories last."""
    found: dict[Trigger, list[Declared]] = {trigger: [] for trigger in Trigger}
    for policy in config.policies:
        for place, rule in enumerate(policy.rules):
            declared = [Declared(policy.name, place, step, action) for step, action in enumerate(rule.actions)]
            found[rule.on].extend(declared)
    for memory in config.memories:
        for place, when in enumerate(memory.inject_on):
            mode = InjectionMode(kind=InjectionKind.FULL)
            action = ActionConfig(action=PolicyAction.INJECT, target=memory.name, mode=mode)
            found[when.on].append(Declared(f"memory {memory.name}", place, 0, action))
    for trigger, actions in found.items():
        actions.extend(Declared(item.policy, 0, 0, item) for item in compressions(config.memories, trigger))
    return found
