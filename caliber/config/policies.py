"""Configuration section of policies: rules with triggers and actions, kinds of actions, and their targets.

Source: C-149, C-176 to C-179, C-213, C-226 to C-229, C-242.
"""

import re
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from caliber.config.cron import check_cron
from caliber.config.faults import Faults
from caliber.config.injection import InjectionMode
from caliber.config.knobs import AsList, Duration, Name, Real, Section, knob
from caliber.config.memories import MemoryRef, check_trigger
from caliber.model.declared import Trigger
from caliber.schema.memories import BUILT_IN, window_of

_CHANNEL: Final = re.compile(r"[a-z_][a-z0-9_]{0,54}\Z")  # PostgreSQL's 63 bytes less the prefix "caliber_"
_NAME: Final = r"^[a-z_][a-z0-9_]{0,62}$"


class PolicyAction(StrEnum):
    SUMMARIZE = "summarize"
    EXTRACT_ARTIFACTS = "extract_artifacts"
    CONSOLIDATE_NOTES = "consolidate_notes"
    CHECKPOINT = "checkpoint"
    PRUNE = "prune"
    INJECT = "inject"
    NOTIFY = "notify"


class PolicyTarget(StrEnum):
    """The memories of a conversation and its derived records, as actions name them."""

    TURN_BUFFER = "turn_buffer"
    SCOPE = "scope"
    TRAJECTORY = "trajectory"
    ARTIFACT = "artifact"
    NOTE = "note"


_BUILT_IN: Final[dict[str, str]] = {
    **{target.value: target for target in PolicyTarget},
    **{name: name for name in BUILT_IN if name not in tuple(PolicyTarget)},
}
"""The built-in memories; a member where there is one, so that identity comparisons work."""
_TEXTS: Final = (PolicyTarget.TURN_BUFFER, PolicyTarget.SCOPE, PolicyTarget.TRAJECTORY)
TARGETS: Final[dict[PolicyAction, tuple[str, ...]]] = {
    PolicyAction.SUMMARIZE: _TEXTS,
    PolicyAction.EXTRACT_ARTIFACTS: _TEXTS,
    PolicyAction.CONSOLIDATE_NOTES: (PolicyTarget.TRAJECTORY,),
    PolicyAction.CHECKPOINT: (PolicyTarget.SCOPE, PolicyTarget.TRAJECTORY),
    PolicyAction.PRUNE: tuple(
        name for name in _BUILT_IN if name == PolicyTarget.SCOPE or BUILT_IN[name].relation.ends is not None
    ),
    PolicyAction.INJECT: tuple(name for name in _BUILT_IN if window_of(name) is not None),
    PolicyAction.NOTIFY: (),
}
OWN_TARGETS: Final = (PolicyAction.SUMMARIZE, PolicyAction.PRUNE, PolicyAction.INJECT)
"""Actions that also work on a declared memory with its own relation."""

_GRADED: Final = {
    name: memory.relation.plural
    for name, memory in BUILT_IN.items()
    if memory.relation.ends is not None and memory.relation.ends.doubted is not None
}
"""The memories whose records have a confidence, with the column of it."""


ON_SCHEDULE: Final = (PolicyAction.PRUNE, PolicyAction.NOTIFY)
"""Actions that need no trajectory: on a schedule the whole tenant is the range (C-228)."""


def _target(value: str) -> str:
    return _BUILT_IN.get(value, value)


class ActionConfig(Section):
    """One thing to do."""

    action: PolicyAction = knob("Kind of action.", "C-227")
    target: Annotated[MemoryRef, AfterValidator(_target)] | None = knob(
        "Memory that the action changes, built-in or declared; notify has none.", "C-227", optional=True
    )
    older_than_ms: Duration | None = knob("For prune: age of records.", "C-176", unit="ms", optional=True, ge=0)
    below_confidence: Real | None = knob("For prune: least confidence.", "C-178", optional=True, ge=0, le=1)
    mode: InjectionMode | None = knob("For inject: form and number of the records.", "C-152", optional=True)
    channel: Name | None = knob("For notify: name of the channel.", "C-242", optional=True)

    @property
    def shown(self) -> str:
        """The action in a few words."""
        return f"{self.action.value} {self.channel if self.target is None else str(self.target)}"

    @property
    def _on_own(self) -> bool:
        return self.action in OWN_TARGETS and self.target is not None and self.target not in _BUILT_IN

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        allowed = TARGETS[self.action]
        if allowed and self.target is None:
            faults.missing("target")
        elif self.target is not None and self.target not in allowed and not self._on_own:
            wanted = "one of " + ", ".join(allowed) if allowed else "left out"
            faults.clash("target", "action", f"the target of {self.action} must be {wanted}")
        if self.action is PolicyAction.PRUNE:
            if self.older_than_ms is None and self.below_confidence is None:
                faults.missing("older_than_ms")
            if self.below_confidence is not None and self.target not in _GRADED and not self._on_own:
                faults.clash("below_confidence", "target", f"only {' and '.join(_GRADED.values())} carry a confidence")
        else:
            for name in ("older_than_ms", "below_confidence"):
                if getattr(self, name) is not None:
                    faults.clash(name, "action", "only prune takes it")
        if self.action is PolicyAction.INJECT and self.mode is None:
            faults.missing("mode")
        elif self.action is not PolicyAction.INJECT and self.mode is not None:
            faults.clash("mode", "action", "only inject takes it")
        if self.action is PolicyAction.NOTIFY:
            if self.channel is None:
                faults.missing("channel")
            elif _CHANNEL.match(self.channel) is None:
                faults.wrong("channel", "must be at most 55 lower-case letters, digits and _, with no digit first")
        elif self.channel is not None:
            faults.clash("channel", "action", "only notify takes it")
        faults.done()
        return self


class RuleConfig(Section):
    """A trigger and its actions, in order."""

    on: Trigger = knob("Trigger: the event that starts the actions.", "C-147")
    cron: Annotated[Name, AfterValidator(check_cron)] | None = knob(
        "Time of the schedule, as five cron fields; with on = schedule only.", "C-147", optional=True
    )
    actions: Annotated[tuple[ActionConfig, ...], AsList, Field(min_length=1)] = knob("Actions, in order.", "C-149")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        faults = Faults()
        check_trigger(faults, self.on, self.cron)
        for at, action in enumerate(self.actions if self.on is Trigger.SCHEDULE else ()):
            if action.action not in ON_SCHEDULE:
                able = " and ".join(ON_SCHEDULE)
                faults.clash(
                    f"actions[{at}].action",
                    "on",
                    f"{action.action} works on a trajectory, and a schedule has none: it does {able}",
                )
        faults.done()
        return self


class PolicyConfig(Section):
    """A named set of rules."""

    name: Annotated[str, Field(strict=True, pattern=_NAME)] = knob("Unique name.", "C-149")
    rules: Annotated[tuple[RuleConfig, ...], AsList] = knob("Rules of the policy, tried in order.", "C-149")
